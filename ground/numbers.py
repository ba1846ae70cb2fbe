"""These functions say which arguments are numbers: numpy's are, True is not."""

from numbers import Integral, Real


def is_whole(value: object) -> bool:
    """Whether an argument is a whole number: numpy's are, True is not."""
    return type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool))


def is_number(value: object) -> bool:
    """Whether it is a number of any kind, and no truth value."""
    return type(value) is float or (isinstance(value, Real) and not isinstance(value, bool))

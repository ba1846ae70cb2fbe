"""These functions say which arguments are numbers: numpy's are, True is not. Others are refused at
the door, by the argument's name."""

from numbers import Integral, Real

from ground.errors import SettingError

MOST = 10**9  # things, or seconds: far above it Lua's numbers and Redis's times no longer hold


def is_whole(value: object) -> bool:
    """Whether an argument is a whole number: numpy's are, True is not."""
    return type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool))


def is_number(value: object) -> bool:
    """Whether it is a number of any kind, and no truth value."""
    return type(value) is float or (isinstance(value, Real) and not isinstance(value, bool))


def check_whole(setting: str, value: object, least: int = 1, most: int = MOST) -> None:
    """Refuse what is no whole number within these bounds. Raises `SettingError`."""
    if not (is_whole(value) and least <= value <= most):  # type: ignore[operator]
        said = f"must be a whole number from {least} to {most}, not {shown(value)}"
        raise SettingError(setting, said)


def check_number(
    setting: str, value: object, least: float = 0, unit: str = "seconds", *, above: bool = False
) -> None:
    """Refuse what is no number of at least so many, or `above` that, and at most `MOST`.

    Raises `SettingError`. NaN and infinity are refused as well.
    """
    if is_number(value) and least <= value <= MOST and not (above and value == least):  # type: ignore[operator]
        return
    bound = f"above {least:g}" if above else f"{least:g} or more"
    raise SettingError(setting, f"must be {bound} {unit}, at most {MOST}, not {shown(value)}")


def shown(value: object) -> str:
    """The value for a message. Python writes no number of some thousand digits, and no list of
    lists as deep."""
    try:
        return f"{value!r:.80}"
    except (ValueError, RecursionError):
        return f"a value of type {type(value).__name__}, too large to be shown"

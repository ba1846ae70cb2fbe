"""Plain JSON stands for what a program's functions return: by value and type, and by no method of
its own.

    [1, 2.5, "a", null]      themselves; the value of a subclass is that of its builtin base, and
                             a number of numpy, a Decimal or a Fraction is the number it stands for
    {"a": 1}                 a dict whose keys are text
    {"$dict": [[1, 2]]}      any other dict
    {"$tuple": [1, 2]}, {"$set": [1, 2]}, {"$bytes": "00ff"}
    {"$object": ""}          anything else, which equals nothing

Calls come the same way: [[name, [arguments], {keywords}], …]. This text also runs by itself, where
a sandbox only runs programs: it needs the standard library alone.
"""

import builtins
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from json.encoder import c_make_encoder, encode_basestring_ascii  # type: ignore[attr-defined]
from typing import Any

# The functions of this module take theirs from this copy: a program may change its own.
__builtins__ = dict(vars(builtins))  # type: ignore[assignment]

_DEEPEST = 200  # levels of a result; what data sets hold has a few
_DIGITS = 4300  # of an int, which is what JSON is read with
_ALIKE = 64  # keys of one hash: a set of n such keys takes time as the square of n
_limit_digits = sys.set_int_max_str_digits
_read = json.loads


def _refuse(value: object) -> None:
    raise ValueError(f"no JSON: {type(value)}")


_encoder = c_make_encoder(
    None, _refuse, encode_basestring_ascii, None, ":", ",", False, False, True
)
_join = "".join


def calls_in(text: bytes) -> list[Any]:
    """Name, arguments and keywords of each."""
    calls: list[Any] = _read(text)
    return thing(calls) if b'"$' in text else calls


def answers(names: dict[str, Any], calls: list[Any]) -> Iterator[Any]:
    """The result of each call, made plain before the next one."""
    for name, arguments, keywords in calls:
        yield plain(_function(names, name)(*arguments, **keywords))
    _limit_digits(_DIGITS)  # the program may have set another


def _function(names: dict[str, Any], name: str) -> Any:
    if name in names:
        return names[name]
    if "Solution" in names and (method := getattr(names["Solution"](), name, None)):
        return method
    raise SystemExit(f"there is no function {name}, and no class Solution that has it")


def text_of(values: list[Any]) -> bytes:
    """The JSON of what is plain. Raises ValueError for ints of too many digits."""
    return _join(_encoder(values, 0)).encode()


def plain(value: Any, depth: int = 0) -> Any:
    """The value of exact builtin types, read by the methods of those types themselves."""
    kind = type(value)
    if value is None or kind is int or kind is str or kind is float or kind is bool:
        return value
    if issubclass(kind, int):
        return int.__index__(value)
    if issubclass(kind, str):
        return str.__str__(value)
    if issubclass(kind, float):
        return float.__float__(value)
    if depth == _DEEPEST:
        raise ValueError(f"the result is deeper than {_DEEPEST} levels")
    depth += 1
    if issubclass(kind, list):
        return _plain_items(list.__iter__(value), depth)
    if issubclass(kind, tuple):
        return {"$tuple": _plain_items(tuple.__iter__(value), depth)}
    if issubclass(kind, dict):
        return _plain_dict(value, depth)
    if issubclass(kind, set):
        return {"$set": _plain_items(set.__iter__(value), depth)}
    if issubclass(kind, frozenset):
        return {"$set": _plain_items(frozenset.__iter__(value), depth)}
    if issubclass(kind, bytes):
        return {"$bytes": bytes.hex(value)}
    number = _number(value)
    return {"$object": ""} if number is None else number


def _number(value: Any) -> Any:
    """The number of a class that others know as one; None for what is none. Who has made such a
    value has loaded its module."""
    if _is_of(value, "numpy", "generic"):
        number = value.item()
    elif _is_of(value, "decimal", "Decimal") or _is_of(value, "fractions", "Fraction"):
        number = float(value)
        number = int(value) if number.is_integer() else number
    else:
        return None
    return number if type(number) in (bool, int, float) else None


def _is_of(value: Any, module: str, name: str) -> bool:
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and issubclass(type(value), kind)


def _plain_items(items: Iterator[Any], depth: int) -> list[Any]:
    return [
        each if (kind := type(each)) is int or kind is str or kind is float else plain(each, depth)
        for each in items
    ]


def _plain_dict(value: dict[Any, Any], depth: int) -> dict[str, Any]:
    pairs = [(plain(key, depth), plain(item, depth)) for key, item in dict.items(value)]
    if any(type(key) is not str or key.startswith("$") for key, _ in pairs):
        return {"$dict": pairs}
    return dict(pairs)


def thing(value: Any) -> Any:
    """The value that is meant, of what JSON holds."""
    if type(value) is list:
        return [thing(each) for each in value]
    if type(value) is not dict:
        return value
    if len(value) == 1:
        ((key, held),) = value.items()
        if (made := _MADE.get(key)) is not None:
            return made(held)
    return {key: thing(item) for key, item in value.items()}


class Other:
    """A value that has no plain form: it equals nothing."""


_MADE: dict[str, Callable[[Any], Any]] = {
    "$tuple": lambda held: tuple(map(thing, held)),
    "$set": lambda held: set(_keys(held)),
    "$dict": lambda held: dict(
        zip(_keys(key for key, _ in held), (thing(item) for _, item in held), strict=True)
    ),
    "$bytes": bytes.fromhex,
    "$object": lambda _: Other(),
}


def _keys(values: Iterable[Any]) -> list[Any]:
    """The keys of a set or a dict. Raises ValueError for too many of one hash."""
    keys = [_key(each) for each in values]
    alike: dict[int, int] = {}
    for each in keys:
        alike[hash(each)] = alike.get(hash(each), 0) + 1
    if max(alike.values(), default=0) > _ALIKE:
        raise ValueError("too many keys have one hash")
    return keys


def _key(value: Any) -> Any:
    """The value as a set holds it, or a dict as its key."""
    made = thing(value)
    return frozenset(made) if type(made) is set else made

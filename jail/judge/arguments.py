"""The arguments of a function that is called: a JSON value a line.

They are refused here if some Python could not read them: a jail may have another one than this
process. Pythons differ in how deep a value may be, and their settings in how many digits a
number may have.
"""

import hashlib
import json
import re

from jail.inside.values import thing

DEEPEST = 200  # levels; some Pythons read no more than a few hundred
_DIGITS = 4300  # of an int, which is what JSON is read with by default
_LONG = re.compile(rb"[0-9]{%d}" % (_DIGITS + 1))
_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*"')
_BRACKETS = bytes.maketrans(b"{}", b"[]")
_OTHERS = bytes(set(range(256)) - set(b"[]{}"))

# Digests of what was found readable, for the next programs on the same cases: reading it takes the
# judge's event loop. Emptied when it is full.
_found: set[bytes] = set()
_MOST = 1 << 15


def arguments_of(given: bytes) -> list[bytes]:
    """The lines, each an argument. Raises ValueError for one that a sandbox could not read."""
    lines = given.rstrip().split(b"\n") if given.strip() else []
    digest = hashlib.blake2b(given, digest_size=16).digest()
    if digest in _found:
        return lines
    tagged = b'"$' in given
    for line in lines:
        _check(line, tagged=tagged)
    if len(_found) >= _MOST:
        _found.clear()
    _found.add(digest)
    return lines


def _check(line: bytes, *, tagged: bool) -> None:
    shown = f"{line[:200].decode(errors='replace')!r:.60}"
    if line.count(b"[") + line.count(b"{") > DEEPEST and _is_deep(line):
        raise ValueError(f"{shown}, which is nested in more than {DEEPEST} levels")
    try:
        value = json.loads(line.decode(), parse_int=_whole if _LONG.search(line) else None)
        if tagged:
            thing(value)
    except OverflowError:
        raise ValueError(f"{shown}, a number of more than {_DIGITS} digits") from None
    except (ValueError, TypeError, RecursionError):
        raise ValueError(f"{shown}, which is not JSON") from None


def _is_deep(line: bytes) -> bool:
    """Whether its brackets lie in more than so many levels: each turn takes the innermost away."""
    left = _TEXT.sub(b"", line).translate(_BRACKETS, _OTHERS)
    for _ in range(DEEPEST):
        left = left.replace(b"[]", b"")
    return b"[" in left


def _whole(digits: str) -> int:
    if len(digits.lstrip("-")) > _DIGITS:
        raise OverflowError
    return int(digits)

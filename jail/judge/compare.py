"""Whether what a program printed is what was expected: the rules that judges and datasets use.

exact         the same bytes
ends          the same except for newlines at the very end: verl's, and the default
lines         the same lines, without spaces at their ends, and empty lines before and behind
decimals      the same number of lines; each the same, or the same numbers: LiveCodeBench's
tokens        the same words, however they are spaced and broken into lines
tokens_nocase the same, upper or lower case
floats        as tokens_nocase, and two numbers may differ by `abs`, or by `rel` of the expected one
unordered     the same lines in any order, words compared

A line ends with LF or CR LF, except in `exact` and `ends`. Digits are compared as numbers of any
size, never by way of a float that would round them. No number is close to NaN. Bytes that are no
UTF-8 are compared as bytes.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal, InvalidOperation
from fractions import Fraction

from jail.judge.models import Compare, Rule

_LARGE = 1 << 20  # bytes; longer ones are compared beside the event loop
_LARGE_NUMBERS = 64 << 10  # the same, where each word may be a number
_LONGEST_NUMBER = 400  # characters; a longer word is compared as a word
_LARGEST_EXPONENT = 400  # 1e999999999 is a word as well: as a number it would fill the memory


def accepts(compare: Compare, printed: bytes, expected: Iterable[bytes]) -> bool:
    """Whether any of the expected answers was printed."""
    same = _RULES.get(compare.rule)
    if same is None:
        return any(_close(compare, printed, answer) for answer in expected)
    return any(same(printed, answer) for answer in expected)


async def accepted(compare: Compare, printed: bytes, expected: Sequence[bytes]) -> bool:
    """Compare as above, and nobody else waits while much is compared."""
    large = _LARGE_NUMBERS if compare.rule == "floats" else _LARGE
    if len(printed) + sum(map(len, expected)) > large:
        return await asyncio.to_thread(accepts, compare, printed, expected)
    return accepts(compare, printed, expected)


def may_accept(compare: Compare, begun: bytes, expected: Iterable[bytes]) -> bool:
    """Whether an output that begins so, and goes on, may be one of the expected answers."""
    return any(_may_be(compare, begun, answer) for answer in expected)


def _may_be(compare: Compare, begun: bytes, expected: bytes) -> bool:
    """A line is compared by whole words, or whole lines: the last one may be cut."""
    match compare.rule:
        case "exact":
            return expected.startswith(begun)
        case "ends":
            return (expected + b"\n" * len(begun)).startswith(begun)
        case "unordered":
            return _bag(begun.rpartition(b"\n")[0]) <= _bag(expected)
        case "lines" | "decimals":
            if compare.rule == "decimals":
                begun, expected = begun.lstrip(), expected.lstrip()
            begun, expected = _without_empty(begun), _without_empty(expected)
            ours, theirs = begun.split(b"\n")[:-1], expected.split(b"\n")
            beginning = b"\n".join(theirs[: len(ours)])
            return accepts(compare, b"\n".join(ours), [beginning])
    words, wanted = begun.split()[:-1], expected.split()
    return accepts(compare, b" ".join(words), [b" ".join(wanted[: len(words)])])


def _exact(printed: bytes, expected: bytes) -> bool:
    return printed == expected


def _ends(printed: bytes, expected: bytes) -> bool:
    return printed.rstrip(b"\n") == expected.rstrip(b"\n")


def _lines(printed: bytes, expected: bytes) -> bool:
    return _trimmed(printed) == _trimmed(expected)


def _trimmed(text: bytes) -> list[bytes]:
    return [line.rstrip() for line in _without_empty(text).rstrip().split(b"\n")]


def _without_empty(text: bytes) -> bytes:
    """The text from its first line on that has more than spaces."""
    first = len(text) - len(text.lstrip())
    return text[text.rfind(b"\n", 0, first) + 1 :]


def _decimals(printed: bytes, expected: bytes) -> bool:
    ours, theirs = (
        [line.strip() for line in text.strip().split(b"\n")] for text in (printed, expected)
    )
    if len(ours) != len(theirs):
        return False
    return all(map(_same_decimals, ours, theirs))


def _same_decimals(printed: bytes, expected: bytes) -> bool:
    if printed == expected:
        return True
    ours, theirs = _decimals_of(printed), _decimals_of(expected)
    return ours is not None and theirs is not None and ours == theirs


def _decimals_of(line: bytes) -> list[Decimal] | None:
    """The line's numbers; None if one of its words is none."""
    try:
        numbers = [Decimal(word.decode()) for word in line.split()]
    except (InvalidOperation, ValueError):
        return None
    return None if any(number.is_nan() for number in numbers) else numbers


def _tokens(printed: bytes, expected: bytes) -> bool:
    return printed.split() == expected.split()


def _tokens_nocase(printed: bytes, expected: bytes) -> bool:
    return _folded(printed) == _folded(expected)


def _folded(text: bytes) -> list[str]:
    return text.decode(errors="surrogateescape").casefold().split()


def _folded_words(text: bytes) -> list[bytes]:
    """The words of `_folded` as bytes, which are read as numbers sooner."""
    if text.isascii():
        return text.lower().split()
    return [word.encode(errors="surrogateescape") for word in _folded(text)]


def _unordered(printed: bytes, expected: bytes) -> bool:
    return _bag(printed) == _bag(expected)


def _bag(text: bytes) -> Counter[tuple[bytes, ...]]:
    return Counter(tuple(words) for line in text.split(b"\n") if (words := line.split()))


def _close(compare: Compare, printed: bytes, expected: bytes) -> bool:
    said, wanted = _folded_words(printed), _folded_words(expected)
    if len(said) != len(wanted):
        return False
    exactly = Fraction(compare.abs), Fraction(compare.rel)
    for one, other in zip(said, wanted, strict=True):
        if one == other and not _is_nan(one):
            continue
        clear = _clearly_close(compare, one, other)
        if not (_exactly_close(*exactly, one, other) if clear is None else clear):
            return False
    return True


def _clearly_close(compare: Compare, one: bytes, other: bytes) -> bool | None:
    """Compare by floats, which is fast; None where their rounding, or the spelling, may decide."""
    if len(one) > _LONGEST_NUMBER or len(other) > _LONGEST_NUMBER or b"_" in one + other:
        return None
    try:
        number, wanted = float(one), float(other)
    except ValueError:
        return None
    if not (number and wanted) and b"e" in one + other:  # too small for a float, or for a number
        return None
    off = abs(number - wanted)
    allowed = max(compare.abs, compare.rel * abs(wanted))
    rounding = 1e-15 * (abs(number) + abs(wanted) + allowed) + 1e-300  # each is within 2e-16 of it
    if off + rounding < allowed:
        return True
    return False if off - rounding > allowed else None  # None too where one is no finite number


def _exactly_close(absolute: Fraction, relative: Fraction, one: bytes, other: bytes) -> bool:
    number, wanted = _number(one), _number(other)
    if number is None or wanted is None:
        return False
    return abs(number - wanted) <= max(absolute, relative * abs(wanted))


def _is_nan(word: bytes) -> bool:
    return word.lstrip(b"+-").lower() in (b"nan", b"snan")


def _number(word: bytes) -> Fraction | None:
    """Exactly what the digits say; infinities and NaN are no numbers."""
    if len(word) > _LONGEST_NUMBER or b"_" in word:
        return None
    try:
        number = Decimal(word.decode("ascii"))
    except (InvalidOperation, ValueError):
        return None
    if not number.is_finite() or abs(number.adjusted()) > _LARGEST_EXPONENT:
        return None
    return Fraction(number)


_RULES: dict[Rule, Callable[[bytes, bytes], bool]] = {
    "exact": _exact,
    "ends": _ends,
    "lines": _lines,
    "decimals": _decimals,
    "tokens": _tokens,
    "tokens_nocase": _tokens_nocase,
    "unordered": _unordered,
}

"""The packed form of ids and log-probabilities: zlib over little-endian int32 or float32.

    numpy.frombuffer(zlib.decompress(packed), "<i4")    # what reads it elsewhere

In JSON it is `{"__packed__": "i32z", "data": base64}`, or `f32z`. Weight versions are run lengths,
`[[tokens, version], …]`. They are as short as they get.
"""

import sys
import zlib
from array import array
from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeAlias

Ids: TypeAlias = "array[int]"
Floats: TypeAlias = "array[float]"
Spans: TypeAlias = "tuple[tuple[int, int], ...]"

_KINDS = {"i": "i32z", "f": "f32z"}


def ids_of(ids: Iterable[int] = ()) -> Ids:
    """Token ids as an array of int32."""
    return array("i", ids)


def floats_of(values: Iterable[float | None] = ()) -> Floats:
    """Log-probabilities as an array of float32. A missing one is NaN, never 0."""
    return array("f", (float("nan") if value is None else value for value in values))


def pack(values: "array[Any]") -> bytes:
    """The bytes that are kept."""
    return zlib.compress(_little(values).tobytes())


def unpack(kind: str, packed: bytes) -> "array[Any]":
    """Make the array again; `kind` is `i` or `f`."""
    found: array[Any] = array(kind)
    found.frombytes(zlib.decompress(packed))
    return _little(found)


def to_json(values: "array[Any]") -> dict[str, str]:
    """The array as JSON has it."""
    return {"__packed__": _KINDS[values.typecode], "data": b64encode(pack(values)).decode()}


def from_json(said: dict[str, str]) -> "array[Any]":
    """The array that `to_json` was given."""
    return unpack(said["__packed__"][0], b64decode(said["data"]))


def runs(values: Iterable[int]) -> Spans:
    """Run lengths, `((how_many, value), …)`."""
    return tuple((len(list(run)), value) for value, run in groupby(values))


def joined(spans: Iterable[Sequence[int]]) -> Spans:
    """Run lengths, where neighbours of one value are one."""
    return tuple(
        (count, value)
        for value, run in groupby(spans, itemgetter(1))
        if (count := sum(tokens for tokens, _ in run))
    )


def spread(spans: Iterable[Sequence[int]]) -> list[int]:
    """The value of each token, from run lengths."""
    return [value for count, value in spans for _ in range(count)]


def _little(values: "array[Any]") -> "array[Any]":
    if sys.byteorder == "big":
        values = values[:]
        values.byteswap()
    return values

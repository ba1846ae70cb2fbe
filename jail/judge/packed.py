"""A suite in pieces that are named by their content, as it travels and is kept.

manifest   how many cases each pack has, and the digest of each pack
pack       some cases, 256 kB together at most; a text above 64 kB is in blobs of its own
blob       at most 1 MiB
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jail.judge.models import JudgeCase, SuiteRef

BLOB = (1 << 20) - 1  # and a byte that says how it is kept
_PACK = 256 << 10
_LARGE = 64 << 10
_DIGEST = 80  # bytes of one in a pack


@dataclass(frozen=True)
class Packed:
    """A suite as Redis keeps it; `blobs` are packs and texts by their digest."""

    ref: SuiteRef
    manifest: bytes
    blobs: dict[str, bytes]


def pack(cases: Sequence[JudgeCase]) -> Packed:
    """Pack cases into blobs by their digests. Each megabyte takes a few milliseconds."""
    blobs: dict[str, bytes] = {}
    packs: list[tuple[int, list[str]]] = []
    for part in _parts(cases):
        rows = [[_kept(text, blobs) for text in _texts(case)] for case in part]
        packs.append((len(part), _put(json.dumps(rows).encode(), blobs)))
    manifest = json.dumps({"packs": packs, "blobs": list(blobs)}).encode()
    return Packed(SuiteRef(sha256=digest_of(manifest), count=len(cases)), manifest, blobs)


def _parts(cases: Sequence[JudgeCase]) -> Iterator[list[JudgeCase]]:
    part: list[JudgeCase] = []
    size = 0
    for case in cases:
        more = case.size if case.size <= _LARGE else _inline_size(case)
        if part and size + more > _PACK:
            yield part
            part, size = [], 0
        part.append(case)
        size += more
    if part:
        yield part


def _inline_size(case: JudgeCase) -> int:
    answers = [case.expected] if isinstance(case.expected, str) else case.expected or []
    sizes = [len(text.encode()) for text in (case.input, case.check, *answers)]
    return sum(size if size <= _LARGE else _DIGEST for size in sizes)


def _texts(case: JudgeCase) -> list[Any]:
    return [case.input, case.expected, case.check]


def _kept(text: str | list[str] | None, blobs: dict[str, bytes]) -> Any:
    """The text as it stands in a pack: itself, a list of accepted answers, or where it lies."""
    if text is None:
        return None
    if isinstance(text, list):
        return [_kept(each, blobs) for each in text]
    raw = text.encode()
    return text if len(raw) <= _LARGE else {"blobs": _put(raw, blobs)}


def _put(raw: bytes, blobs: dict[str, bytes]) -> list[str]:
    """Put content, in pieces if it is large."""
    pieces = [raw[at : at + BLOB] for at in range(0, len(raw), BLOB)]
    digests = [digest_of(piece) for piece in pieces]
    blobs.update(zip(digests, pieces, strict=True))
    return digests


def digest_of(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()

"""A layer as it is in an archive, read as the plain tar that it packs.

Compression is recognised by the first bytes, not by a media type: both kinds of archives name it
differently, and some wrongly. The digest of all that was read is the layer's identity.
"""

import gzip
import hashlib
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, cast

from jail.images.errors import ImageBroken, ImageTooLarge

_CHUNK = 1 << 20
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
# A header that fills more memory than this is no honest one: names have at most 4 kB.
_MOST_AT_ONCE = 8 << 20


@contextmanager
def plain(packed: BinaryIO) -> Iterator[BinaryIO]:
    """The stream without its compression. Closes both."""
    with packed, io.BufferedReader(packed, _CHUNK) as buffered:  # type: ignore[type-var]
        start = buffered.peek(4)[:4]
        if start.startswith(_GZIP):
            with gzip.open(buffered, "rb") as unpacked:
                yield cast(BinaryIO, unpacked)
        elif start.startswith(_ZSTD):
            yield _without_zstd(buffered)
        else:
            yield buffered


def _without_zstd(packed: BinaryIO) -> BinaryIO:
    try:
        import zstandard
    except ImportError:
        raise ImageBroken(
            "the layer is compressed with zstd; install what reads it: "
            "pip install 'penstock-rl[zstd]'"
        ) from None
    unpacker = zstandard.ZstdDecompressor(max_window_size=1 << 27)
    return io.BufferedReader(_Zstd(unpacker.stream_reader(packed, read_across_frames=True)), _CHUNK)


class _Zstd(io.RawIOBase):
    """A zstd stream says of damage what other streams say."""

    def __init__(self, reader: BinaryIO) -> None:
        self._reader = reader

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        from zstandard import ZstdError

        try:
            found = self._reader.read(len(buffer))
        except ZstdError as damage:
            raise EOFError(str(damage)) from None
        buffer[: len(found)] = found
        return len(found)


class Measured:
    """A stream that is read forwards only, bounded, and hashed on the way."""

    def __init__(self, source: BinaryIO, most: int) -> None:
        self._source = source
        self._most = most
        self._hash = hashlib.sha256()
        self._position = 0
        self._gathered = 0
        self.last = b""

    def next_entry(self) -> None:
        """Forget what `tarfile` gathered for a header that is read; the bound counts from here."""
        self._gathered = 0

    def read(self, count: int) -> bytes:
        """Exactly this many bytes, or fewer at the end. `tarfile` reads headers with it."""
        self._gathered += count
        if count < 0 or self._gathered > _MOST_AT_ONCE:
            raise ImageBroken(f"the layer has a header of {self._gathered:,} bytes")
        return self.content(count)

    def content(self, count: int) -> bytes:
        """The content, which is not kept in memory; otherwise as `read`."""
        self.last = found = self._next(count)
        while 0 < len(found) < count and (more := self._next(count - len(found))):
            self.last = found = found + more
        self._hash.update(found)
        self._position += len(found)
        if self._position > self._most:
            raise ImageTooLarge(
                f"the layer unpacks to more than {self._most:,} bytes. "
                "PENSTOCK_IMAGE_MAX_GB says how much an image may hold"
            )
        return found

    def _next(self, count: int) -> bytes:
        try:
            return self._source.read(count)
        except (EOFError, zlib.error, gzip.BadGzipFile) as damage:
            raise ImageBroken(f"the layer cannot be decompressed: {damage}") from None

    def tell(self) -> int:
        return self._position

    def seek(self, position: int) -> int:
        """Continue to there. `tarfile` asks for no way back."""
        if position < self._position:
            raise ImageBroken("the layer's entries overlap")
        while self._position < position and self.content(min(_CHUNK, position - self._position)):
            pass
        return self._position

    def digest(self) -> str:
        """The digest of everything, the rest included."""
        while self.content(_CHUNK):
            pass
        return f"sha256:{self._hash.hexdigest()}"

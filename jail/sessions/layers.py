"""The changes of a session become a layer of an image: a tar with whiteouts, as OCI has them.

It comes from a session as its forks get it, so nothing of it is believed: the store judges this tar
as it judges any other.
"""

import json
import tarfile
from typing import IO, Any

from jail.images import ImageBroken, ImageTooLarge
from jail.inside.image import SETTINGS
from jail.inside.packing import SIZES

_HIDES, _OPAQUE = ".wh.", ".wh..wh..opq"
_MOST_SAID = 1 << 16  # bytes that say what an entry is
_OWN = {f"etc/{name}" for name in SETTINGS}  # written by the sandbox, into each session
_KINDS = {
    "folder": tarfile.DIRTYPE, "link": tarfile.SYMTYPE, "same": tarfile.LNKTYPE,
    "file": tarfile.REGTYPE,
}  # fmt: skip


class LayerWriter:
    """A writer makes a layer of what a session packs, which comes in pieces of any size. It writes
    at most `most` bytes: a file that is all hole takes no room in its session, and all of its size
    here."""

    def __init__(self, file: IO[bytes], most: int) -> None:
        self._file = file
        self._room = most
        self._held = bytearray()
        self._left = self._padding = 0  # bytes of the content that comes, and what fills its block
        self._skips = False
        self._entries = 0

    def feed(self, piece: bytes) -> None:
        self._held += piece
        while self._held:
            if self._left:
                part = self._held[: self._left]
                del self._held[: len(part)]
                self._left -= len(part)
                if not self._skips:
                    self._put(part)
                if not self._left:
                    self._put(bytes(self._padding))
            elif not self._begin():
                return

    def _begin(self) -> bool:
        """The next entry; False while it has not come whole."""
        if len(self._held) < SIZES.size:
            return False
        length, size = SIZES.unpack_from(self._held)
        if length > _MOST_SAID:
            raise ValueError(f"a session says {length:,} bytes of one file")
        if len(self._held) < SIZES.size + length:
            return False
        about = json.loads(self._held[SIZES.size : SIZES.size + length])
        del self._held[: SIZES.size + length]
        self._skips = about["name"] in _OWN
        self._left, self._padding = size, 0 if self._skips else -size % tarfile.BLOCKSIZE
        if not self._skips:
            self._write_entry(about, size)
        return True

    def _write_entry(self, about: dict[str, Any], size: int) -> None:
        name: str = about["name"]
        above, _, last = name.rpartition("/")
        if last.startswith(_HIDES):
            raise ImageBroken(
                f"/{name}: in a layer this name means that {last.removeprefix(_HIDES)!r} was"
                " removed. Give the file another name, or remove it"
            )
        if about["kind"] == "hidden":
            self._write(tarfile.TarInfo(f"{above}/{_HIDES}{last}".lstrip("/")))
            return
        entry = tarfile.TarInfo(name)
        entry.type, entry.size, entry.mode = _KINDS[about["kind"]], size, about["mode"]
        entry.uid, entry.gid = about["owner"]
        entry.mtime = about["times"][1] // 10**9
        entry.linkname = about.get("target", "")
        self._write(entry)
        if about.get("opaque"):
            self._write(tarfile.TarInfo(f"{name}/{_OPAQUE}"))

    def _write(self, entry: tarfile.TarInfo) -> None:
        self._put(entry.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
        self._entries += 1

    def _put(self, content: bytes | bytearray) -> None:
        self._room -= len(content)
        if self._room < 0:
            raise ImageTooLarge(
                "what the session has changed is more than one layer may hold. "
                "PENSTOCK_IMAGE_MAX_GB says how much an image may hold"
            )
        self._file.write(content)

    def close(self) -> int:
        """How many entries were written. Raises `ValueError` for half of one."""
        if self._held or self._left:
            raise ValueError("what a session packs was cut")
        self._file.write(bytes(2 * tarfile.BLOCKSIZE))
        return self._entries

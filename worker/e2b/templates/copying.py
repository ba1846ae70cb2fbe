"""A COPY step: an uploaded archive's files are written into a session, as its root.

The archive is the client's. Its names are relative, and lead nowhere but below the target.
"""

import asyncio
import os
import posixpath
import tarfile
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO

from jail.images.archive import tar_in
from jail.images.stream import plain
from jail.images.unpack import MOST_ENTRIES
from jail.inside.packing import head
from jail.sessions import CommandRequest, Session
from worker.e2b.problems import Problem

_PIECE = 1 << 18
# What tarfile says of a damaged archive; a KeyError of a hard link to nothing.
_DAMAGE = (
    tarfile.TarError, EOFError, OSError, zlib.error, KeyError, ValueError, OverflowError,
    RecursionError,
)  # fmt: skip
_AT_ONCE = 500  # paths of one `chown`
_SHOWN = 4096  # bytes of what it says
_GLOB = frozenset("*?[")


class Copying:
    """`source` as the client names it, below its folder; `target` is absolute."""

    def __init__(self, source: str, target: str, owner: str, mode: str) -> None:
        self._source = posixpath.normpath(source)
        self._target, self._owner = target, owner
        self.about = ["COPY", source, target, owner, mode]  # what it depends on, besides the files
        try:
            self._mode = int(mode, 8) if mode else None
        except ValueError:
            raise Problem(
                "invalid_argument", f"COPY: mode {mode!r:.20} is no octal number"
            ) from None

    async def into(self, session: Session, archive: Path) -> None:
        made: list[str] = []
        try:
            with plain(archive.open("rb")) as packed, tar_in(packed) as tar:
                await session.place(self._packed(tar, made))
        except _DAMAGE as damage:
            if isinstance(damage, OSError) and damage.errno is not None:
                raise  # the session's: a full disk
            raise Problem(
                "invalid_argument", f"COPY: the archive cannot be read: {damage}"
            ) from None
        if self._owner:
            for at in range(0, len(made), _AT_ONCE):
                words = ["chown", "-h", self._owner, "--", *made[at : at + _AT_ONCE]]
                ended = await session.run(CommandRequest(words, user="0"), most=_SHOWN)
                if ended.exit.code:
                    said = ended.stderr.decode(errors="replace") or ended.exit.message
                    raise Problem("invalid_argument", f"COPY: {said}")

    def _place_of(self, name: str, is_folder: bool) -> str:
        """A folder's content goes into the target; a file becomes it, or goes into it."""
        name = posixpath.normpath(name)
        if name.startswith(("/", "..")):
            raise Problem("invalid_argument", f"COPY: the archive names {name!r:.100}")
        if name == self._source:
            into = self._target.endswith("/") or self._target in (".", "/")
            inner = posixpath.basename(name) if into and not is_folder else ""
        elif self._source != "." and name.startswith(f"{self._source}/"):
            inner = name.removeprefix(f"{self._source}/")
        elif _GLOB & set(self._source):
            above = posixpath.dirname(self._source).split("*")[0].rstrip("/")
            inner = posixpath.relpath(name, above) if above else name
        else:
            inner = name
        return posixpath.normpath(posixpath.join(self._target, inner))

    async def _packed(self, tar: tarfile.TarFile, made: list[str]) -> AsyncIterator[bytes]:
        """Pack all in one stream, of pieces that are worth a wake-up."""
        held = bytearray()
        members = iter(tar)  # not `tar.next`, which ends at a hard link: that has all of them read
        while member := await asyncio.to_thread(next, members, None):
            if len(made) == MOST_ENTRIES:
                raise Problem(
                    "invalid_argument", f"COPY: the archive has more than {MOST_ENTRIES:,} entries"
                )
            made.append(path := self._place_of(member.name, member.isdir()))
            content: IO[bytes] | None = None
            left = 0
            if member.isdir():
                held += head({"name": path, "kind": "folder"})
            elif member.issym():
                held += head({"name": path, "kind": "link", "target": member.linkname})
            elif content := tar.extractfile(member):
                mode = member.mode & 0o777 if self._mode is None else self._mode
                left = content.seek(0, os.SEEK_END)  # a hard link's own size is 0
                content.seek(0)
                held += head({"name": path, "kind": "file", "mode": mode}, left)
            else:
                raise Problem("invalid_argument", f"COPY: {member.name!r:.100} is no file")
            while content and left:
                if not (piece := await asyncio.to_thread(content.read, min(_PIECE, left))):
                    raise EOFError(f"{member.name!r:.100} is cut")
                left -= len(piece)
                held += piece
                if len(held) >= _PIECE:
                    yield bytes(held)
                    held.clear()
            if len(held) >= _PIECE:
                yield bytes(held)
                held.clear()
        yield bytes(held)

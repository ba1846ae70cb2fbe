"""A layer's tar becomes a folder that overlayfs takes as a lower one.

The tar is hostile. Each entry is placed by file descriptors, one folder at a time, and no link
is ever followed. What could act outside (devices, setuid bits, extended attributes) does not
come in. A whiteout becomes a device 0/0, an opaque folder an attribute, as overlayfs has them.
"""

import errno
import os
import stat
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from jail.images.errors import ImageBroken, ImageTooLarge, StoreUnusable
from jail.images.stream import Measured

OPAQUE = "user.overlay.opaque"
_HIDES, _OPAQUE_MARK, _OF_AUFS = ".wh.", ".wh..wh..opq", ".wh..wh."
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK = 1 << 20
_KEPT_BITS = 0o1777
MOST_ENTRIES = 2_000_000
MOST_IDS = 65_536
# Linux opens no longer path. Nothing real is nested so deep.
_MOST_PATH, MOST_PARTS = 4096, 200


@dataclass(frozen=True)
class Owners:
    """The users who own unpacked files: one, or as many as the image has, from `first` on.

    None for both: the user that unpacks, who is not root.
    """

    one: int | None = None
    first: int | None = None

    def give(self, at: int, uid: int, gid: int) -> None:
        if owner := self._owner(uid, gid):
            os.fchown(at, *owner)

    def give_link(self, name: str, folder: int, uid: int, gid: int) -> None:
        if owner := self._owner(uid, gid):
            os.chown(name, *owner, dir_fd=folder, follow_symlinks=False)

    def _owner(self, uid: int, gid: int) -> tuple[int, int] | None:
        if self.first is not None:
            return self.first + _known(uid), self.first + _known(gid)
        return None if self.one is None else (self.one, self.one)


def _known(number: int) -> int:
    return number if 0 <= number < MOST_IDS else MOST_IDS - 2  # as the kernel has `nobody`


class LinksBelow(Exception):
    """A hard link's target is in a lower layer, so this layer depends on those below."""


@dataclass
class _Folder:
    """The final rights of a folder; until everything is in it, its unpacker may write to it."""

    mode: int = 0o755
    uid: int = 0
    gid: int = 0
    mtime: float = 0.0
    opaque: bool = False


@dataclass
class Unpacked:
    files: int = 0
    bytes: int = 0
    folders: dict[tuple[str, ...], _Folder] = field(default_factory=lambda: {(): _Folder()})


class Unpacker:
    """An unpacker puts one layer into one empty folder. `below`: the lower layers' folders, highest
    first.

    `used`: how many of the image's most bytes its other layers hold.
    """

    def __init__(
        self, folder: str, owners: Owners, most_bytes: int, used: int, below: list[str] | None
    ) -> None:
        self._owners = owners
        self._most = most_bytes
        self._used = used
        self._below = below
        self._root = os.open(folder, _FOLDER)
        self._at: tuple[tuple[str, ...], int] = (), os.dup(self._root)
        self._hidden: set[tuple[str, ...]] = set()
        self.done = Unpacked()

    def close(self) -> None:
        os.close(self._at[1])
        os.close(self._root)

    def unpack(self, source: Measured) -> Unpacked:
        try:
            with tarfile.TarFile(fileobj=source, mode="r") as tar:  # type: ignore[arg-type]
                while (member := tar.next()) is not None:
                    tar.members.clear()  # type: ignore[attr-defined]  # else it keeps millions
                    source.next_entry()
                    self._place(tar, member, source)
        except (tarfile.TarError, EOFError, ValueError, OverflowError, RecursionError) as damage:
            raise ImageBroken(f"the layer is no readable tar: {damage}") from None
        if source.last.strip(b"\0"):
            raise ImageBroken(f"the layer has no readable entry at byte {source.tell() - 512:,}")
        self._hide()
        self._finish_folders()
        return self.done

    def _place(self, tar: tarfile.TarFile, member: tarfile.TarInfo, source: Measured) -> None:
        parts = _parts(member.name)
        if member.size < 0:
            raise ImageBroken(f"entry {member.name!r} says a size of {member.size:,} bytes")
        self._count_entry()
        if not parts:
            if not member.isdir():
                raise ImageBroken(f"entry {member.name!r} has no name")
            self._folder_is(parts, member)
            return
        *within, name = parts
        above = tuple(within)
        if name.startswith(_HIDES):
            self._note_whiteout(above, name, member)
        elif member.isdir():
            self._make_folder(above, name)
            self._folder_is((*above, name), member)
        elif member.isreg() or member.issparse():
            self._write(tar, member, above, name, source)
        elif member.issym():
            length = len(os.fsencode(member.linkname))
            if not 0 < length < _MOST_PATH:
                raise ImageBroken(f"entry {member.name!r} is a link of {length:,} bytes")
            folder = self._clear(above, name)
            os.symlink(member.linkname, name, dir_fd=folder)
            self._owners.give_link(name, folder, member.uid, member.gid)
        elif member.islnk():
            self._link(member, above, name)
        elif member.isfifo():
            folder = self._clear(above, name)
            os.mkfifo(name, member.mode & 0o777, dir_fd=folder)
            self._owners.give_link(name, folder, member.uid, member.gid)
        else:
            raise ImageBroken(f"entry {member.name!r} is a device; images may hold none")

    def _count_entry(self) -> None:
        self.done.files += 1
        if self.done.files > MOST_ENTRIES:
            raise ImageTooLarge(f"the layer has more than {MOST_ENTRIES:,} entries and folders")

    def _count(self, size: int) -> None:
        self.done.bytes += size
        if self._used + self.done.bytes > self._most:
            raise too_large(self._most)

    def _note_whiteout(self, above: tuple[str, ...], name: str, member: tarfile.TarInfo) -> None:
        self._open(above)
        if name == _OPAQUE_MARK:
            self.done.folders[above].opaque = True
        elif not name.startswith(_OF_AUFS):
            hidden = name.removeprefix(_HIDES)
            if hidden in ("", ".", ".."):
                raise ImageBroken(f"entry {member.name!r} hides no file")
            self._hidden.add((*above, hidden))

    def _write(
        self,
        tar: tarfile.TarFile,
        member: tarfile.TarInfo,
        above: tuple[str, ...],
        name: str,
        source: Measured,
    ) -> None:
        self._count(member.size)
        folder = self._clear(above, name)
        file = os.open(name, _NEW_FILE, 0o600, dir_fd=folder)
        try:
            if member.issparse():
                content = tar.extractfile(member)
                while content and (chunk := content.read(_CHUNK)):
                    source.next_entry()
                    _write_all(file, chunk)
            else:
                source.seek(member.offset_data)
                left = member.size
                while left:
                    chunk = source.content(min(_CHUNK, left))
                    if not chunk:
                        raise ImageBroken(f"the layer ends in the middle of {member.name!r}")
                    _write_all(file, chunk)
                    left -= len(chunk)
            self._owners.give(file, member.uid, member.gid)
            os.fchmod(file, member.mode & _KEPT_BITS)
            _set_time(file, member.mtime)
        finally:
            os.close(file)

    def _link(self, member: tarfile.TarInfo, above: tuple[str, ...], name: str) -> None:
        target = _parts(member.linkname)
        if not target:
            raise ImageBroken(f"entry {member.name!r} links to the root")
        folder = self._clear(above, name)
        try:
            with _opened(self._root, target[:-1]) as found:
                os.link(
                    target[-1], name, src_dir_fd=found, dst_dir_fd=folder, follow_symlinks=False
                )
            return
        except FileNotFoundError:
            if self._below is None:
                raise LinksBelow from None
        except OSError as refused:
            raise _no_file(member, refused) from None
        try:
            self._copy_from_below(member, target, folder, name)
        except NotADirectoryError as refused:
            raise _no_file(member, refused) from None

    def _copy_from_below(
        self, member: tarfile.TarInfo, target: tuple[str, ...], folder: int, name: str
    ) -> None:
        """Copy the file that a link names in a layer below. It cannot be a link on disk, because
        each layer is a folder by itself."""
        for lower in self._below or ():
            with suppress(FileNotFoundError), _opened_path(lower, target) as found:
                about = os.fstat(found)
                if not stat.S_ISREG(about.st_mode):
                    break
                self._count(about.st_size)
                copy = os.open(name, _NEW_FILE, 0o600, dir_fd=folder)
                try:
                    while chunk := os.read(found, _CHUNK):
                        _write_all(copy, chunk)
                    if os.geteuid() == 0:
                        os.fchown(copy, about.st_uid, about.st_gid)
                    os.fchmod(copy, about.st_mode & _KEPT_BITS)
                    os.utime(copy, ns=(about.st_mtime_ns, about.st_mtime_ns))
                finally:
                    os.close(copy)
                return
        raise ImageBroken(
            f"entry {member.name!r} links to {member.linkname!r}, which no layer below has"
        )

    def _open(self, above: tuple[str, ...]) -> int:
        """The folder of an entry; the ones on the way are made where the tar has left them out."""
        if self._at[0] == above:
            return self._at[1]
        folder, depth = os.dup(self._root), 0
        try:
            for depth, part in enumerate(above, 1):
                try:
                    inner = os.open(part, _FOLDER, dir_fd=folder)
                except FileNotFoundError:
                    self._count_entry()
                    os.mkdir(part, 0o700, dir_fd=folder)
                    self.done.folders.setdefault(above[:depth], _Folder())
                    inner = os.open(part, _FOLDER, dir_fd=folder)
                os.close(folder)
                folder = inner
        except OSError as refused:
            os.close(folder)
            if refused.errno in (errno.ENOTDIR, errno.ELOOP):
                path = "/".join(above[:depth])
                raise ImageBroken(f"entries lie below {path!r}, which is no folder") from None
            raise
        except ImageTooLarge:
            os.close(folder)
            raise
        os.close(self._at[1])
        self._at = above, folder
        return folder

    def _clear(self, above: tuple[str, ...], name: str) -> int:
        """The folder, in which the name is free: of two entries of one name the later counts."""
        folder = self._open(above)
        try:
            os.unlink(name, dir_fd=folder)
        except FileNotFoundError:
            pass
        except IsADirectoryError:
            path = "/".join((*above, name))
            raise ImageBroken(f"entry {path!r} is a folder and a file") from None
        return folder

    def _make_folder(self, above: tuple[str, ...], name: str) -> None:
        folder = self._open(above)
        try:
            os.mkdir(name, 0o700, dir_fd=folder)
        except FileExistsError:
            if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                os.unlink(name, dir_fd=folder)
                os.mkdir(name, 0o700, dir_fd=folder)

    def _folder_is(self, path: tuple[str, ...], member: tarfile.TarInfo) -> None:
        known = self.done.folders.setdefault(path, _Folder())
        known.mode, known.uid, known.gid = member.mode & _KEPT_BITS, member.uid, member.gid
        known.mtime = member.mtime

    def _hide(self) -> None:
        """Whiteouts hide what is below, never what the same layer brings."""
        for path in self._hidden:
            folder = self._open(path[:-1])
            try:
                present = os.stat(path[-1], dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:
                os.mknod(path[-1], stat.S_IFCHR | 0o000, os.makedev(0, 0), dir_fd=folder)
            else:
                if stat.S_ISDIR(present.st_mode):
                    self.done.folders[path].opaque = True

    def _finish_folders(self) -> None:
        for path in sorted(self.done.folders, key=len, reverse=True):
            about = self.done.folders[path]
            folder = self._open(path)
            if about.opaque:
                _make_opaque(folder)
            self._owners.give(folder, about.uid, about.gid)
            os.fchmod(folder, about.mode)
            _set_time(folder, about.mtime)


def too_large(most: int) -> ImageTooLarge:
    return ImageTooLarge(
        f"the image's files hold more than {most:,} bytes. "
        "PENSTOCK_IMAGE_MAX_GB says how much an image may hold"
    )


def _no_file(member: tarfile.TarInfo, refused: OSError) -> ImageBroken:
    return ImageBroken(f"entry {member.name!r} links to no file: {refused}")


def _parts(path: str) -> tuple[str, ...]:
    if len(os.fsencode(path)) > _MOST_PATH:
        raise ImageBroken(f"entry {path[:80]!r} has a path of more than {_MOST_PATH:,} bytes")
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    if ".." in parts:
        raise ImageBroken(f"entry {path!r} leads out of the image")
    if "\0" in path or any(len(os.fsencode(part)) > 255 for part in parts):
        raise ImageBroken(f"entry {path[:80]!r} has a name that no file can have")
    if len(parts) > MOST_PARTS:
        raise ImageBroken(f"entry {path[:80]!r} lies more than {MOST_PARTS} folders deep")
    return parts


@contextmanager
def _opened(root: int, path: tuple[str, ...]) -> Iterator[int]:
    """A folder below, reached through no link."""
    folder = os.dup(root)
    try:
        for part in path:
            inner = os.open(part, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = inner
        yield folder
    finally:
        os.close(folder)


@contextmanager
def _opened_path(root: str, path: tuple[str, ...]) -> Iterator[int]:
    start = os.open(root, _FOLDER)
    try:
        with _opened(start, path[:-1]) as folder:
            # A whiteout is a device, which no open may touch.
            about = os.stat(path[-1], dir_fd=folder, follow_symlinks=False)
            kind = os.O_RDONLY if stat.S_ISREG(about.st_mode) else os.O_PATH
            found = os.open(path[-1], kind | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    finally:
        os.close(start)
    try:
        yield found
    finally:
        os.close(found)


def _set_time(at: int, moment: float) -> None:
    """Leave out a time that no file can have."""
    with suppress(ValueError, OverflowError, OSError):
        os.utime(at, (moment, moment))


def _make_opaque(folder: int) -> None:
    try:
        os.setxattr(folder, OPAQUE, b"y")
    except OSError as refused:
        raise StoreUnusable(
            "the file system of the image store keeps no extended attributes "
            f"({refused.strerror}). Choose a folder on ext4, xfs or btrfs: PENSTOCK_IMAGES"
        ) from None


def _write_all(file: int, chunk: bytes) -> None:
    view = memoryview(chunk)
    while view:
        view = view[os.write(file, view) :]

"""All that a session has written, on its way into another: as a stream, and as it was.

What is known of each file (its mode, owner and times) goes with it.
"""

import contextlib
import errno
import json
import os
import stat
import struct
from collections.abc import Iterator
from typing import Any, BinaryIO

PIECE = 1 << 18
NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_ZEROS = bytes(PIECE)
SIZES = struct.Struct("!IQ")  # of what is said of a file, and of its content
_OPAQUE = "user.overlay.opaque"


def pack(kept: list[int], over: bool = True, **_: Any) -> None:
    """Pack all that the session has written, for `unpack` in another one: folders before what is in
    them, and of a file with several names the content once. `kept` are its open folders, the
    highest level first. `over`: over an image, of which it may have removed something."""
    seen: dict[tuple[int, int], str] = {}
    folders = [("", kept)]
    # Many small files fill one write: a reader that is woken for each costs more than its copy.
    with open(1, "wb", buffering=PIECE, closefd=False) as out:
        while folders:
            folder, levels = folders.pop()
            for name, level in sorted(_seen_in(folder, levels).items()):
                with contextlib.suppress(FileNotFoundError, PermissionError):
                    merged, hides = _merged_folders(name, levels[levels.index(level) :])
                    os.fchdir(level)  # short names, and no look-up from the root for each
                    _pack_one(out, name, over, hides, seen)
                    if merged:
                        folders.append((name, merged))


def _seen_in(folder: str, levels: list[int]) -> dict[str, int]:
    """The names in a folder, each with the highest level that has it."""
    found: dict[str, int] = {}
    for level in levels:
        os.fchdir(level)
        with contextlib.suppress(FileNotFoundError, PermissionError):
            for name in os.listdir(folder or "."):
                found.setdefault(f"{folder}/{name}" if folder else name, level)
    return found


def _merged_folders(name: str, levels: list[int]) -> tuple[list[int], bool]:
    """Merge a name's folders as an overlay does: the levels that have one, from the highest down.

    A file of that name, or an opaque folder, ends the list: it hides what is below. The second
    value says whether that happened, so that the image's own folder is hidden too.
    """
    found: list[int] = []
    for level in levels:
        os.fchdir(level)
        try:
            if not stat.S_ISDIR(os.lstat(name).st_mode):
                return found, True
        except FileNotFoundError:
            continue
        found.append(level)
        if _is_opaque(name):
            return found, True
    return found, False


def _pack_one(
    out: BinaryIO, name: str, over: bool, hides: bool, seen: dict[tuple[int, int], str]
) -> None:
    found = os.lstat(name)
    about = {"name": name, **about_of(found)}
    if stat.S_ISDIR(found.st_mode):
        out.write(head({**about, "kind": "folder", "opaque": over and hides}))
    elif stat.S_ISLNK(found.st_mode):
        out.write(head({**about, "kind": "link", "target": os.readlink(name)}))
    elif stat.S_ISCHR(found.st_mode) and not found.st_rdev:  # what a lower one has was removed
        if over:
            out.write(head({**about, "kind": "hidden"}))
    elif not stat.S_ISREG(found.st_mode):
        return  # a socket or a pipe is of use to none but its makers
    elif first := seen.get((found.st_dev, found.st_ino)):
        out.write(head({**about, "kind": "same", "target": first}))
    else:
        if found.st_nlink > 1:
            seen[found.st_dev, found.st_ino] = name
        at = os.open(name, READ | os.O_NOFOLLOW)
        size = os.fstat(at).st_size
        out.write(head({**about, "kind": "file"}, size))
        while size:
            piece = os.read(at, min(PIECE, size)) or bytes(min(PIECE, size))  # it has shrunk
            out.write(piece)
            size -= len(piece)
        os.close(at)


def _is_opaque(path: str) -> bool:
    try:
        return os.getxattr(path, _OPAQUE, follow_symlinks=False) == b"y"
    except OSError:
        return False


def head(about: dict[str, Any], size: int = 0) -> bytes:
    """The head before a file's content of so many bytes."""
    text = json.dumps(about).encode()
    return SIZES.pack(len(text), size) + text


def entries(packed: BinaryIO) -> Iterator[tuple[dict[str, Any], int]]:
    """The head of each entry, and how many bytes of content follow, which the caller takes."""
    while start := packed.read(1):
        length, size = SIZES.unpack(start + _take(packed, SIZES.size - 1))
        yield json.loads(_take(packed, length)), size


def _take(packed: BinaryIO, size: int) -> bytes:
    if len(taken := packed.read(size)) < size:
        raise OSError(errno.EIO, "the copy was cut")
    return taken


def unpack(scratch: str, **_: Any) -> None:
    """Unpack what `pack` wrote into this session's folder."""
    os.chdir(scratch)
    os.umask(0)
    folders = []
    with open(0, "rb", buffering=PIECE, closefd=False) as packed:
        for about, size in entries(packed):
            name = about["name"]
            match about["kind"]:
                case "folder":
                    os.makedirs(name, 0o755, exist_ok=True)
                    if about["opaque"]:
                        os.setxattr(name, _OPAQUE, b"y")
                    folders.append((name, about))
                case "link":
                    with contextlib.suppress(FileExistsError):
                        os.symlink(about["target"], name)
                        give(name, about)
                case "hidden":
                    os.mknod(name, stat.S_IFCHR, os.makedev(0, 0))
                case "same":
                    os.link(about["target"], name)
                case _:
                    at = os.open(name, NEW | os.O_NOFOLLOW, about["mode"] | 0o600)
                    fill(at, size, packed)
                    dress(at, about)
                    os.close(at)
    for name, about in reversed(folders):
        dress(name, about)


def fill(at: int, size: int, packed: BinaryIO) -> None:
    """Holes stay holes: they took no room in the other session, which has as much as this one."""
    left, in_a_hole = size, False
    while left:
        piece = _take(packed, min(PIECE, left))
        left -= len(piece)
        if in_a_hole := _ZEROS.startswith(piece):
            os.lseek(at, len(piece), os.SEEK_CUR)
        else:
            put(at, piece)
    if in_a_hole:
        os.ftruncate(at, size)


def about_of(found: os.stat_result) -> dict[str, Any]:
    return {
        "mode": stat.S_IMODE(found.st_mode), "owner": [found.st_uid, found.st_gid],
        "times": [found.st_atime_ns, found.st_mtime_ns],
    }  # fmt: skip


def give(what: int | str, about: dict[str, Any]) -> None:
    if os.geteuid() == 0 and any(about["owner"]):  # else there is one user
        os.chown(what, *about["owner"], follow_symlinks=isinstance(what, int))


def dress(what: int | str, about: dict[str, Any]) -> None:
    give(what, about)
    with contextlib.suppress(PermissionError):  # refused without namespaces
        os.chmod(what, about["mode"])
        os.utime(what, ns=tuple(about["times"]))


def put(at: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(at, view) :]

"""What a session's client asks of its files: done by a fork of init that is confined as a command.

Content comes on descriptor 0 and goes to 1; what came of it goes to 2, as JSON. A name may lead
anywhere that a program of the session could go, and nowhere else.
"""

import contextlib
import errno
import json
import os
import select
import stat
import struct
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, NoReturn

from . import kernel
from .place import Place

PIECE = 1 << 18
MOST_ENTRIES = 100_000
_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_PAGE = os.sysconf("SC_PAGE_SIZE")
_INOTIFY_INIT, _INOTIFY_ADD = {"x86_64": (294, 254)}.get(kernel.MACHINE, (26, 27))
_CREATED, _DELETED, _MOVED_FROM, _MOVED_TO = 0x100, 0x200, 0x40, 0x80
_MODIFIED, _ATTRIBUTES, _OVERFLOW, _FOLDER, _ONLY_FOLDER = 0x2, 0x4, 0x4000, 0x40000000, 0x01000000
_WATCHED = _CREATED | _DELETED | _MOVED_FROM | _MOVED_TO | _MODIFIED | _ATTRIBUTES | _ONLY_FOLDER
_EVENT = struct.Struct("iIII")
_ZEROS = bytes(PIECE)
SIZES = struct.Struct("!IQ")  # of what is said of a file, and of its content
OPAQUE = "user.overlay.opaque"


def window(size: list[int]) -> bytes:
    """A terminal's size, in columns and rows, as the kernel takes it."""
    return struct.pack("4H", size[1], size[0], 0, 0)


def resident(pid: str) -> int:
    """A process's memory, in bytes."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0  # it has ended


def prepared(order: dict[str, Any], place: Place) -> list[int]:
    """What a call needs that no program may have or make: before it is confined."""
    if order.get("call") == "pack":
        return place.changed()
    if order.get("call") != "watch":
        return []
    try:
        return [kernel.syscall("inotify_init1", _INOTIFY_INIT, os.O_CLOEXEC)]
    except OSError as problem:
        if problem.errno == errno.EMFILE:
            problem.strerror = "this machine watches as much as fs.inotify.max_user_instances says"
        raise


def answer(order: dict[str, Any], scratch: str, kept: list[int]) -> NoReturn:
    """Do it, and end. Its refusals are those of `open`."""
    code = 0
    try:
        said: dict[str, Any] = {
            "value": _CALLS[order["call"]](scratch=scratch, kept=kept, **order["given"])
        }
    except (OSError, ValueError, RecursionError) as problem:
        number = getattr(problem, "errno", None) or errno.EINVAL
        why = getattr(problem, "strerror", None) or str(problem)
        code, said = 1, {"errno": number, "why": why}
    _put(2, json.dumps(said).encode())
    os._exit(code)


def refuse(number: int, why: str) -> NoReturn:
    _put(2, json.dumps({"errno": number, "why": why}).encode())
    os._exit(1)


def _put(at: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(at, view) :]


def _named(path: str) -> str:
    """Absolute; its last part may be a link."""
    if not path:
        raise FileNotFoundError(errno.ENOENT, "an empty path")
    return os.path.abspath(expanded(path))


def expanded(path: str) -> str:
    """With the home folder for `~`. No other user's: to look one up runs what the image names."""
    return os.environ["HOME"] + path[1:] if path == "~" or path.startswith("~/") else path


def _read(path: str, **_: Any) -> None:
    at = os.open(_named(path), _READ)
    found = os.fstat(at)
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "Not a regular file")
    while piece := os.read(at, PIECE):
        _put(1, piece)


def _write(path: str, size: int | None, mode: int | None, **_: Any) -> dict[str, Any]:
    path = _named(path)
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None
    if mode is not None:
        os.umask(0)
    at = os.open(path, _NEW, 0o666 if mode is None else mode)
    taken = 0
    while piece := os.read(0, PIECE):
        _put(at, piece)
        taken += len(piece)
    if size is not None and taken != size:
        raise OSError(errno.EIO, f"{taken:,} of {size:,} bytes came before the sender hung up")
    if mode is not None and stat.S_IMODE(os.fstat(at).st_mode) != mode:
        os.fchmod(at, mode)  # of a file that was there; refused without namespaces
    os.close(at)
    return _entry(path)


def _entry(path: str) -> dict[str, Any]:
    found = os.lstat(path)
    kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}
    kind, target = kinds.get(stat.S_IFMT(found.st_mode), "other"), ""
    if kind == "link":
        with contextlib.suppress(PermissionError):  # one of another process's, in /proc
            target = os.readlink(path)
    return {
        "path": path, "kind": kind, "size": found.st_size, "mode": stat.S_IMODE(found.st_mode),
        "user": _name_of("passwd", found.st_uid), "group": _name_of("group", found.st_gid),
        "modified": found.st_mtime, "target": target,
    }  # fmt: skip


_known: dict[tuple[str, int], str] = {}


def _name_of(file: str, number: int) -> str:
    if (name := _known.get((file, number))) is None:
        name = str(number)
        with contextlib.suppress(OSError), open(f"/etc/{file}", errors="replace") as lines:
            name = next((f[0] for line in lines if (f := line.split(":"))[2:3] == [name]), name)
        _known[file, number] = name
    return name


def _stat(path: str, **_: Any) -> dict[str, Any]:
    return _entry(_named(path))


def _list(path: str, depth: int, **_: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    folders = [(_named(path), 1)]
    while folders:
        folder, level = folders.pop()
        names = _names(folder, must_be_there=level == 1)
        for name in sorted(names):
            with contextlib.suppress(FileNotFoundError):  # it has gone meanwhile
                entry = _entry(os.path.join(folder, name))
                found.append(entry)
                if entry["kind"] == "folder" and level < depth:
                    folders.append((entry["path"], level + 1))
        if len(found) > MOST_ENTRIES:
            raise OSError(errno.E2BIG, f"more than {MOST_ENTRIES:,} entries; list less of them")
    return sorted(found, key=lambda entry: str(entry["path"]))


def _names(folder: str, must_be_there: bool) -> list[str]:
    try:
        return os.listdir(folder)
    except (PermissionError, FileNotFoundError):
        if must_be_there:
            raise
        return []


def _make(path: str, **_: Any) -> bool:
    path = _named(path)
    if os.path.isdir(path):
        return False
    try:
        os.makedirs(path)
    except FileExistsError:
        if os.path.isdir(path):  # another was faster
            return False
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None
    return True


def _move(path: str, to: str, **_: Any) -> dict[str, Any]:
    path, to = _named(path), _named(to)
    os.makedirs(os.path.dirname(to), exist_ok=True)
    try:
        os.rename(path, to)
    except OSError as problem:
        if problem.errno != errno.EXDEV:
            raise
        _move_by_copy(path, to)
    return _entry(to)


def _move_by_copy(path: str, to: str) -> None:
    """What lies in a layer of the image, or was written before a fork, or goes to another of the
    folders of a session without an image."""
    if os.path.lexists(to):
        put, there = (stat.S_ISDIR(os.lstat(name).st_mode) for name in (path, to))
        if put != there:
            number = errno.ENOTDIR if put else errno.EISDIR
            raise OSError(number, os.strerror(number))
        (os.rmdir if there else os.unlink)(to)
    try:
        _copy(path, to)
    except BaseException:
        if os.path.lexists(to):
            _remove(to)
        raise
    _remove(path)


def _copy(path: str, to: str) -> None:
    found = os.lstat(path)
    if stat.S_ISDIR(found.st_mode):
        os.mkdir(to)
        for name in os.listdir(path):
            _copy(os.path.join(path, name), os.path.join(to, name))
    elif stat.S_ISLNK(found.st_mode):
        os.symlink(os.readlink(path), to)
        _give(to, _about(found))
        return
    elif stat.S_ISREG(found.st_mode):
        source = os.open(path, _READ | os.O_NOFOLLOW)
        target = os.open(to, _NEW | os.O_EXCL, 0o600)
        while piece := os.read(source, PIECE):
            _put(target, piece)
        os.close(source)
        os.close(target)
    elif stat.S_ISFIFO(found.st_mode):
        os.mkfifo(to)
    else:
        return  # a socket is of use to none but its maker
    _dress(to, _about(found))


def _about(found: os.stat_result) -> dict[str, Any]:
    return {
        "mode": stat.S_IMODE(found.st_mode), "owner": [found.st_uid, found.st_gid],
        "times": [found.st_atime_ns, found.st_mtime_ns],
    }  # fmt: skip


def _remove(path: str, **_given: Any) -> None:
    path = _named(path)
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        os.unlink(path)
        return
    for _, folders, names, at in os.fwalk(path, topdown=False, follow_symlinks=False):
        for name in names:
            os.unlink(name, dir_fd=at)
        for name in folders:
            try:
                os.rmdir(name, dir_fd=at)
            except NotADirectoryError:  # a link to a folder
                os.unlink(name, dir_fd=at)
    os.rmdir(path)


def _watch(path: str, recursive: bool, kept: list[int], **_: Any) -> None:
    """A line of JSON for each change; `null` as the first."""
    (watching,) = kept
    watched: dict[int, str] = {}

    def add(folder: str) -> Iterator[str]:
        """Watch it; what lies in it by then may have come unseen."""
        at = kernel.syscall(
            "inotify_add_watch", _INOTIFY_ADD, watching, os.fsencode(folder), _WATCHED
        )
        watched[at] = folder
        if recursive:
            for name in _names(folder, must_be_there=False):
                inner = os.path.join(folder, name)
                yield inner
                if os.path.isdir(inner) and not os.path.islink(inner):
                    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                        yield from add(inner)

    list(add(_named(path)))
    _put(1, b"null\n")
    hung_up = select.poll()
    hung_up.register(1, select.POLLERR)
    hung_up.register(watching, select.POLLIN)
    while watching in {at for at, _ in hung_up.poll()}:
        for kind, changed, is_folder in _events(os.read(watching, 1 << 16), watched):
            changes = [{"kind": kind, "path": changed}]
            if is_folder and recursive and kind == "create":
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    changes += [{"kind": "create", "path": inner} for inner in add(changed)]
            _put(1, b"".join(json.dumps(change).encode() + b"\n" for change in changes))


def _events(read: bytes, watched: dict[int, str]) -> Iterator[tuple[str, str, bool]]:
    kinds = {_CREATED: "create", _DELETED: "remove", _MOVED_FROM: "rename", _MOVED_TO: "create",
             _MODIFIED: "write", _ATTRIBUTES: "chmod"}  # fmt: skip
    at = 0
    while at < len(read):
        number, mask, _, size = _EVENT.unpack_from(read, at)
        name = read[at + _EVENT.size : at + _EVENT.size + size].rstrip(b"\0")
        at += _EVENT.size + size
        if mask & _OVERFLOW:
            raise OSError(errno.EOVERFLOW, "more changes than were read in time; watch it again")
        kind = next((word for bit, word in kinds.items() if mask & bit), "")
        if kind and name and number in watched:
            yield kind, os.path.join(watched[number], os.fsdecode(name)), bool(mask & _FOLDER)


def _pack(kept: list[int], over: bool = True, **_: Any) -> None:
    """All that the session has written, for `_unpack` in another one: folders before what is in
    them, and of a file with several names the content once. `over`: over an image, of which it may
    have removed something."""
    seen: dict[tuple[int, int], str] = {}
    folders = [("", kept)]
    # Many small files fill one write: a reader that is woken for each costs more than its copy.
    with open(1, "wb", buffering=PIECE, closefd=False) as out:
        while folders:
            folder, levels = folders.pop()
            for name, level in sorted(_seen_in(folder, levels).items()):
                with contextlib.suppress(FileNotFoundError, PermissionError):
                    merged, hides = _folders_of(name, levels[levels.index(level) :])
                    os.fchdir(level)  # short names, and no look-up from the root for each
                    _pack_one(out, name, over, hides, seen)
                    if merged:
                        folders.append((name, merged))


def _seen_in(folder: str, levels: list[int]) -> dict[str, int]:
    """What is there, and the level that it is seen of: the highest that has it."""
    found: dict[str, int] = {}
    for level in levels:
        os.fchdir(level)
        with contextlib.suppress(FileNotFoundError, PermissionError):
            for name in os.listdir(folder or "."):
                found.setdefault(f"{folder}/{name}" if folder else name, level)
    return found


def _folders_of(name: str, levels: list[int]) -> tuple[list[int], bool]:
    """The levels whose folders of this name are seen as one, and whether that hides the image's."""
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
    about = {"name": name, **_about(found)}
    if stat.S_ISDIR(found.st_mode):
        _put_about(out, {**about, "kind": "folder", "opaque": over and hides})
    elif stat.S_ISLNK(found.st_mode):
        _put_about(out, {**about, "kind": "link", "target": os.readlink(name)})
    elif stat.S_ISCHR(found.st_mode) and not found.st_rdev:  # what a lower one has was removed
        if over:
            _put_about(out, {**about, "kind": "hidden"})
    elif not stat.S_ISREG(found.st_mode):
        return  # a socket or a pipe is of use to none but its makers
    elif first := seen.get((found.st_dev, found.st_ino)):
        _put_about(out, {**about, "kind": "same", "target": first})
    else:
        if found.st_nlink > 1:
            seen[found.st_dev, found.st_ino] = name
        at = os.open(name, _READ | os.O_NOFOLLOW)
        size = os.fstat(at).st_size
        _put_about(out, {**about, "kind": "file"}, size)
        while size:
            piece = os.read(at, min(PIECE, size)) or bytes(min(PIECE, size))  # it has shrunk
            out.write(piece)
            size -= len(piece)
        os.close(at)


def _is_opaque(path: str) -> bool:
    try:
        return os.getxattr(path, OPAQUE, follow_symlinks=False) == b"y"
    except OSError:
        return False


def _put_about(out: BinaryIO, about: dict[str, Any], size: int = 0) -> None:
    text = json.dumps(about).encode()
    out.write(SIZES.pack(len(text), size) + text)


def _take(packed: BinaryIO, size: int) -> bytes:
    if len(taken := packed.read(size)) < size:
        raise OSError(errno.EIO, "the copy was cut")
    return taken


def _unpack(scratch: str, **_: Any) -> None:
    os.chdir(scratch)
    os.umask(0)
    folders = []
    with open(0, "rb", buffering=PIECE, closefd=False) as packed:
        while start := packed.read(1):
            length, size = SIZES.unpack(start + _take(packed, SIZES.size - 1))
            about = json.loads(_take(packed, length))
            name = about["name"]
            match about["kind"]:
                case "folder":
                    os.makedirs(name, 0o755, exist_ok=True)
                    if about["opaque"]:
                        os.setxattr(name, OPAQUE, b"y")
                    folders.append((name, about))
                case "link":
                    with contextlib.suppress(FileExistsError):
                        os.symlink(about["target"], name)
                        _give(name, about)
                case "hidden":
                    os.mknod(name, stat.S_IFCHR, os.makedev(0, 0))
                case "same":
                    os.link(about["target"], name)
                case _:
                    at = os.open(name, _NEW | os.O_NOFOLLOW, about["mode"] | 0o600)
                    _fill(at, size, packed)
                    _dress(at, about)
                    os.close(at)
    for name, about in reversed(folders):
        _dress(name, about)


def _fill(at: int, size: int, packed: BinaryIO) -> None:
    """Holes stay holes: they took no room in the other session, which has as much as this one."""
    left, in_a_hole = size, False
    while left:
        piece = _take(packed, min(PIECE, left))
        left -= len(piece)
        if in_a_hole := _ZEROS.startswith(piece):
            os.lseek(at, len(piece), os.SEEK_CUR)
        else:
            _put(at, piece)
    if in_a_hole:
        os.ftruncate(at, size)


def _give(what: int | str, about: dict[str, Any]) -> None:
    if os.geteuid() == 0 and any(about["owner"]):  # else there is one user
        os.chown(what, *about["owner"], follow_symlinks=isinstance(what, int))


def _dress(what: int | str, about: dict[str, Any]) -> None:
    _give(what, about)
    with contextlib.suppress(PermissionError):  # refused without namespaces
        os.chmod(what, about["mode"])
        os.utime(what, ns=tuple(about["times"]))


_CALLS: dict[str, Callable[..., Any]] = {
    "read": _read, "write": _write, "stat": _stat, "list": _list, "make": _make, "move": _move,
    "remove": _remove, "watch": _watch, "pack": _pack, "unpack": _unpack,
}  # fmt: skip

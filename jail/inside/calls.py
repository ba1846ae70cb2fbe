"""A fork of init does what a session's client asks of its files; it is confined as a command.

Content comes on descriptor 0 and goes to 1; what came of it goes to 2, as JSON. A name may lead
anywhere that a program of the session could go, and nowhere else.
"""

import contextlib
import errno
import json
import os
import stat
import struct
from collections.abc import Callable
from typing import Any, BinaryIO, NoReturn

from . import folder_changes, users
from .packing import NEW, PIECE, READ, about_of, dress, entries, fill, give, pack, put, unpack
from .place import Place

MOST_ENTRIES = 100_000
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LONGEST_PATH = 4096  # bytes, its end among them
_TOO_DEEP = "folders lie so deep in it that the kernel takes no path to them; list less depth"
_PAGE = os.sysconf("SC_PAGE_SIZE")


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
    """Open what a call needs and no program may have or make, before it is confined."""
    if order.get("call") == "pack":
        return place.changed()
    if order.get("call") == "watch":
        try:
            return [folder_changes.opened()]
        except OSError as problem:
            if problem.errno != errno.EMFILE:
                raise  # else the call says it
    return []


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
    put(2, json.dumps(said).encode())
    os._exit(code)


def refuse(number: int, why: str) -> NoReturn:
    put(2, json.dumps({"errno": number, "why": why}).encode())
    os._exit(1)


def _named(path: str) -> str:
    """An absolute path for one that a caller names. Its last part may be a link."""
    if not path:
        raise FileNotFoundError(errno.ENOENT, "an empty path")
    return os.path.abspath(expanded(path))


def expanded(path: str) -> str:
    """The path with the home folder for `~`. No other user's is taken: to look one up runs what the
    image names."""
    return os.environ["HOME"] + path[1:] if path == "~" or path.startswith("~/") else path


def _read(path: str, **_: Any) -> None:
    at = os.open(_named(path), READ)
    found = os.fstat(at)
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "Not a regular file")
    while piece := os.read(at, PIECE):
        put(1, piece)


def _write(path: str, size: int | None, mode: int | None, **_: Any) -> dict[str, Any]:
    path = _named(path)
    _make(os.path.dirname(path))
    if mode is not None:
        os.umask(0)
    at = os.open(path, NEW, 0o666 if mode is None else mode)
    taken = 0
    while piece := os.read(0, PIECE):
        put(at, piece)
        taken += len(piece)
    if size is not None and taken != size:
        raise OSError(errno.EIO, f"{taken:,} of {size:,} bytes came before the sender hung up")
    if mode is not None and stat.S_IMODE(os.fstat(at).st_mode) != mode:
        os.fchmod(at, mode)  # of a file that was there; refused without namespaces
    os.close(at)
    return _entry(path)


def _place(**_: Any) -> None:
    """Put many files, folders and links in place, packed one after the other: a call for each would
    cost more than most files do."""
    with open(0, "rb", buffering=PIECE, closefd=False) as packed:
        for about, size in entries(packed):
            path = _named(about["name"])
            try:
                _place_one(path, about, size, packed)
            except OSError as problem:
                number = problem.errno or errno.EIO
                raise OSError(number, f"{path}: {problem.strerror or problem}") from None


def _place_one(path: str, about: dict[str, Any], size: int, packed: BinaryIO) -> None:
    if about["kind"] == "folder":
        _make(path)
        return
    _make(os.path.dirname(path))
    if about["kind"] == "link":
        if os.path.lexists(path):
            os.unlink(path)
        os.symlink(about["target"], path)
        return
    at = os.open(path, NEW, about["mode"])
    fill(at, size, packed)
    if stat.S_IMODE(os.fstat(at).st_mode) != about["mode"]:
        os.fchmod(at, about["mode"])
    os.close(at)


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


_known: dict[str, dict[str, str]] = {}


def _name_of(file: str, number: int) -> str:
    if file not in _known:  # of several names of one number, the first counts
        _known[file] = {fields[2]: fields[0] for fields in reversed(users.accounts(file))}
    return _known[file].get(str(number), str(number))


def _stat(path: str, **_: Any) -> dict[str, Any]:
    return _entry(_named(path))


def _list(path: str, depth: int, **_: Any) -> None:
    """List a folder, an entry per line: the names are the program's, and nobody has to take them
    all at once."""
    found: list[dict[str, Any]] = []
    folders = [(_named(path), 1)]
    while folders:
        folder, level = folders.pop()
        names = _names(folder, must_be_there=level == 1)
        # What has gone meanwhile, or lies in a folder below that shows its names alone.
        passed_over = (FileNotFoundError,) if level == 1 else folder_changes.PASSED_OVER
        for name in sorted(names):
            with contextlib.suppress(*passed_over):
                if len(os.fsencode(path := os.path.join(folder, name))) >= _LONGEST_PATH:
                    raise OSError(errno.ENAMETOOLONG, _TOO_DEEP)
                entry = _entry(path)
                found.append(entry)
                if entry["kind"] == "folder" and level < depth:
                    folders.append((entry["path"], level + 1))
        if len(found) > MOST_ENTRIES:
            raise OSError(errno.E2BIG, f"more than {MOST_ENTRIES:,} entries; list less of them")
    for entry in sorted(found, key=lambda entry: str(entry["path"])):
        put(1, json.dumps(entry).encode() + b"\n")


def _names(folder: str, must_be_there: bool) -> list[str]:
    try:
        return os.listdir(folder)
    except folder_changes.PASSED_OVER:
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
    """Copy and remove what cannot be renamed: it lies in a layer, is older than a fork, or has
    another folder as target."""
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
        give(to, about_of(found))
        return
    elif stat.S_ISREG(found.st_mode):
        source = os.open(path, READ | os.O_NOFOLLOW)
        target = os.open(to, NEW | os.O_EXCL, 0o600)
        while piece := os.read(source, PIECE):
            put(target, piece)
        os.close(source)
        os.close(target)
    elif stat.S_ISFIFO(found.st_mode):
        os.mkfifo(to)
    else:
        return  # a socket is of use to none but its maker
    dress(to, about_of(found))


def _remove(path: str, **_given: Any) -> None:
    path = _named(path)
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        os.unlink(path)
        return
    at = os.open(path, _FOLDER)
    folders = [_emptied(at)]
    names: list[str] = []
    while folders:
        _, left = folders[-1]
        if left:
            names.append(left.pop())
            below = os.open(names[-1], _FOLDER, dir_fd=at)
            os.close(at)
            at = below
            folders.append(_emptied(at))
            continue
        folders.pop()
        if not folders:
            break
        # Not from a stack of open ones: a program makes them deeper than a process may open files.
        above = os.open("..", _FOLDER, dir_fd=at)
        os.close(at)
        at = above
        if not os.path.samestat(os.fstat(at), folders[-1][0]):
            raise OSError(errno.EBUSY, "a folder in it was moved meanwhile")
        os.rmdir(names.pop(), dir_fd=at)
    os.close(at)
    os.rmdir(path)


def _emptied(at: int) -> tuple[os.stat_result, list[str]]:
    """A folder without what is no folder in it, and the names of those that are."""
    with os.scandir(at) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in found:
        if not is_folder:
            os.unlink(name, dir_fd=at)
    return os.fstat(at), [name for name, is_folder in found if is_folder]


def _watch(path: str, recursive: bool, kept: list[int], **_: Any) -> None:
    if not kept:
        why = "this machine watches as many folders as fs.inotify.max_user_instances says"
        raise OSError(errno.EMFILE, why)
    folder_changes.tell(kept[0], _named(path), recursive)


_CALLS: dict[str, Callable[..., Any]] = {
    "read": _read, "write": _write, "stat": _stat, "list": _list, "make": _make, "move": _move,
    "remove": _remove, "watch": _watch, "place": _place, "pack": pack, "unpack": unpack,
}  # fmt: skip

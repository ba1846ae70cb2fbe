"""A watch reports changes in a session's folder as they happen."""

import contextlib
import errno
import json
import os
import select
import struct
from collections.abc import Iterator

from . import syscalls
from .packing import put

_INOTIFY_INIT, _INOTIFY_ADD = {"x86_64": (294, 254)}.get(syscalls.MACHINE, (26, 27))
_CREATED, _DELETED, _MOVED_FROM, _MOVED_TO = 0x100, 0x200, 0x40, 0x80
_MODIFIED, _ATTRIBUTES, _OVERFLOW, _FOLDER, _ONLY_FOLDER = 0x2, 0x4, 0x4000, 0x40000000, 0x01000000
_WATCHED = _CREATED | _DELETED | _MOVED_FROM | _MOVED_TO | _MODIFIED | _ATTRIBUTES | _ONLY_FOLDER
_EVENT = struct.Struct("iIII")
# Gone meanwhile, or another user's: what lies inside a folder ends no watch and no list of it.
PASSED_OVER = (FileNotFoundError, NotADirectoryError, PermissionError)


def opened() -> int:
    """A descriptor to watch by, which no program may make."""
    return syscalls.syscall("inotify_init1", _INOTIFY_INIT, os.O_CLOEXEC)


def tell(watching: int, path: str, recursive: bool) -> None:
    """Write a line of JSON for each change; `null` as the first."""
    watched: dict[int, str] = {}

    def add(folder: str) -> Iterator[str]:
        """Watch it; what lies in it by then may have come unseen."""
        at = syscalls.syscall(
            "inotify_add_watch", _INOTIFY_ADD, watching, os.fsencode(folder), _WATCHED
        )
        watched[at] = folder
        if recursive:
            for inner in _inside(folder):
                yield inner
                if os.path.isdir(inner) and not os.path.islink(inner):
                    with contextlib.suppress(*PASSED_OVER):
                        yield from add(inner)

    list(add(path))
    put(1, b"null\n")
    hung_up = select.poll()
    hung_up.register(1, select.POLLERR)
    hung_up.register(watching, select.POLLIN)
    while watching in {at for at, _ in hung_up.poll()}:
        for kind, changed, is_folder in _events(os.read(watching, 1 << 16), watched):
            changes = [{"kind": kind, "path": changed}]
            if is_folder and recursive and kind == "create":
                with contextlib.suppress(*PASSED_OVER):
                    changes += [{"kind": "create", "path": inner} for inner in add(changed)]
            put(1, b"".join(json.dumps(change).encode() + b"\n" for change in changes))


def _inside(folder: str) -> list[str]:
    try:
        return [os.path.join(folder, name) for name in os.listdir(folder)]
    except (PermissionError, FileNotFoundError):  # it has gone meanwhile, or is another user's
        return []


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

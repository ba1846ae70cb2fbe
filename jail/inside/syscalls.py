"""The kernel's calls that Python does not offer, by name, with errors as `OSError`."""

import ctypes
import os
import platform
import struct
from collections.abc import Collection, Iterable, Sequence

# PyDLL keeps the interpreter's lock over the call: a raw clone must not find it half released.
_libc = ctypes.PyDLL(None, use_errno=True)
# Looked up here once, where else every clone would look them up again.
_syscall, _unshare, _mount = _libc.syscall, _libc.unshare, _libc.mount
_umount2, _prctl, _fflush, _setns = _libc.umount2, _libc.prctl, _libc.fflush, _libc.setns
_syscall.restype = ctypes.c_long

MACHINE = platform.machine()
_CALLS = {
    "x86_64": {
        "clone": 56, "pivot_root": 155, "capset": 126, "seccomp": 317,
        "setfsuid": 122, "setfsgid": 123,
    },
    "aarch64": {
        "clone": 220, "pivot_root": 41, "capset": 91, "seccomp": 277,
        "setfsuid": 151, "setfsgid": 152,
    },
}.get(MACHINE, {})  # fmt: skip
# The same numbers everywhere, like all calls since 5.1.
_OPEN_TREE, _MOVE_MOUNT, _FSOPEN, _FSCONFIG, _FSMOUNT, _MOUNT_SETATTR = 428, 429, 430, 431, 432, 442

NEW_NS, NEW_CGROUP, NEW_UTS, NEW_IPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
NEW_USER, NEW_PID, NEW_NET = 0x10000000, 0x20000000, 0x40000000
CLONE_PIDFD = 0x1000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_NOATIME, MS_BIND, MS_REC, MS_PRIVATE = 32, 1024, 4096, 16384, 1 << 18
MNT_DETACH = 2
_AT_FDCWD, _AT_RECURSIVE, _NO_FOLLOW = -100, 0x8000, 0x100
_CLOEXEC, _SET_FLAG, _SET_STRING, _CREATE, _EMPTY_PATH, _CLONE = 1, 0, 1, 6, 4, 1

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38
_PR_CAPBSET_READ, _PR_CAPBSET_DROP = 23, 24
CHOWN, DAC_OVERRIDE, FOWNER, KILL, SETGID, SETUID = 0, 1, 3, 5, 6, 7  # capabilities
_CAPABILITY_VERSION_3 = 0x20080522


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def syscall(what: str, number: int, *arguments: object) -> int:
    return _check(_syscall(ctypes.c_long(number), *arguments), what)


def clone(flags: int, signal: int) -> tuple[int, int]:
    """Fork with new namespaces: (0, -1) in the child, (its pid, its pidfd) in the parent."""
    pidfd = ctypes.c_int(-1)
    flags |= CLONE_PIDFD | signal
    child = syscall("clone", _CALLS["clone"], flags, 0, ctypes.byref(pidfd), 0, 0)
    return child, pidfd.value


def unshare(flags: int) -> None:
    _check(_unshare(flags), "unshare")


def enter_mounts(namespace: int) -> None:
    """Enter another namespace of mounts. Its root becomes this process's root and working
    folder."""
    _check(_setns(namespace, NEW_NS), "setns")


def mount(source: str, target: str, kind: str | None, flags: int = 0, options: str = "") -> None:
    result = _mount(
        source.encode(), target.encode(), kind and kind.encode(), flags, options.encode()
    )
    _check(result, f"mount {kind or source} on {target}")


def set_mount_flags(target: str, flags: int) -> None:
    """Set flags on a mount and all below it; they can be locked only as a whole, since 5.12."""
    attributes = struct.pack("QQQQ", flags, 0, 0, 0)
    syscall(
        f"mount_setattr {target}",
        _MOUNT_SETATTR,
        _AT_FDCWD,
        target.encode(),
        _AT_RECURSIVE,
        attributes,
        len(attributes),
    )


def pivot_root(new: str, old: str) -> None:
    syscall("pivot_root", _CALLS["pivot_root"], new.encode(), old.encode())


def unmount(target: str) -> None:
    _check(_umount2(target.encode(), MNT_DETACH), f"umount {target}")


def prctl(option: int, value: int) -> None:
    _check(_prctl(option, value, 0, 0, 0), f"prctl {option}")


def give_up_capabilities(kept: Iterable[int] = ()) -> None:
    """Give up all capabilities but these. No exec brings any back, because no-new-privs is set."""
    mask = sum(1 << each for each in kept)
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    syscall("capset", _CALLS["capset"], header, struct.pack("6I", mask, mask, 0, 0, 0, 0))


def bound_capabilities(kept: Collection[int]) -> None:
    """Bound the capabilities of all that is started from now on."""
    number = 0
    while _prctl(_PR_CAPBSET_READ, number, 0, 0, 0) >= 0:
        if number not in kept:
            prctl(_PR_CAPBSET_DROP, number)
        number += 1


def make_files_as(number: int) -> None:
    """Let all that this process makes belong to this user and group. It stays who it is."""
    for call in ("setfsgid", "setfsuid"):
        syscall(call, _CALLS[call], number)


def overlay(lower: Sequence[str], upper: str, work: str) -> int:
    """Lay these folders over each other, the highest first; `upper` takes all changes. A mount that
    is nowhere so far."""
    context = syscall("fsopen overlay", _FSOPEN, b"overlay", _CLOEXEC)
    try:
        options = [("lowerdir+", path) for path in lower]
        for name, value in [*options, ("upperdir", upper), ("workdir", work), ("index", "off")]:
            what = f"fsconfig {name}={value}"
            syscall(what, _FSCONFIG, context, _SET_STRING, name.encode(), value.encode(), 0)
        for name in ("userxattr", "volatile"):
            syscall(f"fsconfig {name}", _FSCONFIG, context, _SET_FLAG, name.encode(), None, 0)
        syscall("fsconfig", _FSCONFIG, context, _CREATE, None, None, 0)
        return syscall("fsmount", _FSMOUNT, context, _CLOEXEC, MS_NOSUID | MS_NODEV)
    finally:
        os.close(context)


def shared(folder: str) -> int:
    """The folder once more: a mount that is nowhere so far, and that another process may take.
    What is a link by now cannot be attached in a folder's place."""
    flags = _CLONE | os.O_CLOEXEC | _NO_FOLLOW
    return syscall(f"open_tree {folder}", _OPEN_TREE, _AT_FDCWD, folder.encode(), flags)


def attach(mounted: int, target: str) -> None:
    """Give a mount its place. Its descriptor is closed."""
    try:
        where = _AT_FDCWD, target.encode(), _EMPTY_PATH
        syscall(f"move_mount {target}", _MOVE_MOUNT, mounted, b"", *where)
    finally:
        os.close(mounted)


def flush_files() -> None:
    """Flush the files of C, as it does when a process ends by `exit`."""
    _fflush(None)


class Filter:
    """A seccomp filter, laid out in memory as the kernel takes it."""

    def __init__(self, program: bytes) -> None:
        self._program = ctypes.create_string_buffer(program, len(program))
        place = ctypes.addressof(self._program)
        self._described = struct.pack("HxxxxxxP", len(program) // 8, place)

    def install(self) -> None:
        """Install the filter for this process and all it starts; needs no-new-privs first."""
        syscall("seccomp", _CALLS["seccomp"], 1, 0, self._described)

"""The read-only root that every jail shares, built once as the fork server starts.

Made by the launching user in a mount namespace of its own: as root directly (then
root is given up for good), as an ordinary user inside a user namespace. What is
not listed here does not exist for a program.

Folders of the machine are seen through overlays, one of the fork server's and one of each jail's.
The kernel keeps a file's locks with the overlay, so nobody outside waits for a jail's.
"""

import contextlib
import fnmatch
import os
import stat
from typing import Any, NamedTuple

from . import syscalls, users
from .users import Users

OLD = "/.host"
WRITABLE = ("/tmp", "/home/sandbox", "/mnt", "/var/tmp", "/dev/shm")  # noqa: S108
HOME = "/home/sandbox"
SCRATCH = "/run/scratch"
COVERED = "/run/covered"
HEADERS = "/run/headers"
NOTHING = "/run/nothing"
PROGRAM = "/run/program"  # where it lies while it runs on case after case
LAYERS = "/run/layers"  # of images, where sessions start from those
IMAGE = "/run/image"  # such a session's root, before it is that
BARE = "/run/bare"  # the machine's folders themselves; no jail shows them
ETC = BARE + "/etc"
EMPTY = "/run/empty"
TERMINALS = "/dev/pts"  # empty, but in a session
DEVICES = ("null", "zero", "full", "random", "urandom")
_LINKS = {
    "ptmx": "pts/ptmx",
    "fd": "/proc/self/fd",
    "stdin": "fd/0",
    "stdout": "fd/1",
    "stderr": "fd/2",
}
SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
_SETTINGS = ("ld.so.cache", "alternatives", "localtime", "ssl/certs", "ssl/openssl.cnf", "fonts")
# What Debian's builds of these find their own libraries and extensions by.
_OF_LANGUAGES = ("R", "racket", "java-*", "php")
_ATTRIBUTES = 1 | 2 | 4  # MOUNT_ATTR_RDONLY, _NOSUID, _NODEV
_NOSUID = 2
_WRITTEN = tuple(f"{folder}/" for folder in WRITABLE)
_READ_ONLY = syscalls.MS_RDONLY | syscalls.MS_NOSUID | syscalls.MS_NODEV

INSIDE_ID = 1000
_FILES = {
    "passwd": f"root:x:0:0::/root:/usr/sbin/nologin\n"
    f"sandbox:x:{INSIDE_ID}:{INSIDE_ID}::{HOME}:/bin/sh\n",
    "group": f"root:x:0:\nsandbox:x:{INSIDE_ID}:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "hostname": "sandbox\n",
}


def enter_namespaces(as_root: bool, given: Users) -> None:
    """Leave the host's mounts; an ordinary user needs a user namespace for that."""
    user, group = os.geteuid(), os.getegid()
    if as_root:
        syscalls.unshare(syscalls.NEW_NS)
    elif given.many:
        users.unshare(given, syscalls.NEW_NS | syscalls.NEW_USER)
    else:
        syscalls.unshare(syscalls.NEW_NS | syscalls.NEW_USER)
        write_maps(user, group, user, group)
    syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)


def write_maps(inside_user: int, inside_group: int, user: int, group: int) -> None:
    for name, text in (
        ("setgroups", b"deny"),
        ("uid_map", b"%d %d 1" % (inside_user, user)),
        ("gid_map", b"%d %d 1" % (inside_group, group)),
    ):
        at = os.open(f"/proc/self/{name}", os.O_WRONLY)
        os.write(at, text)
        os.close(at)


class SharedMount(NamedTuple):
    """A folder of the machine that programs see through an overlay, or one file in it. Or it is
    seen as it is, because no overlay can be had."""

    path: str  # for programs
    bare: str  # the folder itself; of what is seen as it is, that
    file: str = ""
    overlaid: bool = True

    def lay_over(self) -> None:
        """Lay a new overlay, over any that is there. It keeps what the kernel notes about files
        that are open, such as locks; their content is in memory once, as before.

        Raises `FileNotFoundError` if the machine has deleted the file, or the folder that
        this is mounted on."""
        if not self.overlaid:
            # The flags come with it, and what is mounted below.
            syscalls.mount(self.bare, self.path, None, syscalls.MS_BIND | syscalls.MS_REC)
            return
        at = IMAGE if self.file else self.path
        # The kernel wants two folders where nothing can be written.
        syscalls.mount("shared", at, "overlay", _READ_ONLY, f"lowerdir={self.bare}:{EMPTY}")
        if self.file:
            try:
                syscalls.mount(f"{at}/{self.file}", self.path, None, syscalls.MS_BIND)
            finally:
                syscalls.unmount(at)


def build(
    exposed: list[str], hidden: list[str], headers: str = "", layers: str = ""
) -> dict[str, Any]:
    """Pivot into a tmpfs, show what programs may read, and let go of the host's tree. What is
    `hidden` of that is empty.

    Returns the `shares` that each jail lays over these once more. `covered` is what lies in a
    folder of which each jail has a new one. `not_overlaid` has what can have no overlay, with the
    reason.
    """
    machine = _Machine([*exposed, headers])
    syscalls.mount("root", "/tmp", "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "mode=755")  # noqa: S108
    os.mkdir("/tmp" + OLD)  # noqa: S108
    syscalls.pivot_root("/tmp", "/tmp" + OLD)  # noqa: S108
    os.chdir("/")
    _devices()
    # Modules that are preloaded may want to write there; every jail covers it with its own.
    os.makedirs(HOME)
    flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
    syscalls.mount("home", HOME, "tmpfs", flags, "size=16m,mode=1777")
    for folder in (BARE, EMPTY, IMAGE):
        os.makedirs(folder)
    # Copies, which only jails have to be kept apart in. The kernel lets no jail lay an overlay over
    # a folder that others have mounted in, so this one leaves out what is mounted below.
    for folder in ("/etc", ETC):
        os.mkdir(folder)
    syscalls.mount("/etc", ETC, None, syscalls.MS_BIND)
    syscalls.set_mount_flags(ETC, _ATTRIBUTES)
    for name in SYSTEM:
        machine.show_system(name)
    for name in settings(OLD + "/etc"):
        if os.path.exists(host := os.path.realpath(f"{OLD}/etc/{name}")):
            _copy(host, f"/etc/{name}")
    covered = [path for path in exposed if path.startswith(_WRITTEN)]
    for path in exposed:
        machine.show(path)
    # What lies in one of them comes with that.
    covered = [path for path in covered if machine.show(path, COVERED + path)]
    if headers:
        machine.show(headers, HEADERS)
    if layers:
        # As they are: init locks them against whoever deletes layers.
        show(OLD + layers, LAYERS)
        syscalls.set_mount_flags(LAYERS, _ATTRIBUTES)
    for name, text in _FILES.items():
        with open(f"/etc/{name}", "w") as file:
            file.write(text)
    for folder in (*WRITABLE, SCRATCH, PROGRAM, "/proc"):
        os.makedirs(folder, exist_ok=True)
    os.close(os.open(NOTHING, os.O_CREAT | os.O_WRONLY, 0o444))
    shown = {os.path.realpath(root + path) for path in hidden for root in ("", COVERED)}
    hidden = [path for path in sorted(shown) if os.path.exists(path)]
    hide(hidden)
    syscalls.mount(OLD + "/proc", "/proc", None, syscalls.MS_BIND | syscalls.MS_REC)
    syscalls.unmount(OLD)
    os.rmdir(OLD)
    for path, more in (("/", syscalls.MS_NODEV), ("/dev", 0)):
        flags = syscalls.MS_REMOUNT | syscalls.MS_BIND | syscalls.MS_RDONLY | syscalls.MS_NOSUID
        syscalls.mount("none", path, None, flags | more)
    return {
        "shares": [share for share in machine.shares if not share.path.startswith(_WRITTEN)],
        "covered": covered,
        "hidden": hidden,
        "not_overlaid": machine.not_overlaid,
    }


def settings(folder: str) -> list[str]:
    """The names in /etc that a program may read."""
    present = os.listdir(folder)
    found = (name for pattern in _OF_LANGUAGES for name in fnmatch.filter(present, pattern))
    return [*_SETTINGS, *found]


class _Machine:
    """A view of the machine: it shows what is the machine's, read-only, and notes how."""

    def __init__(self, named: list[str]) -> None:
        """Open the links before the host's tree has another place: until then they lead where they
        should."""
        self._real = {path: os.path.realpath(path) for path in named}
        self.shares = [SharedMount("/etc", ETC)]
        self.not_overlaid: dict[str, str] = {}  # with the reason
        with open("/proc/self/mountinfo", "rb") as mounts:
            points = {line.split()[4].decode("unicode_escape") for line in mounts}
        self._mounts = sorted(OLD + os.fsdecode(point.encode("latin-1")) for point in points)

    def show_system(self, name: str) -> None:
        host = f"{OLD}/{name}"
        if os.path.islink(host):
            os.symlink(os.readlink(host), f"/{name}")
        elif os.path.isdir(host):
            self.show(f"/{name}")

    def show(self, source: str, path: str = "") -> bool:
        """Show a file or folder of the host, if it is there, with all that is mounted below it.
        Returns whether it was not shown before."""
        host, path = OLD + self._real.get(source, source), path or source
        if not os.path.exists(host) or os.path.exists(path):
            return False
        _make_place(host, path)
        for point in (host, *(each for each in self._mounts if each.startswith(f"{host}/"))):
            if os.path.exists(point):
                self._share(point, path + point[len(host) :])
        return True

    def _share(self, host: str, path: str) -> None:
        """Show one mount of the host under an overlay. If the kernel wants none over it, show it as
        it is, and note why."""
        folder, file = (host, "") if os.path.isdir(host) else os.path.split(host)
        share = SharedMount(path, f"{BARE}/{len(self.shares)}", file)
        os.makedirs(share.bare, exist_ok=True)
        try:
            if file and host in self._mounts:
                raise OSError("a file that is mounted alone")
            # Without what is mounted below it: the kernel wants no overlay over that.
            syscalls.mount(folder, share.bare, None, syscalls.MS_BIND)
            syscalls.set_mount_flags(share.bare, _ATTRIBUTES)
            share.lay_over()
        except OSError as problem:
            self.not_overlaid[path.removeprefix(COVERED)] = str(problem).replace(OLD, "")
            share = SharedMount(path, f"{share.bare}-alone", overlaid=False)
            show(host, share.bare)
            syscalls.set_mount_flags(share.bare, _ATTRIBUTES)
            share.lay_over()
        # In this order: a jail's overlay hides what is mounted below it until that is laid again.
        self.shares.append(share)


def show(source: str, path: str) -> None:
    """Show a file or folder once more, by another path."""
    _make_place(source, path)
    syscalls.mount(source, path, None, syscalls.MS_BIND | syscalls.MS_REC)


def _make_place(source: str, path: str) -> None:
    if os.path.isdir(source):
        os.makedirs(path, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))


def hide(paths: list[str]) -> None:
    """Lay an empty file over each that is still there: the machine may delete some meanwhile."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            syscalls.mount(NOTHING, path, None, syscalls.MS_BIND)
            syscalls.set_mount_flags(path, _ATTRIBUTES)


def _copy(source: str, path: str) -> None:
    """Settings are small, and some are single files, which no overlay can lie over alone."""
    # What this user may not read, or what is deleted meanwhile, is left out.
    with contextlib.suppress(PermissionError, FileNotFoundError):
        found = os.lstat(source)
        if stat.S_ISLNK(found.st_mode):
            os.symlink(os.readlink(source), path)
            return
        if stat.S_ISDIR(found.st_mode):
            os.makedirs(path)
            for name in os.listdir(source):
                _copy(f"{source}/{name}", f"{path}/{name}")
        elif stat.S_ISREG(found.st_mode):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(source, "rb") as whole, open(path, "wb") as copy:
                copy.write(whole.read())
        else:
            return
        os.chmod(path, found.st_mode & 0o777)
        os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


def _devices() -> None:
    os.mkdir("/dev")
    syscalls.mount("devices", "/dev", "tmpfs", syscalls.MS_NOSUID, "mode=755")
    os.mkdir(TERMINALS)
    for name in DEVICES:
        host, path = f"{OLD}/dev/{name}", f"/dev/{name}"
        try:
            os.mknod(path, stat.S_IFCHR, os.stat(host).st_rdev)
            os.chmod(path, 0o666)  # noqa: S103
        except PermissionError:  # only root of the machine makes any
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o666))
            syscalls.mount(host, path, None, syscalls.MS_BIND)
            syscalls.set_mount_flags(path, _NOSUID)
    for name, target in _LINKS.items():
        os.symlink(target, f"/dev/{name}")

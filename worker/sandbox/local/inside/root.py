"""The read-only root that every jail shares, built once as the fork server starts.

Made by the launching user in a mount namespace of its own: as root directly (then
root is given up for good), as an ordinary user inside a user namespace. What is
not listed here does not exist for a program.
"""

import fnmatch
import os

from . import kernel, users
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
        kernel.unshare(kernel.NEW_NS)
    elif given.many:
        users.unshare(given, kernel.NEW_NS | kernel.NEW_USER)
    else:
        kernel.unshare(kernel.NEW_NS | kernel.NEW_USER)
        write_maps(user, group, user, group)
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)


def write_maps(inside_user: int, inside_group: int, user: int, group: int) -> None:
    for name, text in (
        ("setgroups", b"deny"),
        ("uid_map", b"%d %d 1" % (inside_user, user)),
        ("gid_map", b"%d %d 1" % (inside_group, group)),
    ):
        at = os.open(f"/proc/self/{name}", os.O_WRONLY)
        os.write(at, text)
        os.close(at)


def build(exposed: list[str], hidden: list[str], headers: str = "", layers: str = "") -> list[str]:
    """Pivot into a tmpfs, bind what programs may read, and let go of the host's tree. What is
    `hidden` of that is empty.

    Returns what lies in a folder of which each jail has a new one: the jail must mount it again.
    """
    kernel.mount("root", "/tmp", "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=755")  # noqa: S108
    os.mkdir("/tmp" + OLD)  # noqa: S108
    kernel.pivot_root("/tmp", "/tmp" + OLD)  # noqa: S108
    os.chdir("/")
    # Modules that are preloaded may want to write there; every jail covers it with its own.
    os.makedirs(HOME)
    flags = kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount("home", HOME, "tmpfs", flags, "size=16m,mode=1777")
    for name in SYSTEM:
        _system_folder(name)
    for name in settings(OLD + "/etc"):
        _expose(f"/etc/{name}")
    covered = [path for path in exposed if path.startswith(tuple(f"{top}/" for top in WRITABLE))]
    for path in exposed:
        _expose(path)
    for path in covered:
        _expose(path, COVERED + path)
    if headers:
        _expose(headers, HEADERS)
    if layers:
        _expose(layers, LAYERS)
    for name, text in _FILES.items():
        with open(f"/etc/{name}", "w") as file:
            file.write(text)
    for folder in (*WRITABLE, SCRATCH, PROGRAM, IMAGE, "/proc"):
        os.makedirs(folder, exist_ok=True)
    for path in hidden:
        _hide(path)
        _hide(COVERED + path)
    _devices()
    kernel.mount(OLD + "/proc", "/proc", None, kernel.MS_BIND | kernel.MS_REC)
    kernel.unmount(OLD)
    os.rmdir(OLD)
    flags = kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY
    kernel.mount("none", "/", None, flags | kernel.MS_NOSUID | kernel.MS_NODEV)
    return [path for path in covered if os.path.exists(COVERED + path)]


def settings(folder: str) -> list[str]:
    """What of /etc a program may read."""
    present = os.listdir(folder)
    found = (name for pattern in _OF_LANGUAGES for name in fnmatch.filter(present, pattern))
    return [*_SETTINGS, *found]


def _system_folder(name: str) -> None:
    host = f"{OLD}/{name}"
    if os.path.islink(host):
        os.symlink(os.readlink(host), f"/{name}")
    elif os.path.isdir(host):
        _expose(f"/{name}")


def _expose(source: str, path: str = "") -> None:
    """Show a file or folder of the host, read-only, where it is there."""
    host, path = OLD + source, path or source
    if not os.path.exists(host) or os.path.exists(path):
        return
    show(host, path)
    kernel.set_mount_flags(path, _ATTRIBUTES)


def show(source: str, path: str) -> None:
    """A file or folder once more, by another path."""
    if os.path.isdir(source):
        os.makedirs(path, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))
    kernel.mount(source, path, None, kernel.MS_BIND | kernel.MS_REC)


def _hide(path: str) -> None:
    """An empty file lies over it, if it is shown at all."""
    if os.path.exists(path):
        os.close(os.open(NOTHING, os.O_CREAT | os.O_WRONLY, 0o444))
        kernel.mount(NOTHING, path, None, kernel.MS_BIND)
        kernel.set_mount_flags(path, _ATTRIBUTES)


def _devices() -> None:
    os.makedirs(TERMINALS, exist_ok=True)
    for name in DEVICES:
        os.close(os.open(f"/dev/{name}", os.O_CREAT | os.O_WRONLY, 0o666))
        kernel.mount(f"{OLD}/dev/{name}", f"/dev/{name}", None, kernel.MS_BIND)
        kernel.set_mount_flags(f"/dev/{name}", _NOSUID)
    for name, target in _LINKS.items():
        os.symlink(target, f"/dev/{name}")

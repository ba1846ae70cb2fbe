"""An image's files belong to these users of the machine, and its sessions have them."""

import os
import pwd
import shutil
from contextlib import suppress

from jail.inside import syscalls
from jail.inside.users import COUNT, Users, unshare

_NEEDED = (syscalls.CHOWN, syscalls.SETGID, syscalls.SETUID)
_HOW = (
    "it is not root, and has no 65,536 numbers of its own in /etc/subuid and /etc/subgid "
    "with newuidmap (Debian's package uidmap)"
)


def find(first: int) -> Users:
    """The users that this process may give. Root gives the numbers from `first` on."""
    return _of_root(first) if os.geteuid() == 0 else _of_a_user()


def _of_root(first: int) -> Users:
    with open("/proc/self/status") as status:
        held = next(int(line.split()[1], 16) for line in status if line.startswith("CapEff:"))
    if any(not held & 1 << each for each in _NEEDED):
        return Users(why_one="root here lacks CAP_SETUID, CAP_SETGID or CAP_CHOWN")
    for name in ("uid_map", "gid_map"):
        if not _is_mapped(name, first):
            return Users(
                why_one=f"this container has no user numbers {first} to {first + COUNT}; "
                "PENSTOCK_IMAGE_FIRST_UID names others"
            )
    return Users(first, first)


def _is_mapped(name: str, first: int) -> bool:
    with open(f"/proc/self/{name}") as lines:
        ranges = [tuple(map(int, line.split())) for line in lines]
    return any(start <= first and first + COUNT < start + count for start, _, count in ranges)


def _of_a_user() -> Users:
    tools = shutil.which("newuidmap"), shutil.which("newgidmap")
    uids, gids = _granted("/etc/subuid"), _granted("/etc/subgid")
    if tools[0] is None or tools[1] is None or uids is None or gids is None:
        return Users(why_one=_HOW)
    users = Users(uids, gids, (tools[0], tools[1]))
    # These are programs that act as root: whether they do depends on the machine.
    if (child := os.fork()) == 0:
        try:
            unshare(users, syscalls.NEW_USER)
            os._exit(0)
        except BaseException:  # noqa: BLE001  only whether it can be done is asked
            os._exit(1)
    if os.waitpid(child, 0)[1]:
        return Users(why_one=f"{tools[0]} does not give it its numbers of /etc/subuid")
    return users


def _granted(path: str) -> int | None:
    names = {str(os.getuid())}
    with suppress(KeyError):  # a container may be started as a user that no list has
        names.add(pwd.getpwuid(os.getuid()).pw_name)
    try:
        with open(path) as lines:
            for line in lines:
                name, first, count = (*line.strip().split(":"), "", "", "")[:3]
                if name in names and first.isdigit() and count.isdigit() and int(count) >= COUNT:
                    return int(first)
    except OSError:
        pass  # the machine grants none
    return None

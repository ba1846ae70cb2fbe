"""The users that a session from an image has: many where the host gives it numbers, else one.

Many need two user namespaces, one in the other. The outer one is the fork server's: its 0 is the
fork server itself, its 1 to 65,536 are numbers of the host that nobody else has. The inner one is
a session's, whose 0 to 65,535 are those. So init, a fork of the fork server, is nobody in there.
"""

import os
import stat
from typing import NamedTuple

from . import syscalls

COUNT = 65_536
_MOST_ACCOUNTS = 1 << 20  # bytes of /etc/passwd or /etc/group
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
NEEDED_TO_ADMIT = (syscalls.SETGID, syscalls.SETUID)  # of the fork server, in the outer one alone


class Users(NamedTuple):
    """The first of the host's numbers; None: one user. `tools` write the maps for others than
    root. `why_one` says what is missing."""

    uids: int | None = None
    gids: int | None = None
    tools: tuple[str, str] | None = None
    why_one: str = ""

    @property
    def many(self) -> bool:
        return self.uids is not None


def is_root() -> bool:
    """Whether this process is the root of the namespace that it was started in, or of the host."""
    with open("/proc/self/uid_map") as lines:
        ranges = [tuple(map(int, line.split())) for line in lines]
    return any(
        start <= os.geteuid() < start + count and not outside + os.geteuid() - start
        for start, outside, count in ranges
    )


def unshare(users: Users, flags: int) -> None:
    """Enter the outer namespace, as its 0. A process that stays outside writes its maps."""
    target, uid, gid = os.getpid(), os.geteuid(), os.getegid()
    asked, ask = os.pipe()
    if (helper := os.fork()) == 0:
        try:
            os.close(ask)
            os.read(asked, 1)
            _write_outer_maps(users, target, uid, gid)
            os._exit(0)
        except BaseException as problem:  # noqa: BLE001
            os.write(2, f"{problem}\n".encode())
            os._exit(1)
    os.close(asked)
    try:
        syscalls.unshare(flags)
    finally:
        os.close(ask)
        _, status = os.waitpid(helper, 0)
    if status:
        raise OSError("the map of users could not be written")
    os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


def _write_outer_maps(users: Users, target: int, uid: int, gid: int) -> None:
    firsts = (users.uids or 0, users.gids or 0)
    if users.tools:
        for tool, own, first in zip(users.tools, (uid, gid), firsts, strict=True):
            words = [tool, str(target), "0", str(own), "1", "1", str(first), str(COUNT)]
            if os.waitpid(os.posix_spawn(tool, words, {}), 0)[1]:
                raise OSError(f"{tool} refused {first} and on")
        return
    for name, first in zip(("uid_map", "gid_map"), firsts, strict=True):
        _write(f"/proc/{target}/{name}", f"0 {first + COUNT} 1\n1 {first} {COUNT}\n")


def admit(process: int) -> None:
    """Write, in the fork server, the maps of a new session, which it cannot write itself."""
    for name in ("uid_map", "gid_map"):
        _write(f"/proc/{process}/{name}", f"0 1 {COUNT}\n")


def _write(path: str, text: str) -> None:
    at = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(at, text.encode())
    finally:
        os.close(at)


def accounts(name: str) -> list[list[str]]:
    """The fields of each line of `passwd` or `group` in /etc, which a program may have made: none
    unless it is a file."""
    try:
        at = os.open(f"/etc/{name}", _READ)
    except OSError:
        return []
    try:
        if not stat.S_ISREG(os.fstat(at).st_mode):
            return []
        text = os.read(at, _MOST_ACCOUNTS).decode("utf-8", "replace")
    finally:
        os.close(at)
    return [fields for line in text.split("\n") if len(fields := line.split(":")) >= 4]

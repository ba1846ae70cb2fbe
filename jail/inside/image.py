"""The jail of a session from an image: layers below, what the session writes above, and its users.

Init builds it in its own namespaces, while no command is there. Names in an image are its maker's:
no link of one is followed before the image is the root, and then every path is the session's own.
"""

import contextlib
import fcntl
import os
import stat
import sys
from importlib.machinery import PathFinder
from typing import Any, NamedTuple

from . import root, syscalls, users
from .levels import FOLDER, require_attributes
from .namespaces import SHARED_MEMORY, Namespaces
from .place import Refused
from .wire import Socket

# What "root" needs for useradd, chown, apt, tar and kill; never anything of the kernel's.
KEPT = (
    syscalls.CHOWN, syscalls.DAC_OVERRIDE, syscalls.FOWNER,
    syscalls.KILL, syscalls.SETGID, syscalls.SETUID,
)  # fmt: skip
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_HOST = "sandbox"
SETTINGS = {
    "hostname": f"{_HOST}\n",
    "hosts": f"127.0.0.1 localhost {_HOST}\n::1 localhost\n",
    "resolv.conf": "",  # no network, so no server to ask
}


class Image(Namespaces):
    """The level `ns`, with another root, and with users that the fork server gives it, or one."""

    home = "/"

    def __init__(self, built: dict[str, Any], given: users.Users) -> None:
        super().__init__(built)
        self._many, self._why_one = given.many, given.why_one
        self._admitted = False
        self._default = ""
        self._held: list[int] = []
        self._layers: list[str] = []

    def admit(self, process: int, line: Socket) -> None:
        if self._many:
            users.admit(process)
            line.send(b"admitted")

    def enter(self, line: Socket) -> None:
        if self._many and not self._admitted:
            if not line.recv(16):
                os._exit(0)  # the fork server has ended
            self._admitted = True
            # It stays a user that no command can become; what it makes is root's.
            syscalls.make_files_as(0)
        super().enter(line)  # after the change, which forgets what is set here

    def _map(self, inside: int) -> None:
        if not self._many:
            super()._map(0)

    def _lay_overlays(self) -> None:
        """The image's root is an overlay."""

    def furnish(self, limits: dict[str, Any]) -> None:
        super().furnish(limits)
        require_attributes()
        self._levels.add()
        self.scratch = self._levels.top.path

    def start_from(self, image: dict[str, Any] | None, given: list[int]) -> None:
        if not image:
            raise Refused("this fork server serves nothing but images")
        sys.meta_path.remove(PathFinder)  # from now on a module's file would be the image's
        self._default = image["user"]
        self._layers = [self._hold(key) for key in image["layers"]]
        self._levels.take(given)
        self._step_on(self._levels.over(self._layers))
        if not image["filled"]:
            _make_folder("tmp", 0o1777)
            _write_settings()
        syscalls.bound_capabilities(KEPT)

    def changed(self) -> list[int]:
        return self._levels.to_copy()

    def freeze(self) -> list[int]:
        return self._frozen(self._layers)

    def _step_on(self, written: int) -> None:
        """Make this the whole root."""
        self._levels.enter_new_namespace()
        syscalls.attach(written, root.IMAGE)
        os.chdir(root.IMAGE)
        for name, mode in (("proc", 0o555), ("dev", 0o755)):
            _make_folder(name, mode)
        for name in ("proc", "dev"):
            syscalls.mount(f"/{name}", name, None, syscalls.MS_BIND | syscalls.MS_REC)
        syscalls.pivot_root(".", ".")
        syscalls.unmount(".")  # the old root, which lies over the new one
        os.chdir("/")
        self.scratch = SHARED_MEMORY

    def _hold(self, key: str) -> str:
        """The init is a user of the layer for as long as this init lives, whatever happens to the
        hub."""
        folder = f"{root.LAYERS}/{key}"
        try:
            at = os.open(folder, FOLDER)
            fcntl.flock(at, fcntl.LOCK_SH)
            if os.fstat(at).st_ino != os.stat(folder).st_ino:
                raise FileNotFoundError
        except FileNotFoundError:
            raise Refused(f"layer {key} of the image was deleted meanwhile") from None
        self._held.append(at)
        return f"{folder}/root"

    def leave(self) -> bool:
        """Nothing runs in it any more, and what its client hears next is that it has ended."""
        while self._held:
            os.close(self._held.pop())
        return super().leave()

    def confine(self) -> None:
        """Make this process the session's root, with what that may do; `become` makes it somebody
        else."""
        if self._many:
            os.setgroups([])
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
        syscalls.give_up_capabilities(KEPT)
        self._filter.install()

    def become(self, user: str, workdir: str) -> None:
        account = Account.of(user or self._default)
        if workdir:
            with contextlib.suppress(OSError):  # it is said when the command would begin there
                os.makedirs(workdir, exist_ok=True)
        with contextlib.suppress(OSError):  # it has no terminal
            os.ttyname(0)
            os.fchown(0, account.uid, -1)
        if self._many:
            os.setgroups(account.groups)
        elif account.uid or account.gid:
            raise Refused(
                f"{user or self._default!r:.50}: this session has one user, root. Who started its "
                f"server may give it no others: {self._why_one}"
            )
        os.setresgid(account.gid, account.gid, account.gid)
        os.setresuid(account.uid, account.uid, account.uid)
        os.environ.clear()
        self.home = account.home
        self.environment = {"PATH": PATH, "USER": account.name, "LOGNAME": account.name}


def _make_folder(name: str, mode: int) -> None:
    """Make a folder at the image's top. What the image has under that name may be something
    else."""
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISDIR(os.lstat(name).st_mode):
            return
        os.unlink(name)
    os.mkdir(name)
    os.chmod(name, mode)


def _write_settings() -> None:
    _make_folder("etc", 0o755)
    etc = os.open("etc", FOLDER)
    try:
        for name, text in SETTINGS.items():
            with contextlib.suppress(FileNotFoundError, IsADirectoryError):
                if not stat.S_ISREG(os.stat(name, dir_fd=etc, follow_symlinks=False).st_mode):
                    os.unlink(name, dir_fd=etc)
            with contextlib.suppress(IsADirectoryError):  # its maker's own wish
                at = os.open(name, _NEW, 0o644, dir_fd=etc)
                os.write(at, text.encode())
                os.close(at)
    finally:
        os.close(etc)


class Account(NamedTuple):
    """The account that a command has, by the session's own lists of users and groups."""

    name: str
    uid: int
    gid: int
    groups: list[int]  # besides the main one
    home: str

    @classmethod
    def of(cls, asked: str) -> "Account":
        """Read a user: `name`, `uid`, `name:group` or `uid:gid`, as Docker does: a group that is
        named is the only one. Raises `Refused`."""
        user, _, group = asked.partition(":")
        name, uid, gid, home = _listed(user or "root") or _unlisted(user or "root")
        number = _number(uid)
        home = home or ("/root" if number == 0 else "/")
        if group:
            return cls(name, number, _group(group), [], home)
        groups = [_number(line[2]) for line in users.accounts("group") if _has(line, name)]
        return cls(name, number, _number(gid), groups, home)


def _listed(user: str) -> tuple[str, str, str, str] | None:
    """Name, uid, gid and home of the first line with this name, or this number."""
    for line in users.accounts("passwd"):
        if user in (line[0], line[2]):
            name, _, uid, gid, _, home, *_ = [*line, "", ""]  # a line may be short
            return name, uid, gid, home
    return None


def _unlisted(user: str) -> tuple[str, str, str, str]:
    """The account of root, or of a bare number: these need no line in /etc/passwd."""
    if user == "root":
        return user, "0", "0", ""
    if user.isdigit():
        return user, user, "0", ""
    raise Refused(f"user {user!r:.50} is not in /etc/passwd of this session")


def _has(line: list[str], name: str) -> bool:
    """Whether a line of groups has this user as a member."""
    return name in line[3].split(",")


def _group(name: str) -> int:
    for line in users.accounts("group"):
        if name in (line[0], line[2]):
            return _number(line[2])
    return _number(name)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) < users.COUNT):
        raise Refused(
            f"{text!r:.50} is no user or group of this session, nor a number below {users.COUNT:,}"
        )
    return int(text)

"""An execution's own namespaces are entered by cloning: its init sees nothing of the host.

Fresh: users, mounts, processes, network, IPC, host name, cgroups. On top of the
shared read-only root come one size-limited tmpfs, its own /proc, and loopback.
"""

import _socket
import contextlib
import errno
import fcntl
import os
import signal
import struct
from collections.abc import Iterator
from typing import Any

from . import levels, root, syscall_filter, syscalls
from .place import Refused, be_nice
from .wire import Socket

NAMESPACES = (
    syscalls.NEW_USER
    | syscalls.NEW_NS
    | syscalls.NEW_PID
    | syscalls.NEW_NET
    | syscalls.NEW_IPC
    | syscalls.NEW_UTS
    | syscalls.NEW_CGROUP
)
# While `locks` is read, nobody on the machine can lock a file; and it shows other namespaces' too.
_MASKED = ("keys", "key-users", "kcore", "timer_list", "sched_debug", "sysrq-trigger", "locks")
_MOST_TERMINALS = 64
_PROC = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
# Without access times, a folder does not show one case that another has read it.
_SCRATCH = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOATIME
_SET_FLAGS, _UP_AND_RUNNING = 0x8914, 0x41
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - on the same file system as all that it writes
_LOOPBACK_UP = struct.pack("16sH14x", b"lo", _UP_AND_RUNNING)


class Namespaces:
    """The level `ns`, from what `root.build` says: each jail sees the machine's folders through
    overlays of its own, and in its own folders what is covered there."""

    clone_flags = NAMESPACES
    home = root.HOME
    scratch = levels.FIRST
    writable = ", ".join(root.WRITABLE)
    limited = True

    def __init__(self, built: dict[str, Any]) -> None:
        # A clone in its new namespace starts as `nobody`: read the ids before.
        self._user, self._group = os.geteuid(), os.getegid()
        self._shares = [root.SharedMount(*share) for share in built["shares"]]
        self._hidden: list[str] = built["hidden"]
        self._covered: list[str] = built["covered"]
        self._filter = syscalls.Filter(syscall_filter.program())
        self._masked = [f"/proc/{name}" for name in _MASKED if os.path.exists(f"/proc/{name}")]
        self.environment: dict[str, str] = {}
        self.server = os.pidfd_open(os.getpid())
        self._levels = levels.Levels()
        self._written = -1  # all levels as one folder, once there are several

    def admit(self, process: int, line: Socket) -> None:
        """The clone writes its own map."""

    def enter(self, line: Socket) -> None:
        # A server killed by SIGKILL takes its jails with it.
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)

    def build(self) -> None:
        """Make the namespaces that this process was cloned into its own; it is their init."""
        self._map(root.INSIDE_ID)
        self._lay_overlays()
        self._folders()
        _proc(self._masked)
        loopback()
        _socket.sethostname("sandbox")

    def _map(self, inside: int) -> None:
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)  # else our own map files belong to root
        root.write_maps(inside, inside, self._user, self._group)
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)  # no program may look into init

    def _lay_overlays(self) -> None:
        """Overlays are laid so that locks of one jail's programs are in nobody's way."""
        for share in self._shares:
            # Others look names up in the machine's folders, which may have lost one by now.
            with contextlib.suppress(FileNotFoundError):
                share.lay_over()
        root.hide(self._hidden)
        syscalls.mount(root.EMPTY, root.BARE, None, syscalls.MS_BIND)

    def _folders(self) -> None:
        # One tmpfs, so that one quota covers every folder that a program may write to.
        options = "size=1m,nr_inodes=1024,mode=755"
        syscalls.mount("scratch", root.SCRATCH, "tmpfs", _SCRATCH, options)
        os.mkdir(levels.FIRST)
        for part in _parts(levels.FIRST):
            os.mkdir(part)
        self._show(levels.FIRST)

    def _show(self, written: str) -> None:
        """Mount the folders that a program may write to, from `written`."""
        for part, folder in zip(_parts(written), root.WRITABLE, strict=True):
            syscalls.attach(syscalls.shared(part), folder)
        for path in self._covered:
            root.show(root.COVERED + path, path)

    def renew(self, limits: dict[str, Any]) -> None:
        """Other folders, without what the last case left in them."""
        for folder in (*root.WRITABLE, root.SCRATCH):
            syscalls.unmount(folder)
        self._folders()
        self.furnish(limits)

    def seclude(self) -> None:
        """Mount a /proc that shows the programs of this namespace of processes, and not init.

        Ports are free as soon as their case has ended.
        """
        syscalls.mount("proc", "/proc", "proc", _PROC)
        with open("/proc/sys/net/ipv4/tcp_max_tw_buckets", "w") as file:
            file.write("0")
        flags = syscalls.MS_REMOUNT | syscalls.MS_BIND | syscalls.MS_RDONLY
        syscalls.mount("none", "/proc", None, flags | _PROC)
        _mask(self._masked)

    def furnish(self, limits: dict[str, Any]) -> None:
        flags = syscalls.MS_REMOUNT | _SCRATCH
        quota = f"size={limits['disk']},nr_inodes={limits['inodes']}"
        try:
            syscalls.mount("scratch", root.SCRATCH, None, flags, quota)
        except OSError as problem:
            if problem.errno != errno.EINVAL:
                raise
            raise Refused(f"limits: {quota} is less than the program's folders need") from None

    def target(self, name: str) -> str:
        return os.path.normpath(self.source(name))

    def source(self, name: str) -> str:
        """Any name will do: all there is, is the jail's own."""
        return os.path.join(self.home, name)

    def process_limit(self, granted: int) -> int:
        # The kernel counts forks under way as well, and reports a refusal here to no one. So a
        # cgroup's own limit comes first; without a cgroup, init counts.
        return 2 * granted + 8

    def allow_to_run(self, name: str) -> None:
        """Do nothing: all files are the jail's own, so a compiler makes its program executable."""

    def confine(self) -> None:
        syscalls.give_up_capabilities()
        self._filter.install()

    def become(self, user: str, workdir: str) -> None:
        """There is one user."""

    def changed(self) -> list[int]:
        # As one: in a level alone, a folder may be closed that has been opened since.
        return [self._written if self._written >= 0 else os.open(levels.FIRST, levels.FOLDER)]

    def start_from(self, image: dict[str, Any] | None, given: list[int]) -> None:
        if image:
            raise Refused("this fork server serves no images")
        levels.require_attributes()
        self._levels.add()
        self._levels.take(given)
        self._step_on(self._levels.over([]))

    def freeze(self) -> list[int]:
        for path in self._covered:  # a program may have moved the folders above it
            if os.path.realpath(path) != path or not os.path.isdir(path):
                raise Refused(f"{path}: not a folder any more")
        self._levels.begin(_parts(levels.FIRST))
        return self._frozen([])

    def _frozen(self, layers: list[str]) -> list[int]:
        shared, written = self._levels.frozen(layers)
        if written is not None:
            self._step_on(written)
        return shared

    def _step_on(self, written: int) -> None:
        """Step into a new namespace of mounts, where this is what can be written to."""
        self._levels.enter_new_namespace()
        syscalls.attach(written, root.IMAGE)
        syscalls.unmount(root.SCRATCH)
        self._show(root.IMAGE)
        before, self._written = self._written, os.open(root.IMAGE, levels.FOLDER)
        if before >= 0:
            os.close(before)
        syscalls.unmount(root.IMAGE)
        self.scratch = SHARED_MEMORY

    def give_way(self, pids: Iterator[str]) -> None:
        if os.path.exists("/proc/self"):
            be_nice(pids)
        # Else /proc is that of the template's namespace: by its numbers the template itself would
        # be lowered, and with it each case to come.

    def pids(self) -> Iterator[str]:
        return (name for name in os.listdir("/proc") if name.isdigit() and name != "1")

    def kill(self, program: int) -> None:
        """Kill all but init, which is process 1 of its namespace: -1 reaches nobody outside."""
        if os.getpid() != 1:
            raise RuntimeError("not the init of a namespace")
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)

    def kill_all(self) -> None:
        self.kill(0)

    def terminals(self) -> str:
        """Mount terminals of the session's own; a kernel that refuses them leaves it without."""
        if os.path.lexists(root.TERMINALS + "/ptmx"):
            return root.TERMINALS + "/ptmx"
        with contextlib.suppress(OSError):
            options = f"newinstance,ptmxmode=0666,mode=620,max={_MOST_TERMINALS}"
            syscalls.mount(
                "devpts", root.TERMINALS, "devpts", syscalls.MS_NOSUID | syscalls.MS_NOEXEC, options
            )
        return root.TERMINALS + "/ptmx"

    def leave(self) -> bool:
        return True  # everything ends with the namespaces

    def bury(self) -> None:
        """Do nothing: nothing outlives an init."""


def _parts(written: str) -> list[str]:
    """The part of `written` that each writable folder has."""
    return [f"{written}/{folder[1:].replace('/', '-')}" for folder in root.WRITABLE]


def _proc(masked: list[str]) -> None:
    # Read-only: a process may write to some of its own files there, such as its place in the line
    # of those that the kernel kills when memory runs out.
    syscalls.mount("proc", "/proc", "proc", _PROC | syscalls.MS_RDONLY)
    _mask(masked)


def _mask(paths: list[str]) -> None:
    for path in paths:
        syscalls.mount("/dev/null", path, None, syscalls.MS_BIND)


def loopback() -> None:
    any_socket = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM)
    fcntl.ioctl(any_socket, _SET_FLAGS, _LOOPBACK_UP)
    any_socket.close()

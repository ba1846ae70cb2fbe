"""A fork of the jail's init becomes the program: it confines itself first.

The order matters. What needs a right comes first. Then every right is given up, then the filter is
set. Only then is the program's code looked at. All that is the same for every program is done
before one comes.
"""

import _signal  # type: ignore[import-not-found]  # `signal` would look each name up as an enum
import contextlib
import errno
import fcntl
import gc
import importlib
import linecache
import os
import resource
import signal
import struct
import sys
import time
from collections.abc import Callable
from importlib.machinery import FrozenImporter, PathFinder
from typing import Any, NoReturn

from . import ending, notebook, syscalls, wire
from .place import Place, Refused

_COMPLAINT = 3
_ORDER = notebook.CHANNEL  # the line by which the order comes, before a session's channel is there
BUILT = b"built"  # said before the order: the place is there, to be confined to
# Which step; whether stdin, a session's channel, and a line for a last word come with it.
ORDER = struct.Struct("i???")
_MOST_FDS = 8
_NOT_LOADED = (errno.ENOENT, errno.ENOEXEC, errno.ELIBBAD, errno.EINVAL, errno.EACCES)
_CANNOT_BE_RUN = 127  # as a shell says it

_PRELOADED: set[str] = set()  # modules that plain `python` would look for in a program's folder
# Data, not address space: reserved but unwritable memory costs nothing.
_OWN_DATA = 16 << 20  # the interpreter's own, and what is preloaded; see `measure`
_STRICT = False  # whether what one program reserves is taken from all others


def measure() -> None:
    """Take what this process uses now as what every program begins with."""
    global _OWN_DATA, _STRICT
    with open("/proc/self/status", "rb") as file:
        _OWN_DATA = next(int(line.split()[1]) << 10 for line in file if line.startswith(b"VmData"))
    with open("/proc/sys/vm/overcommit_memory", "rb") as file:
        _STRICT = file.read().strip() == b"2"


Next = Callable[[], Any]  # what a process does from here on


class Begun(BaseException):
    """Raised in a program's process: it leaves all frames of the server and of init behind.

    They are not the program's to see, nor to be counted against its depth of recursion.
    """

    def __init__(self, run: Callable[[], "Next"]) -> None:
        super().__init__()
        self.run = run


def become(place: Place, line: int, ends: list[int]) -> NoReturn:
    """Wait for the order, ready but for what it says; then never return."""
    complaint = ends[2]
    try:
        os.setsid()
        take_places([os.open("/dev/null", os.O_RDONLY), *ends, line])
        complaint = _COMPLAINT
        if os.read(_ORDER, len(BUILT)) != BUILT:
            os._exit(0)  # it could not be built
        os.chdir(place.home)
        place.confine()
        interpreter(place.home)
        step, header, marks = _take_order(place)
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)  # else its own /proc files belong to root
        surround(place, header["env"])
        if step["argv"]:
            execute(step["argv"])
        make_way(place.home)
    except BaseException as problem:  # noqa: BLE001  a program that is not confined must not run
        with contextlib.suppress(OSError):
            os.write(complaint, f"!{type(problem).__name__}: {problem}".encode())
        os._exit(125)
    os.close(_COMPLAINT)
    script = step["script"] and f"{place.home}/{step['script']}"
    ending.run(script, step.get("arguments", ()), marks=marks, calls=step.get("calls", False))


def check_environment(given: dict[str, str]) -> None:
    """Raise `Refused` for what no process can be given."""
    for name, value in given.items():
        try:
            possible = name and "=" not in name and b"\0" not in os.fsencode(name + value)
        except UnicodeEncodeError:
            possible = False
        if not possible:
            raise Refused(f"env: {name!r} cannot be a variable with this value")


def leave_no_trace(usual: set[str]) -> None:
    """Leave what every program finds: modules as `python` starts it, and an environment."""
    global _PRELOADED
    for name in [name for name in sys.modules if name.partition(".")[0] == "inside"]:
        del sys.modules[name]
    names = {name.partition(".")[0] for name in sys.modules} - usual
    _PRELOADED = {name for name in names if _comes_after_its_own(name)}
    for sources in ("cache", "_interactive_cache"):  # since 3.13 our own is there, as "<string>"
        vars(linecache).get(sources, {}).clear()
    interpreters = os.path.dirname(sys.executable)
    os.environ.update(PATH=f"{interpreters}:/usr/local/bin:/usr/bin:/bin", LANG="C.UTF-8")


def warm(name: str) -> None:
    """Import what a program's forks will want."""
    known = set(sys.modules)
    importlib.import_module(name)
    new = {name.partition(".")[0] for name in set(sys.modules) - known}
    _PRELOADED.update(filter(_comes_after_its_own, new))


def settle() -> None:
    """Make sure that forks do not look through what is there now, nor change it, as they end."""
    ending.settle()
    gc.collect()
    gc.freeze()


def _comes_after_its_own(name: str) -> bool:
    """Whether an import looks for it behind a program's folder: what is built in comes before."""
    return name not in sys.builtin_module_names and FrozenImporter.find_spec(name) is None


def make_way(home: str) -> None:
    """Make way for a program's own files: by the name of what is preloaded, `import` finds
    those."""
    if not (entries := os.listdir(home)):
        return
    for name in _PRELOADED.intersection(entry.partition(".")[0] for entry in entries):
        own = PathFinder.find_spec(name, [home])
        sys.path_importer_cache.pop(home, None)  # the program may write more files
        if own and own.has_location:
            for loaded in [other for other in sys.modules if other.partition(".")[0] == name]:
                del sys.modules[loaded]


def take_places(sources: list[int]) -> None:
    """Give descriptors their places from 0 on, and close all others: what init holds is not the
    program's."""
    # First out of the way, to where they are not going.
    high = [fcntl.fcntl(at, fcntl.F_DUPFD_CLOEXEC, 64) for at in sources]
    for target, at in enumerate(high):
        os.dup2(at, target, inheritable=target < _COMPLAINT)
    os.closerange(len(sources), 1 << 16)


def _take_order(place: Place) -> tuple[dict[str, Any], dict[str, Any], bool]:
    """Read which step of which request it is, and whether it has a last word. Then join its
    cgroups, and take its limits and stdin."""
    line = wire.at(_ORDER)
    message, fds = wire.receive(line, ORDER.size, _MOST_FDS)
    line.close()
    if not message:
        os._exit(0)  # none will come
    step, stdin, session, marks = ORDER.unpack(message)
    request, *joins = fds
    if stdin:
        os.dup2(joins.pop(0), 0)
    channel = joins.pop(0) if session or marks else None
    header = wire.header(request)
    limit(place, header["limits"], joins)
    limit_time(header["limits"])
    if channel is not None:
        os.dup2(channel, notebook.CHANNEL, inheritable=session)
    os.closerange(_ORDER if channel is None else notebook.CHANNEL + 1, 1 << 16)
    return header["steps"][step], header, marks


def surround(place: Place, env: dict[str, str]) -> None:
    os.environ.update({"HOME": place.home, **place.environment, **env})
    if "TZ" in env:
        time.tzset()


def limit(place: Place, limits: dict[str, Any], joins: list[int]) -> None:
    """Join these cgroups, and take the limits that hold for each process."""
    for at in joins:
        os.write(at, b"0")
    for name, value in (
        (resource.RLIMIT_NPROC, place.process_limit(limits["processes"])),
        (resource.RLIMIT_FSIZE, limits["file_size"]),
        (resource.RLIMIT_NOFILE, limits["open_files"]),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_SIGPENDING, 1024),
        # 0 would still feed a core dump to the host's handler; the kernel skips it at 1.
        (resource.RLIMIT_CORE, 1),
    ):
        resource.setrlimit(name, (value, value))
    reserves = bool(joins) and not _STRICT  # a cgroup counts only what is used
    # A deep recursion may take more: stack is memory, and counts as that.
    _, most = resource.getrlimit(resource.RLIMIT_STACK)
    stack = limits["stack"]
    if stack >= limits["memory"] and not reserves:
        stack = resource.RLIM_INFINITY  # a thread then has 2 MB, and would else reserve all memory
    if most != resource.RLIM_INFINITY:
        stack = most if stack == resource.RLIM_INFINITY else min(stack, most)
    resource.setrlimit(resource.RLIMIT_STACK, (stack, most))
    if not reserves:
        data = limits["memory"] + _OWN_DATA
        resource.setrlimit(resource.RLIMIT_DATA, (data, data))


def limit_time(limits: dict[str, Any]) -> None:
    """Limit the time of this process, counted from its beginning. A process that others are forked
    from has a limit of its own."""
    seconds = int(limits["cpu"]) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))


def execute(argv: list[str]) -> NoReturn:
    # The interpreter ignores the first two; nohup, and shells in the background, the others.
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(ignored, signal.SIG_DFL)
    try:
        os.execvpe(argv[0], argv, os.environ)  # noqa: S606
    except OSError as problem:
        if problem.errno in _NOT_LOADED and os.path.isfile(argv[0]):  # what a compiler has made
            os.write(2, f"{argv[0]}: {problem.strerror}\n".encode())
            os._exit(_CANNOT_BE_RUN)
        if problem.errno != errno.ENOENT:
            raise
        raise FileNotFoundError(
            f"{argv[0]} is not installed where the sandbox can see it"
        ) from None


def interpreter(home: str) -> None:
    """Leave one as `python` starts it."""
    sys.path.insert(0, home)
    _open_streams()
    awaken()


def awaken() -> None:
    """Give a program what is its own: the handler of SIGINT, and other random numbers."""
    _signal.signal(_signal.SIGINT, _signal.default_int_handler)
    _reseed()


def _reseed() -> None:
    """Forks share what the server imported; they must not share its random numbers."""
    for module in ("random", "numpy.random"):
        if module in sys.modules:
            sys.modules[module].seed()


def _open_streams() -> None:
    """Open them again: the fork server's streams are seekable files, and these are pipes."""
    for name, at in (("stdout", 1), ("stderr", 2)):
        old = getattr(sys, name)
        new: Any = open(at, "w", encoding="utf-8", errors=old.errors, closefd=False)  # noqa: SIM115
        new.reconfigure(line_buffering=old.line_buffering)
        new.buffer.raw.name = old.name
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)

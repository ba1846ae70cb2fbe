"""The process that every case of one program is a fork of: process 1 of a namespace of its own.

It is confined once, and its forks inherit that. No signal that they send reaches it, they cannot
look into it, and it holds nothing of any case: what a case reads is a descriptor that it hands on.
"""

import contextlib
import os
import signal
import struct
import warnings
from functools import partial
from types import CodeType
from typing import Any, NoReturn

from . import ending, program, syscalls, wire
from .namespaces import Namespaces

_SAYING, _LINE = 3, 4  # complaints, and the line by which orders come
LONGEST_ORDER = 4096  # the path of a script in place of the usual one
MOST_FDS = 4  # stdin, stdout, stderr, and for the last word
# What a script has to do: come to its end; answer its stdin; pass a check that comes by its line.
MARKS, CALLS, CHECK = b"marks", b"calls", b"check"
REPORT = struct.Struct("idQ")  # wait status, seconds of processor time, bytes of memory


def serve(
    place: Namespaces, line: int, saying: int, joins: list[int], header: dict[str, Any]
) -> program.Next:
    """Fork at each order, and say how the fork ended; in the fork, return what it does."""
    try:
        place.seclude()
        os.setsid()
        program.limit(place, header["limits"], joins)
        # Pipes in the streams' places: what is opened on them serves the forks.
        program.take_places([os.open("/dev/null", os.O_RDONLY), *[saying] * 3, line])
        saying = _SAYING
        place.confine()
        program.interpreter(place.home)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # with a handler it could be signalled
        program.surround(place, header["env"])
        for name in header["warm"]:
            program.warm(name)
        os.chdir("/")  # the folders of a case go as it ends
        program.settle()
        return _serve(wire.at(_LINE), place, header)
    except BaseException as problem:  # noqa: BLE001  a program that is not confined must not run
        _complain(saying, problem)


def _serve(line: wire.Socket, place: Namespaces, header: dict[str, Any]) -> program.Next:
    code: CodeType | None = None
    tried = False
    while True:
        order, ends = wire.receive(line, LONGEST_ORDER, MOST_FDS)
        if not order:
            os._exit(0)
        name, _, ends_well = order.partition(b"\0")
        script = name.decode()
        usual = bool(script) and script == header["script"]
        if (case := os.fork()) == 0:
            line.close()  # left to be found unclosed, it would cost a warning that none sees
            run = code if usual else None
            return partial(_become, place, ends, header, script, run, ends_well)
        for at in ends:
            os.close(at)
        status, seconds, memory = _wait_for(case)
        line.send(REPORT.pack(status, seconds, memory))
        if usual and not status and not tried:
            code, tried = _compiled(script), True


def _compiled(script: str) -> CodeType | None:
    """Compile the script for the cases to come, once a case has shown that this keeps within its
    limits.

    If compiling it gives a warning, None: each case compiles it then, and prints the warning.
    """
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        code = compile(*ending.source_of(script), dont_inherit=True)
    program.settle()
    return None if said else code


def _wait_for(case: int) -> tuple[int, float, int]:
    """Wait until it has ended; then nothing that it started is left."""
    _, status, used = os.wait4(case, 0)
    seconds, memory = used.ru_utime + used.ru_stime, used.ru_maxrss
    with contextlib.suppress(ChildProcessError):
        while True:
            if not (found := os.wait4(-1, os.WNOHANG))[0]:
                _kill_all()
                found = os.wait4(-1, 0)
            used = found[2]
            seconds += used.ru_utime + used.ru_stime
            memory = max(memory, used.ru_maxrss)
    return status, seconds, memory << 10


def _kill_all() -> None:
    if os.getpid() != 1:
        raise RuntimeError("not the init of a namespace")
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)


def _become(
    place: Namespaces,
    ends: list[int],
    header: dict[str, Any],
    script: str,
    code: CodeType | None,
    ends_well: bytes,
) -> NoReturn:
    try:
        os.setsid()
        for target, at in enumerate(ends[:3]):
            os.dup2(at, target)
        if ends[3:]:
            os.dup2(ends[3], ending.LAST_WORD, inheritable=False)
        os.closerange(ending.LAST_WORD + bool(ends_well), max(ends) + 1)
        os.chdir(place.home)
        program.limit_time(header["limits"])
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)  # else its own /proc files belong to root
        program.awaken()
        if header["argv"]:
            program.execute(header["argv"])
        program.make_way(place.home)
    except BaseException as problem:  # noqa: BLE001  it is told as our failure
        _complain(_SAYING, problem)
    os.close(_SAYING)
    course = {"marks": bool(ends_well), "calls": ends_well == CALLS, "checks": ends_well == CHECK}
    ending.run(script, header["arguments"], code, **course)


def _complain(saying: int, problem: BaseException) -> NoReturn:
    with contextlib.suppress(OSError):
        os.write(saying, f"!{type(problem).__name__}: {problem}".encode())
    os._exit(125)

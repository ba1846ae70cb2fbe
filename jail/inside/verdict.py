"""How a step ended, as its init saw it: the kernel's word first (limits_passed.py), the program's
own last."""

import _socket
import os
import signal
import struct
import time
from typing import Any

from .limits_passed import Evidence
from .running import Running
from .usage_meter import Meter

_NO_THREAD = b"can't start new thread"  # refused as a fork is, or there is no memory for its stack
_MEMORY_ERRORS = (
    b"MemoryError",
    b"std::bad_alloc",
    b"JavaScript heap out of memory",
    b"java.lang.OutOfMemoryError",
    b"insufficient memory for the Java Runtime",  # on its standard output
    b"error='Not enough space'",  # Java's too, which cannot say more then
    b"Could not reserve enough space",
    b"runtime: out of memory",  # Go's two
    b"runtime: cannot allocate memory",
    b"memory allocation of ",  # Rust's
    b"failed to allocate memory",  # Ruby's
    b"not enough memory",  # Lua's
    b"Out of memory (allocated",  # PHP's
    b"cannot allocate vector of size",  # R's
    b"OutOfMemoryError()",  # Julia's
    b"alloc: cannot allocate",  # bash's
    _NO_THREAD,
)
_FORK_ERRORS = (_NO_THREAD, b"annot fork")
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)  # itself, or what a shell waited for
_BUSY = b"Resource temporarily unavailable"  # a refused fork; but a busy lock or socket, too
_COMPLAINT_SIZE = 4096
MARK_SIZE = 16
CHECK_SIZE = struct.Struct("I")


class LastWord:
    """A line to a script that has to come to its end: what it answers, and a mark behind that.

    The mark waits in the line: the script takes it before the program's code runs, and gives it
    back behind its answer. So that code does not find it there. What the program itself writes
    makes the whole no answer at all.
    """

    def __init__(self, check: bytes = b"") -> None:
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
        self.mark = os.urandom(MARK_SIZE)
        ours.send(self.mark + (CHECK_SIZE.pack(len(check)) + check if check else b""))
        ours.setblocking(False)
        self.ours, self.theirs = ours.detach(), theirs.detach()

    def read(self, said: bytearray) -> bool:
        """Whether it came to its end; takes the mark off what it said."""
        marked = said.endswith(self.mark)
        if marked:
            del said[-MARK_SIZE:]
        return marked


def close(running: Running, meter: Meter, evidence: Evidence | None) -> dict[str, Any]:
    duration = time.monotonic() - running.started
    meter.finish()
    said = complaint(running)
    for end in (*running.streams, running.complaint):
        os.close(end)
    if said:
        raise RuntimeError(said)
    return facts(running, meter, evidence, duration)


def facts(
    running: Running, meter: Meter, evidence: Evidence | None, duration: float
) -> dict[str, Any]:
    code: int | None = None
    if running.verdict is None and running.wait_status is not None:
        code = os.waitstatus_to_exitcode(running.wait_status)
    status = running.verdict or _explain(running, code, meter, evidence)
    return {
        "status": status,
        "return_code": code,
        "duration": duration,
        "cpu": meter.cpu,
        "memory_peak": meter.memory_peak,
        "processes_peak": meter.processes_peak,
        "idle": meter.idle,
        "proof": evidence.counts() if evidence and status == "memory_limit" else "",
    }


def complaint(running: Running) -> str:
    """The reason why a process that has ended was never the program; empty if it was."""
    said = os.read(running.complaint, _COMPLAINT_SIZE)
    return said[1:].decode(errors="replace") if said.startswith(b"!") else ""


def _explain(running: Running, code: int | None, meter: Meter, evidence: Evidence | None) -> str:
    """Name the limit behind a failure that the program met as an error of its own."""
    if evidence and (passed := evidence.passed()):
        return passed
    if code in _KILLED and not evidence:
        meter.check_machine()
    if code == 0:
        return "finished"
    if code == -signal.SIGXCPU:
        return "time_limit"
    complaints = list(running.streams.values())[-1]
    said = bytes(complaints[:_COMPLAINT_SIZE] + complaints[-_COMPLAINT_SIZE:])  # a trace may follow
    refused = any(error in said for error in _FORK_ERRORS) or (meter.crowded and _BUSY in said)
    if refused and not evidence:  # a cgroup would have counted it
        return "process_limit"
    return "memory_limit" if any(error in said for error in _MEMORY_ERRORS) else "finished"

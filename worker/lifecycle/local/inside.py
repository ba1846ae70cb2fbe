"""Runs in the jail, as the last cell of its session: commands and files, for the keeper.

The texts of the jail's `wire.py` and of this file are sent as one; nothing here imports Penstock.
An order is one message, whose body is copied to where it goes and never held in memory. The answer
is what was read, in pieces as they come, and then how it ended. One order runs at a time.
"""

import contextlib
import errno
import fcntl
import json
import os
import select
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from worker.sandbox.local.inside.wire import pack

CHANNEL = 4
MOST = 64 << 20  # bytes of a file, or of one output, that an answer may have
PIECE = 1 << 18
LAST_WORDS = 2.0  # seconds for what is said of a command that was killed
NOT_EXECUTED, NOT_FOUND = 126, 127  # as shells say it
OPENED = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
CREATE_RULESET, RESTRICT_SELF, SIGNALS = 444, 446, 2  # Landlock's, the same on all machines

poll = select.poll()  # the channel, a command's streams, and those that earlier ones left open


def penstock_serve() -> None:
    """Until the keeper hangs up, and with it the jail ends."""
    signal.setitimer(signal.ITIMER_REAL, 0)  # this cell has no time limit
    poll.register(CHANNEL, select.POLLIN)
    work = {"exec": penstock_exec, "read": penstock_read, "write": penstock_write}
    while True:
        order, size = next_order()
        try:
            work[order["op"]](order, size)
        except (OSError, ValueError) as problem:
            say(**described(problem))


def next_order() -> tuple[dict[str, Any], int]:
    """And how long the body is that follows."""
    while CHANNEL not in (ready := [at for at, _ in poll.poll()]):
        for at in ready:
            throw_away(at)
    start = take(12)
    size = int.from_bytes(start[:4], "big")
    return json.loads(take(size)), int.from_bytes(start[4:], "big")


def throw_away(at: int) -> None:
    """What a background process says when nobody waits for it any more."""
    if read(at) == b"":
        close(at)


def read(at: int) -> bytes | None:
    """What is there to read; None where another has read it first, as a command can its own."""
    try:
        return os.read(at, PIECE)
    except BlockingIOError:
        return None


def close(at: int) -> None:
    poll.unregister(at)
    os.close(at)


def take(size: int) -> bytes:
    """So many bytes of the channel."""
    taken = b""
    while len(taken) < size:
        piece = os.read(CHANNEL, size - len(taken))
        if not piece:
            os._exit(0)
        taken += piece
    return taken


def say(piece: bytes = b"", **header: object) -> None:
    rest = memoryview(pack(header, [piece]))
    while rest:
        rest = rest[os.write(CHANNEL, rest) :]


def described(problem: Exception) -> dict[str, Any]:
    """The error as the client raises it. A name that no file can have is an error of our own."""
    number = getattr(problem, "errno", None) or errno.EINVAL
    return {"errno": number, "why": getattr(problem, "strerror", None) or str(problem)}


@contextlib.contextmanager
def filled(opened: Callable[[], int], size: int) -> Iterator[int]:
    """A new file with the order's body, all of which is taken whether it can be written or not."""
    try:
        at = opened()
    except (OSError, ValueError):
        while size:
            size -= len(take(min(PIECE, size)))
        raise
    try:
        problem = None
        while size:
            piece = take(min(PIECE, size))
            size -= len(piece)
            try:
                while piece and not problem:
                    piece = piece[os.write(at, piece) :]
            except OSError as failure:
                problem = failure
        if problem:
            raise problem
        yield at
    finally:
        os.close(at)


def penstock_write(order: dict[str, Any], size: int) -> None:
    def opened() -> int:
        path = order["path"]
        try:
            os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        except FileExistsError:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | OPENED, 0o666)

    with filled(opened, size):
        say(written=True)


def penstock_read(order: dict[str, Any], _: int) -> None:
    at = os.open(order["path"], os.O_RDONLY | OPENED)
    try:
        found = os.fstat(at)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "Not a regular file")
        room = MOST
        while piece := os.read(at, PIECE):
            room -= len(piece)
            if max(found.st_size, MOST - room) > MOST:
                raise OSError(errno.EFBIG, f"Larger than {MOST:,} bytes; read it in parts")
            say(piece, stream=0)
        say(read=True)
    finally:
        os.close(at)


def penstock_exec(order: dict[str, Any], size: int) -> None:
    """One command to its own end, or its time limit. What it leaves in the background goes on."""
    try:
        with filled(scratch, size) as stdin:
            os.lseek(stdin, 0, os.SEEK_SET)
            command = Command(order, stdin)
    except OSError as problem:  # no room for its input, or for another process
        ended: dict[str, Any] | None = described(problem)
    else:
        ended = command.run()
    if (
        ended is not None and "errno" in ended
    ):  # that is how it ended, and no failure of the sandbox
        say(f"{ended.get('of', order['argv'][:1])}: {ended['why']}\n".encode("utf-8", "replace"),
            stream=1)  # fmt: skip
        missing = ended["errno"] == errno.ENOENT and not ended.get("folder")
        ended = {"code": NOT_FOUND if missing else NOT_EXECUTED}
    say(exit_code=ended and ended["code"], timed_out=ended is None)


def scratch() -> int:
    at, name = tempfile.mkstemp()
    os.unlink(name)
    return at


class Command:
    """One that runs, below a process which waits for it and can kill all of it."""

    def __init__(self, order: dict[str, Any], stdin: int) -> None:
        self.late = time.monotonic() + order["timeout"]
        self.line, theirs = socket.socketpair()
        out, err = os.pipe(), os.pipe()
        try:
            self.pid = os.fork()
        except OSError:
            for end in (*out, *err):
                os.close(end)
            raise
        if self.pid == 0:
            try:
                shepherd(order, theirs, stdin, out[1], err[1])
            finally:
                os._exit(1)
        theirs.close()
        self.streams = {out[0]: 0, err[0]: 1}
        self.room = {0: MOST, 1: MOST}
        for end, (ours, other) in zip(self.streams, (out, err), strict=True):
            os.close(other)
            os.set_blocking(end, False)
            poll.register(ours, select.POLLIN)
        poll.register(self.line, select.POLLIN)

    def run(self) -> dict[str, Any] | None:
        """How it ended; None where its time was up."""
        said = b""
        while not said and (left := self.late - time.monotonic()) > 0:
            if self.heard(left):
                said = self.line.recv(1 << 12) or b'{"code": -9}'  # it was killed itself
        poll.unregister(self.line)
        if not said:
            self.line.shutdown(socket.SHUT_WR)
            said = self.line.recv(1 << 12)  # nothing, when all of it is dead
            late = time.monotonic() + LAST_WORDS  # of a session's interpreter, say
            while self.streams and (left := late - time.monotonic()) > 0:
                self.heard(left)
        self.line.close()
        os.waitpid(self.pid, 0)
        for at in list(self.streams):  # what is there by now; another may hold it open
            waiting = fcntl.ioctl(at, termios.FIONREAD, b"\0" * 4)
            for _ in range(0, int.from_bytes(waiting, sys.byteorder), PIECE):
                self.pass_on(at)
        return json.loads(said) if said else None

    def heard(self, seconds: float) -> bool:
        """Whether its end was reported. Output that arrives meanwhile is passed on."""
        ready = [at for at, _ in poll.poll(seconds * 1000 + 0.5)]
        if CHANNEL in ready:
            os._exit(0)  # the keeper is gone: it says nothing else before it has the answer
        for at in ready:
            if at in self.streams:
                self.pass_on(at)
            elif at != self.line.fileno():
                throw_away(at)
        return self.line.fileno() in ready

    def pass_on(self, at: int) -> None:
        number = self.streams[at]
        piece = read(at)
        if piece == b"":
            del self.streams[at]
            close(at)
        elif piece and (kept := piece[: self.room[number]]):
            self.room[number] -= len(kept)
            say(kept, stream=number)


def shepherd(order: dict[str, Any], line: socket.socket, stdin: int, out: int, err: int) -> None:
    """Between us and the command: says how it ended, or kills all of it when the line is shut."""
    os.close(CHANNEL)
    everyone = 0  # of this process group
    try:
        try:
            os.setsid()
        except PermissionError:
            pen()
            everyone = -1  # that may be signalled from here
        process = subprocess.Popen(  # noqa: S603
            order["argv"], cwd=order["cwd"] or None, env={**os.environ, **order["env"]},
            stdin=stdin, stdout=out, stderr=err,
        )  # fmt: skip
    except (OSError, ValueError, LookupError) as problem:
        said = described(problem)
        of = getattr(problem, "filename", None) or (order["argv"] or [""])[0]
        said |= {"of": str(of), "folder": bool(order["cwd"]) and of == order["cwd"]}
        line.sendall(json.dumps(said).encode())
        return
    watch = select.poll()
    for at in (os.pidfd_open(process.pid), line.fileno()):
        watch.register(at, select.POLLIN)
    watch.poll()
    if (code := process.poll()) is None:
        os.kill(everyone, signal.SIGKILL)
    else:
        line.sendall(json.dumps({"code": code}).encode())


def pen() -> None:
    """Where no process may leave its group: from now on this one and its children can signal
    each other and nobody else, so that a signal to all they can reach is one to the command."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    asked = (ctypes.c_uint64 * 3)(0, 0, SIGNALS)
    size = ctypes.c_size_t(ctypes.sizeof(asked))
    rules = libc.syscall(CREATE_RULESET, ctypes.byref(asked), size, 0)
    if rules < 0 or libc.syscall(RESTRICT_SELF, rules, 0) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"a pen for commands: {os.strerror(number)}")
    os.close(rules)

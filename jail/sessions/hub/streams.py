"""A command in the hub: its streams, who listens to them, and how it ended.

The hub reads what a command writes until the streams are closed, listened to or not: so neither
the command nor what it left in the background is held up, or killed, by a caller that hangs up.
A listener that reads slowly holds the command up, as a slow terminal does. What nobody listens to
is read no faster than the hub can spare.
"""

import asyncio
import contextlib
import fcntl
import os
import resource
import termios
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from jail.sessions.errors import SessionRefused, TooManySessions
from jail.sessions.wire import PIECE, packed

_PAUSE = 0.01  # seconds between two reads of what nobody listens to
_HIGH = 1 << 20  # bytes that wait for a listener before the command does
_WORDS = 1 << 16
_CTRL_D = b"\4\4"  # ends a terminal's input: the first may only pass on half a line
_INPUT = 1 << 20  # bytes that wait for a command before their sender does


def require_room(descriptor: int) -> None:
    """Require room for more files, by the number of a new descriptor. The kernel gives the lowest
    free one, so it says how many are in use. The last eighth is left to what ends, and to callers
    that need no more than their connection. Raises `TooManySessions`."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptor >= most - most // 8:
        raise TooManySessions(
            f"what keeps this machine's sessions has {descriptor} files open, and may have {most}. "
            "Wait until commands or sessions end, or start it with a higher `ulimit -Hn`"
        )


class Ends:
    """The descriptors of a new command: one half goes to the session, the other stays here.

    `target` is used for its stdout where it is given, and owned. Closing them twice does no harm.
    """

    def __init__(self, stdin: bool, target: int | None = None) -> None:
        self.ours: dict[str, int] = {}
        self.input: int | None = None
        self.theirs: list[int] = [] if target is None else [target]
        try:
            if stdin:
                source, self.input = os.pipe2(os.O_CLOEXEC)
            else:
                source = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            self.theirs.insert(0, source)
            if target is None:
                self.ours["stdout"], target = os.pipe2(os.O_CLOEXEC)
                self.theirs.append(target)
            self.ours["stderr"], end = os.pipe2(os.O_CLOEXEC)
            self.theirs.append(end)
            require_room(end)
        except (OSError, TooManySessions):
            self.close()
            raise

    def taken(self) -> tuple[dict[str, int], int | None]:
        """Give up our half."""
        ours, into = self.ours, self.input
        self.ours, self.input = {}, None
        return ours, into

    def handed_over(self) -> None:
        while self.theirs:
            os.close(self.theirs.pop())

    def close(self) -> None:
        self.handed_over()
        for end in (*self.ours.values(), *([] if self.input is None else [self.input])):
            os.close(end)
        self.ours, self.input = {}, None


class Streams:
    """The streams of what runs, or ran, under one number of a session."""

    def __init__(self, pid: int, about: dict[str, Any]) -> None:
        self.pid = pid
        self.about = about  # the command as it was asked for
        self.began = time.time()
        self.exit: dict[str, Any] | None = None
        self.killed_for = ""
        self.words = b""  # of a call: what came of it
        self.ended = asyncio.Event()  # its own process, and all that it wrote was passed on
        self.closed = asyncio.Event()  # the streams too
        self.timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._ours: dict[str, int] = {}
        self._input: int | None = None
        self._waiting: deque[bytes] = deque()
        self._room = asyncio.Event()
        self._input_over = False
        self._listeners: set[asyncio.StreamWriter] = set()
        self._slow: asyncio.Task[None] | None = None

    def take(self, ours: dict[str, int], into: int | None) -> None:
        """Serve these streams from now on."""
        self._ours, self._input = ours, into
        self._room.set()
        for at in {*ours.values(), *([] if into is None else [into])}:
            os.set_blocking(at, False)
        self._read_on()

    # What it writes.

    def listen(self, writer: asyncio.StreamWriter) -> None:
        self._listeners.add(writer)

    def leave(self, writer: asyncio.StreamWriter) -> None:
        self._listeners.discard(writer)

    def _read_on(self) -> None:
        for name, at in self._ours.items():
            self._loop.add_reader(at, self._pass_on, name, PIECE)
        self._close_if_done()

    def _pass_on(self, name: str, most: int) -> int:
        """Pass on what there is, and return how much that was."""
        at = self._ours[name]
        try:
            piece = os.read(at, most)
        except BlockingIOError:
            return 0
        except OSError:  # a terminal that nobody has open any more
            piece = b""
        if not piece:
            self._loop.remove_reader(at)
            del self._ours[name]
            if at != self._input:
                os.close(at)
            self._close_if_done()
            return 0
        if name == "stderr" and "call" in self.about:
            self.words = (self.words + piece)[:_WORDS]
        self._tell({"stream": name}, piece)
        return len(piece)

    def _tell(self, header: dict[str, Any], body: bytes = b"") -> None:
        frame = packed(header, body)
        for writer in self._listeners:
            writer.write(frame)
        if self._slow is None and (not self._listeners or self._any_waits()):
            for at in self._ours.values():
                self._loop.remove_reader(at)
            self._slow = self._loop.create_task(self._until_drained())

    def _any_waits(self) -> bool:
        sizes = (writer.transport.get_write_buffer_size() for writer in self._listeners)
        return any(size > _HIGH for size in sizes)

    async def _until_drained(self) -> None:
        try:
            if not self._listeners:
                await asyncio.sleep(_PAUSE)
            for writer in list(self._listeners):
                with contextlib.suppress(ConnectionError):  # it has hung up
                    await writer.drain()
        finally:
            self._slow = None
            self._read_on()

    def _close_if_done(self) -> None:
        if not self._ours and self.ended.is_set() and not self.closed.is_set():
            self.closed.set()
            self._close_input()

    # What it reads.

    def require_input(self) -> None:
        """Require that it takes input. Raises `SessionRefused` where none would ever arrive."""
        if not (self.about.get("stdin") or self.about.get("terminal")) or self._input_over:
            raise SessionRefused(
                f"process {self.pid} takes no input: it was started without `stdin`, or its input"
                " was closed"
            )

    async def write(self, data: bytes, gone: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Write to the command's stdin, and wait until there is room for more, or the sender has
        `gone`. What the command no longer reads is dropped."""
        if self._input is None or self._input_over or not data:
            return
        self._put(data)
        if sum(map(len, self._waiting)) > _INPUT:
            self._room.clear()
        if not self._room.is_set():
            ends = [self._loop.create_task(each) for each in (self._room.wait(), gone())]
            try:
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for end in ends:
                    end.cancel()

    def _put(self, data: bytes) -> None:
        self._waiting.append(data)
        if len(self._waiting) == 1:
            self._feed()

    def end_input(self) -> None:
        """Nothing more is written. A terminal stays open: its output comes by the same end."""
        if self._input_over or self._input is None:
            return
        self._input_over = True
        if "pty" in self._ours:
            self._put(_CTRL_D)
        elif not self._waiting:
            self._close_input()

    def _feed(self) -> None:
        assert self._input is not None  # noqa: S101 - else nothing waits
        try:
            while self._waiting:
                written = os.write(self._input, self._waiting[0])
                self._waiting[0] = self._waiting[0][written:]
                if not self._waiting[0]:
                    self._waiting.popleft()
            self._loop.remove_writer(self._input)
        except BlockingIOError:
            self._loop.add_writer(self._input, self._feed)
        except OSError:  # it reads no more
            self._close_input()
            return
        if sum(map(len, self._waiting)) <= _INPUT:
            self._room.set()
        if self._input_over and not self._waiting and "pty" not in self._ours:
            self._close_input()

    def _close_input(self) -> None:
        self._waiting.clear()
        self._room.set()
        if self._input is not None:
            self._loop.remove_writer(self._input)
            if self._input not in self._ours.values():
                os.close(self._input)
            self._input = None

    def resize(self, columns: int, rows: int) -> None:
        if (at := self._ours.get("pty")) is not None:
            termios.tcsetwinsize(at, (rows, columns))

    # Its end.

    def conclude(self, end: dict[str, Any]) -> None:
        """The command's own process has ended: pass on what it wrote until now, then how it
        ended. A listener that reads slowly, or no more, is not waited for: the rest fits in a pipe.
        """
        if self.timer:
            self.timer.cancel()
        for name in list(self._ours):
            self._pass_on_rest(name)
        self.exit = end
        self._tell({"exit": end})
        self.ended.set()
        self._close_if_done()

    def _pass_on_rest(self, name: str) -> None:
        """Pass on what is there now, and no more: what runs on in the background may write without
        end."""
        waiting = fcntl.ioctl(self._ours[name], termios.FIONREAD, b"\0" * 4)
        left = int.from_bytes(waiting, "little")
        while left > 0 and name in self._ours and (taken := self._pass_on(name, left)):
            left -= taken

    def drop(self) -> None:
        """The session has ended."""
        for at in self._ours.values():
            self._loop.remove_reader(at)
            if at != self._input:
                os.close(at)
        self._ours = {}
        self._close_input()
        self.closed.set()

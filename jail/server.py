"""The client's end of one fork server: sends it programs, notices its death."""

import array
import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any, TypeVar

from jail.errors import SandboxUnavailable
from jail.inside import wire
from jail.inside.job import PROGRAM
from jail.launch import START_TIMEOUT, ServerConfig, launch

_CHUNK = 1 << 18
_Received = TypeVar("_Received", bytes, int)


class TooLong(ValueError):
    """A message is longer than its sender may send."""


async def receive(source: socket.socket, most: int) -> bytes | bytearray:
    """Receive one whole message; a large one is put together in its place, without further
    copies."""
    loop = asyncio.get_running_loop()
    start = b""
    while (expected := wire.length(start)) is None:
        start += await _some(loop.sock_recv(source, _CHUNK))
    if expected > most:
        raise TooLong(f"a report of {expected} bytes, above {most}")
    if expected <= len(start):
        return start
    message = bytearray(expected)
    message[: len(start)] = start
    with memoryview(message) as rest:
        at = len(start)
        while at < expected:
            at += await _some(loop.sock_recv_into(source, rest[at:]))
    return message


async def _some(received: Coroutine[Any, Any, _Received]) -> _Received:
    """The bytes that came; none means that the other end is closed."""
    if not (what := await received):
        raise ConnectionError("it ended first")
    return what


log = logging.getLogger(__name__)

_SOON = 0.5  # seconds in which one that was killed is gone
_GRACE = 30.0  # beyond all its own time limits, for a jail to report; a busy machine takes long


class JailLost(Exception):
    """A jail ended, or was given up, without a report."""


class ServerGone(Exception):
    """The fork server had died before this was sent to it."""


class ForkServer:
    """A running fork server. Made by `start`; of no use once it is `dead`."""

    def __init__(
        self, process: "subprocess.Popen[bytes]", control: socket.socket, complaints: int
    ) -> None:
        self._process = process
        self._control = control
        self._complaints = complaints
        self.posted = 0
        self._turn = asyncio.Lock()
        self.ready: dict[str, Any] = {}
        self.dead = False

    @classmethod
    async def start(cls, config: ServerConfig) -> "ForkServer":
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        complaints = os.memfd_create("complaints", os.MFD_CLOEXEC)
        ours.setblocking(False)
        try:
            with theirs:
                process = launch(config, theirs.fileno(), complaints)
        except BaseException:
            ours.close()
            os.close(complaints)
            raise
        server = cls(process, ours, complaints)
        try:
            await server._wait_until_ready()
        except SandboxUnavailable:
            killed = await server.was_killed()
            await server.close()
            if killed:
                raise ServerGone("the fork server was killed as it started") from None
            raise
        except BaseException:
            await server.close()
            raise
        return server

    async def _wait_until_ready(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(START_TIMEOUT):
                said = await loop.sock_recv(self._control, 1 << 16)
        except (TimeoutError, ConnectionError):
            said = b""
        answer = json.loads(said) if said else {"failed": f"as it started, {self._last_words()}"}
        if "failed" in answer:
            raise SandboxUnavailable(answer["failed"])
        self.ready = answer
        loop.add_reader(self._control, self._closed)

    async def was_killed(self) -> bool:
        """Whether it ended by SIGKILL, which says nothing of what this machine can isolate."""
        with contextlib.suppress(subprocess.TimeoutExpired):  # its jails may end before it does
            return await asyncio.to_thread(self._process.wait, _SOON) == -signal.SIGKILL
        return False

    def _last_words(self) -> str:
        size = os.fstat(self._complaints).st_size
        said = (
            os.pread(self._complaints, 4096, max(0, size - 4096)).decode(errors="replace").strip()
        )
        return f"the fork server ended: {said or 'it left no message'}"

    def _closed(self) -> None:
        """Note that the fork server has ended. It says nothing after it is ready, so all that can
        be read is its end."""
        if self.dead:
            return
        asyncio.get_running_loop().remove_reader(self._control)
        self.dead = True
        log.warning("%s; the next program is given a new one", self._last_words())

    async def exchange(
        self,
        request: bytes,
        group: Sequence[int],
        patience: float,
        most: int,
        what: str = PROGRAM,
        channel: socket.socket | None = None,
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Run one jail: its request in, its report out. Raises `JailLost`, or `ServerGone`."""
        self.posted += 1
        number = self.posted
        finished = False
        with _memory_file(request) as payload, _pair() as (ours, theirs):
            try:
                order = {"run": number, "what": what}
                lines = [] if channel is None else [channel.fileno()]
                await self._post(order, [payload, theirs.fileno(), *lines, *group])
                theirs.close()
                if channel is not None:
                    channel.close()  # the jail has it now
                async with asyncio.timeout(patience + _GRACE):
                    message = await receive(ours, most)
                finished = True
                return wire.unpack(message)
            except (OSError, ValueError, TimeoutError) as problem:
                raise JailLost(
                    f"the jail gave no report: {problem or type(problem).__name__}"
                ) from None
            finally:
                ours.close()  # a jail whose client has gone ends by itself
                if not finished:
                    await self._kill(number)

    async def _kill(self, number: int) -> None:
        with contextlib.suppress(ServerGone, OSError):  # the jail sees that we hung up, too
            await self._post({"kill": number}, [])

    async def _post(self, order: dict[str, Any], fds: Sequence[int]) -> None:
        message = [json.dumps(order).encode()]
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        async with self._turn:
            while not self.dead:
                try:
                    self._control.sendmsg(message, rights, socket.MSG_NOSIGNAL)
                except BlockingIOError:
                    await _writable(self._control)
                except (BrokenPipeError, ConnectionResetError):
                    self._closed()
                else:
                    return
            raise ServerGone("the fork server has died")

    async def close(self) -> None:
        """End it, and with it every jail."""
        self.dead = True
        asyncio.get_running_loop().remove_reader(self._control)
        self._control.close()
        os.close(self._complaints)
        await asyncio.to_thread(self._end)

    def _end(self) -> None:
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()


@contextlib.contextmanager
def _memory_file(content: bytes) -> Iterator[int]:
    at = os.memfd_create("request", os.MFD_CLOEXEC)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(at, view) :]
        os.lseek(at, 0, os.SEEK_SET)
        yield at
    finally:
        os.close(at)


@contextlib.contextmanager
def _pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A pair of sockets: the caller's end, and the jail's. Both are closed in the end, also if one
    was closed before."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        yield ours, theirs


async def _writable(target: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_writer(target, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_writer(target)

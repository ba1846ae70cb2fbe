"""The client's end of one fork server: starts it, sends it programs, notices its death."""

import array
import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worker.sandbox.local.errors import SandboxUnavailable
from worker.sandbox.local.inside import wire, zygote
from worker.sandbox.local.levels import Level
from worker.sandbox.local.receive import receive

MODULES = ("pytest",)  # what a language needs of the interpreter itself
_SOURCE = str(Path(__file__).parent)
_START_TIMEOUT = 60.0
_GRACE = 30.0  # beyond all its own time limits, for a jail to report; a busy machine takes long
_PREFIXES = "import sys; print(sys.prefix, sys.base_prefix, sys.exec_prefix, sep='\\n')"


class JailLost(Exception):
    """A jail ended, or was given up, without a report."""


@dataclass(frozen=True)
class ServerConfig:
    """What the fork server is made of."""

    python: str = sys.executable
    preload: tuple[str, ...] = ()
    expose: tuple[str, ...] = ()  # further files and folders that programs may read
    uid: int = 65534  # who it becomes when it is started by root
    gid: int = 65534
    spares: int = 2  # jails made before their programs come
    level: Level = "ns"
    start_as: int | None = None  # from root: start as this ordinary user, in a user namespace

    def on_the_wire(self, control: int) -> dict[str, Any]:
        return {
            "level": self.level,
            "control": control,
            "source": _SOURCE,
            "python": self.python,
            "preload": list(self.preload),
            "asked": list(MODULES),
            "exposed": self._exposed(),
            "uid": self.uid,
            "spares": self.spares,
            "gid": self.gid,
            "scratch": tempfile.gettempdir(),
        }

    def _exposed(self) -> list[str]:
        """The interpreter's own folders, our code, and what the operator adds."""
        if self.python == sys.executable:
            prefixes = [sys.prefix, sys.base_prefix, sys.exec_prefix]
        else:
            prefixes = _prefixes_of(self.python)
        paths = [*prefixes, f"{_SOURCE}/inside", *self.expose]
        if "/" in paths:
            raise SandboxUnavailable("the interpreter's prefix is /, and / cannot be shown")
        return list(dict.fromkeys(path for path in paths if not path.startswith("/usr/")))


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
                process = _launch(config, theirs.fileno(), complaints)
        except BaseException:
            ours.close()
            os.close(complaints)
            raise
        server = cls(process, ours, complaints)
        try:
            await server._wait_until_ready()
        except BaseException:
            server.close()
            raise
        return server

    async def _wait_until_ready(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_START_TIMEOUT):
                said = await loop.sock_recv(self._control, 1 << 16)
        except (TimeoutError, ConnectionError):
            said = b""
        answer = json.loads(said) if said else {"failed": self._last_words()}
        if "failed" in answer:
            raise SandboxUnavailable(answer["failed"])
        self.ready = answer
        loop.add_reader(self._control, self._closed)

    def _last_words(self) -> str:
        said = os.pread(self._complaints, 4096, 0).decode(errors="replace").strip()
        return f"the fork server ended as it started: {said or 'it left no message'}"

    def _closed(self) -> None:
        """It says nothing after it is ready: what can be read is its end."""
        asyncio.get_running_loop().remove_reader(self._control)
        self.dead = True

    async def exchange(
        self,
        request: bytes,
        group: Sequence[int],
        patience: float,
        most: int,
        channel: socket.socket | None = None,
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Run one jail: its request in, its report out. Raises `JailLost`."""
        self.posted += 1
        number = self.posted
        finished = False
        with _memory_file(request) as payload, _pair() as (ours, theirs):
            try:
                order = {"run": number, "session": channel is not None}
                session = [] if channel is None else [channel.fileno()]
                await self._post(order, [payload, theirs.fileno(), *session, *group])
                theirs.close()
                if channel is not None:
                    channel.close()  # the program has it now
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
        if not self.dead:
            try:
                await self._post({"kill": number}, [])
            except OSError:
                self.dead = True

    async def _post(self, order: dict[str, Any], fds: Sequence[int]) -> None:
        message = [json.dumps(order).encode()]
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        async with self._turn:
            while True:
                try:
                    self._control.sendmsg(message, rights, socket.MSG_NOSIGNAL)
                except BlockingIOError:
                    await _writable(self._control)
                else:
                    return

    def close(self) -> None:
        """End it, and with it every jail."""
        self.dead = True
        with contextlib.suppress(RuntimeError):  # closed after its loop
            asyncio.get_running_loop().remove_reader(self._control)
        self._control.close()
        os.close(self._complaints)
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()


def _prefixes_of(python: str) -> list[str]:
    with _told_of(python):
        asked = subprocess.run(  # noqa: S603
            [python, "-I", "-c", _PREFIXES],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_START_TIMEOUT,
        )
    if asked.returncode != 0:
        said = asked.stderr.strip().rsplit("\n", 1)[-1] or "without a word"
        raise SandboxUnavailable(
            f"{python} cannot be run as Python: it ended with status {asked.returncode}, {said}"
        )
    return asked.stdout.splitlines()


def _launch(config: ServerConfig, control: int, complaints: int) -> "subprocess.Popen[bytes]":
    with _told_of(config.python):
        return subprocess.Popen(  # noqa: S603
            zygote.command("launch", config.on_the_wire(control)),
            env={"LANG": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=complaints,
            pass_fds=(control,),
            user=config.start_as,
            group=config.start_as,
            extra_groups=None if config.start_as is None else [],
            start_new_session=True,  # Ctrl-C is for its client
            cwd="/",
        )


@contextlib.contextmanager
def _told_of(python: str) -> Iterator[None]:
    try:
        yield
    except (OSError, subprocess.SubprocessError) as problem:
        raise SandboxUnavailable(f"{python} cannot be run: {problem}") from None


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
    """Our end, and theirs; both are closed in the end, whoever closed them before."""
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

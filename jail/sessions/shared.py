"""`SharedSandbox`: one embedded sandbox for all processes of a user on this machine.

Under stock `rq worker` each job has a process of its own, which must not start, test and
warm up a fork server for one program. The first to come starts the process that keeps one
(`jail/sessions/shared.py`); it ends when nobody has asked for a while. A program ends with
the connection of its client: a killed job leaves nothing.
"""

import asyncio
import base64
import fcntl
import hashlib
import json
import os
import socket
import stat
import struct
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from ground import SettingError
from jail import errors
from jail.errors import SandboxFailure, SandboxUnreachable
from jail.judge.models import JudgeRequest, JudgeResult
from jail.judge.run import NOT_JUDGED
from jail.judge.suite import Case, Suite
from jail.languages import LANGUAGES
from jail.models import CodeRequest, CodeResult
from jail.parting import part
from jail.sandbox import LocalSandbox
from jail.settings import SandboxSettings

_ROOT = str(Path(__file__).parents[2])
# It forks at once, so that its parent need not wait for its imports, nor for its end.
_BOOT = (
    "import os, sys; os.fork() and os._exit(0); sys.path.insert(0, sys.argv[1]); "
    "from jail.sessions.shared import main; main(sys.argv[2], int(sys.argv[3]), sys.argv[4])"
)
_LENGTH = struct.Struct("!I")
_FAILURES: dict[str, type[SandboxFailure]] = {
    kind.__name__: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, SandboxFailure)
}


class SharedSandbox:
    """See the module. Nothing is kept open between two programs."""

    name = "shared"
    kills_cancelled = True

    def __init__(self, settings: SandboxSettings | None = None) -> None:
        self._settings = settings or SandboxSettings.load()
        self.path = _folder() / f"sandbox-{_digest(self._settings)}.sock"

    @property
    def languages(self) -> frozenset[str]:
        """Those that it knows; which are installed, its answer says."""
        return frozenset(LANGUAGES)

    @property
    def judged_languages(self) -> frozenset[str]:
        return self.languages - NOT_JUDGED

    async def run(self, request: CodeRequest) -> CodeResult:
        async with self._connected() as (reader, writer):
            await send(writer, request.dump())
            answer = await receive(reader)
        return CodeResult.read(_unless_failed(answer))

    async def judge(self, request: JudgeRequest, suite: Suite) -> JudgeResult:
        """The sandbox asks for each case as it comes to it."""
        async with self._connected() as (reader, writer):
            await send(writer, {"judge": request.dump(), "count": len(suite)})
            while "case" in (answer := await receive(reader)):
                await send(writer, await _case_of(suite, answer["case"]))
        return JudgeResult.read(_unless_failed(answer))

    @asynccontextmanager
    async def _connected(
        self,
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        try:
            reader, writer = await self._connect()
            try:
                yield reader, writer
            finally:
                writer.close()
        except (OSError, EOFError) as problem:
            raise SandboxUnreachable(
                f"the sandbox of this machine, {self.path}, went away: {problem!r}", reason="cut"
            ) from None

    async def close(self) -> None:
        """Nothing to do: it serves others."""

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            return await asyncio.open_unix_connection(self.path)
        except (FileNotFoundError, ConnectionRefusedError):
            await asyncio.to_thread(self._start)
            return await asyncio.open_unix_connection(self.path)

    def _start(self) -> None:
        with locked(self.path):
            with socket.socket(socket.AF_UNIX) as trial:
                if trial.connect_ex(str(self.path)) == 0:
                    return  # another one was quicker
            self.path.unlink(missing_ok=True)
            with socket.socket(socket.AF_UNIX) as listening:
                listening.bind(str(self.path))
                listening.listen(1024)  # from here on callers wait for it, instead of failing
                self._launch(listening.fileno())

    def _launch(self, listening: int) -> None:
        with open(self.path.with_suffix(".log"), "ab") as log:
            subprocess.run(  # noqa: S603
                [sys.executable, "-c", _BOOT, _ROOT, str(self.path), str(listening),
                 self._settings.model_dump_json()],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=(listening,),
                # None of the secrets that a worker's own environment may have.
                env={"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"},
                cwd=self.path.parent, start_new_session=True, check=True,
            )  # fmt: skip


async def send(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    text = json.dumps(message).encode()
    writer.write(_LENGTH.pack(len(text)) + text)
    await writer.drain()


async def receive(reader: asyncio.StreamReader) -> dict[str, Any]:
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    message: dict[str, Any] = json.loads(await reader.readexactly(length))
    return message


async def _case_of(suite: Suite, index: int) -> dict[str, Any]:
    """A case as it crosses the socket."""
    try:
        case = await suite.case(index)
    except SandboxFailure as failure:
        return {"number": index, "failure": packed(failure)}
    answers = None if case.expected is None else [*map(_as_text, case.expected)]
    given = {"input": _as_text(case.input), "expected": answers, "check": case.check}
    return {"number": index, **given}


def _as_text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def packed(failure: SandboxFailure) -> dict[str, Any]:
    """A failure as it crosses the socket."""
    return {"kind": type(failure).__name__, "problem": str(failure), "reason": failure.reason}


def _failure(said: dict[str, Any]) -> SandboxFailure:
    kind = _FAILURES.get(said["kind"], SandboxFailure)
    return kind(said["problem"], reason=said["reason"])


def _unless_failed(answer: dict[str, Any]) -> dict[str, Any]:
    if "failure" in answer:
        raise _failure(answer["failure"])
    return answer


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Only one process at a time starts the keeper of a socket, or ends it."""
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _folder() -> Path:
    """Only our user may enter: a writer to the socket may run programs, and a process in its
    place would see them."""
    folder = Path(tempfile.gettempdir()) / f"penstock-{os.geteuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise SettingError(
            "TMPDIR", f"{folder} is not a directory that only its owner, this user, may enter"
        )
    return folder


def _release() -> str:
    try:
        return metadata.version("penstock-rl")
    except metadata.PackageNotFoundError:  # on the path, but not installed
        return ""


def _digest(settings: SandboxSettings) -> str:
    """Other settings, another release or another interpreter: another sandbox."""
    about = [settings.model_dump_json(), _release(), sys.executable, _ROOT]
    return hashlib.sha256("\n".join(about).encode()).hexdigest()[:16]


class AskedSuite:
    """Cases that the caller has: each is asked for by its number."""

    def __init__(
        self, count: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._count = count
        self._reader, self._writer = reader, writer
        self._asked: dict[int, asyncio.Future[dict[str, Any]]] = {}

    def __len__(self) -> int:
        return self._count

    async def case(self, index: int) -> Case:
        answer = self._asked[index] = asyncio.get_running_loop().create_future()
        try:
            await send(self._writer, {"case": index})
            said = await answer
        finally:
            del self._asked[index]
        if "failure" in said:
            raise _failure(said["failure"])
        answers = said["expected"]
        expected = None if answers is None else tuple(map(base64.b64decode, answers))
        return Case(base64.b64decode(said["input"]), expected, said["check"])

    async def listen(self) -> None:
        """Until the caller has gone."""
        with suppress(EOFError, OSError):
            while said := await receive(self._reader):
                answer = self._asked.get(said["number"])
                if answer and not answer.done():  # it may be needed no more
                    answer.set_result(said)

    async def close(self) -> None:
        """The caller closes its own."""


IDLE = 60.0


class Keeper:
    """Serves a listening socket whose path is `path`."""

    def __init__(self, sandbox: LocalSandbox, path: Path, idle: float = IDLE) -> None:
        self._sandbox = sandbox
        self._path = path
        self._idle = idle
        self._callers: set[asyncio.Task[None]] = set()
        self._stirred = asyncio.Event()

    async def serve(self, listening: socket.socket) -> None:
        server = await asyncio.start_unix_server(self._call, sock=listening)
        try:
            await self._until_deserted()
            # Nobody finds it any more; a client that came in that moment is still served.
            await asyncio.to_thread(self._give_up_the_path)
            while self._callers:
                await asyncio.wait(self._callers)
        finally:
            server.close()
            await self._sandbox.close()

    async def _until_deserted(self) -> None:
        while True:
            self._stirred.clear()
            try:
                async with asyncio.timeout(self._idle):
                    await self._stirred.wait()
            except TimeoutError:
                if not self._callers:
                    return

    def _give_up_the_path(self) -> None:
        with locked(self._path):
            self._path.unlink(missing_ok=True)

    async def _call(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        caller = asyncio.current_task()
        assert caller is not None  # noqa: S101 - asyncio runs each caller in a task
        self._callers.add(caller)
        try:
            with suppress(EOFError, OSError):  # the client went away: no one gets the answer
                message = await receive(reader)
                if "judge" in message:
                    asked = AskedSuite(message["count"], reader, writer)
                    judging = self._sandbox.judge(JudgeRequest.read(message["judge"]), asked)
                    await self._answer(judging, asked.listen(), writer)
                    await part(reader, writer)  # it may send a case that is not wanted any more
                else:
                    running = self._sandbox.run(CodeRequest.read(message))
                    await self._answer(running, reader.read(1), writer)
        finally:
            self._callers.discard(caller)
            self._stirred.set()
            writer.close()

    async def _answer(
        self,
        running: Coroutine[Any, Any, CodeResult | JudgeResult],
        until_gone: Coroutine[Any, Any, object],
        writer: asyncio.StreamWriter,
    ) -> None:
        run, gone = asyncio.ensure_future(running), asyncio.ensure_future(until_gone)
        try:
            await asyncio.wait([run, gone], return_when=asyncio.FIRST_COMPLETED)
            if run.done():
                try:
                    await send(writer, run.result().dump())
                except SandboxFailure as failure:
                    await send(writer, {"failure": packed(failure)})
        finally:
            for task in (run, gone):
                task.cancel()
            await asyncio.wait([run, gone])


def main(path: str, listening: int, settings: str) -> None:
    sandbox = LocalSandbox.from_settings(SandboxSettings.model_validate_json(settings))
    with socket.socket(fileno=listening) as at:
        asyncio.run(Keeper(sandbox, Path(path)).serve(at))

"""`SharedSandbox`: one embedded sandbox for all processes of a user on this machine.

Under stock `rq worker` each job has a process of its own. It must not start, test and warm up a
fork server for one program. The machine's hub keeps one, beside its sessions. A program ends with
the connection of its caller: a killed job leaves nothing.
"""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from jail.errors import (
    SandboxBroken,
    SandboxError,
    SandboxFailure,
    SandboxUnavailable,
    SandboxUnfit,
    SandboxUnreachable,
)
from jail.images.settings import ImageSettings
from jail.judge.models import NOT_JUDGED, JudgeRequest, JudgeResult
from jail.judge.suite import Suite
from jail.languages import LANGUAGES
from jail.models import CodeRequest, CodeResult
from jail.sessions import wire
from jail.sessions.call import MISSING, Streams, connect, value
from jail.sessions.launch import Door
from jail.sessions.settings import SessionSettings
from jail.settings import SandboxSettings


class SharedSandbox:
    """See the module. Nothing is kept open between two programs."""

    name = "shared"
    kills_cancelled = True

    def __init__(
        self, sandbox: SandboxSettings | None = None, sessions: SessionSettings | None = None
    ) -> None:
        self._door = Door(
            sandbox or SandboxSettings.load(),
            sessions or SessionSettings.load(),
            ImageSettings.load(),
        )
        self._door.require_folder()

    @property
    def languages(self) -> frozenset[str]:
        """The languages that it knows; which are installed, its answer says."""
        return frozenset(LANGUAGES)

    @property
    def judged_languages(self) -> frozenset[str]:
        return self.languages - NOT_JUDGED

    async def run(self, request: CodeRequest) -> CodeResult:
        async with self._called(request.dump(), op="run") as (reader, _):
            answer = await _heard(reader)
        return CodeResult.read(answer["result"])

    async def judge(self, request: JudgeRequest, suite: Suite) -> JudgeResult:
        """The sandbox asks for each case as it comes to it."""
        called = self._called(request.dump(), op="judge", count=len(suite))
        async with called as (reader, writer):
            while "case" in (answer := await _heard(reader)):
                await wire.send(writer, await _case_of(suite, answer["case"]))
        return JudgeResult.read(answer["result"])

    async def close(self) -> None:
        """Close nothing: the hub serves others."""

    @asynccontextmanager
    async def _called(self, request: dict[str, Any], **call: Any) -> AsyncIterator[Streams]:
        """A call to the hub, which has been given the request. Raises a `SandboxFailure`."""
        try:
            reader, writer = await self._connected()
            try:
                writer.write(wire.packed(call))
                await wire.send(writer, request)
                yield reader, writer
            finally:
                writer.close()
        except SandboxUnavailable as problem:
            raise SandboxUnfit(str(problem), reason="isolation_unavailable") from None
        except SandboxError as problem:
            raise SandboxBroken(f"the sandbox of this machine: {problem}", reason="hub") from None
        except OSError as problem:
            raise SandboxUnreachable(
                f"the sandbox of this machine, in {self._door.folder}, went away: {problem!r}",
                reason="cut",
            ) from None

    async def _connected(self) -> Streams:
        try:
            return await connect(self._door.folder, self._door.socket)
        except MISSING:
            await asyncio.to_thread(self._door.open)
            return await connect(self._door.folder, self._door.socket)


async def _heard(reader: asyncio.StreamReader) -> dict[str, Any]:
    header, body = await wire.receive(reader, wire.PROGRAM)
    if "failure" in header:
        raise wire.failure_of(header)
    value((header, body), "")
    return header


async def _case_of(suite: Suite, index: int) -> dict[str, Any]:
    """A case as it crosses the socket."""
    try:
        case = await suite.case(index)
    except SandboxFailure as failure:
        return {"number": index, **wire.fields_of_failure(failure)}
    answers = None if case.expected is None else [*map(_as_text, case.expected)]
    given = {"input": _as_text(case.input), "expected": answers, "check": case.check}
    return {"number": index, **given}


def _as_text(content: bytes) -> str:
    return base64.b64encode(content).decode()

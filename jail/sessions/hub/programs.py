"""Programs that run once, and are judged, for all processes of a user on this machine.

They run in the hub's own jails, beside its sessions. A program ends with the connection of its
caller: a killed job leaves nothing.
"""

import asyncio
import base64
from contextlib import suppress
from typing import Any

from jail.errors import SandboxFailure
from jail.judge.models import JudgeRequest
from jail.judge.suite import Case
from jail.models import CodeRequest
from jail.sandbox import LocalSandbox
from jail.sessions.hub.calls import Call
from jail.sessions.wire import failure_of, fields_of_failure
from jail.socket_end import part


async def run(sandbox: LocalSandbox, call: Call) -> None:
    request = CodeRequest.read(await call.program())
    result = await call.while_heard(sandbox.run(request))
    await call.answer(result=result.dump())


async def judge(sandbox: LocalSandbox, call: Call) -> None:
    request = JudgeRequest.read(await call.program())
    suite = AskedSuite(call.header["count"], call)
    try:
        result = await call.while_heard(sandbox.judge(request, suite), suite.listen())
        await call.answer(result=result.dump())
    except SandboxFailure as failure:
        await call.answer(**fields_of_failure(failure))
    await part(call.reader, call.writer)  # it may send a case that is not wanted any more


class AskedSuite:
    """Cases that the caller has: each is asked for by its number."""

    def __init__(self, count: int, call: Call) -> None:
        self._count, self._call = count, call
        self._asked: dict[int, asyncio.Future[dict[str, Any]]] = {}

    def __len__(self) -> int:
        return self._count

    async def case(self, index: int) -> Case:
        answer = self._asked[index] = asyncio.get_running_loop().create_future()
        try:
            await self._call.answer(case=index)
            said = await answer
        finally:
            del self._asked[index]
        if "failure" in said:
            raise failure_of(said)
        answers = said["expected"]
        expected = None if answers is None else tuple(map(base64.b64decode, answers))
        return Case(base64.b64decode(said["input"]), expected, said["check"])

    async def listen(self) -> None:
        """Listen until the caller has gone."""
        with suppress(ConnectionError):
            while True:
                said = await self._call.program()
                answer = self._asked.get(said["number"])
                if answer and not answer.done():  # it may be needed no more
                    answer.set_result(said)

    async def close(self) -> None:
        """The caller closes its own."""

"""A command's end by its time is on its way before the client's own time is over."""

import json
import struct

import pytest
from starlette.requests import Request

from jail.sessions import CommandRequest
from worker.e2b import process_rpc
from worker.e2b.wire import TAKE


class Asked(Exception):
    """What a command was started with."""


class Session:
    async def start(self, command: CommandRequest) -> None:
        raise Asked(command)


class Box:
    session = Session()


def call(milliseconds: str) -> Request:
    message = json.dumps({"process": {"cmd": "sleep", "args": ["60"]}}).encode()
    body = struct.pack(">BI", 0, len(message)) + message

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": body, "more_body": False}

    headers = [(b"connect-timeout-ms", milliseconds.encode())] if milliseconds else []
    scope = {"type": "http", "method": "POST", "path": "/", "headers": headers, TAKE: lambda _: 0}
    return Request(scope, receive)


async def timeout_of(milliseconds: str) -> float | None:
    with pytest.raises(Asked) as asked:
        await process_rpc.start(call(milliseconds), Box(), "")  # type: ignore[arg-type]
    timeout: float | None = asked.value.args[0].timeout
    return timeout


@pytest.mark.parametrize(("asked", "most"), [("1000", 0.9), ("60000", 59.75), ("1", 0.001)])
async def test_it_has_less_time_than_its_client_waits(asked: str, most: float) -> None:
    timeout = await timeout_of(asked)
    assert timeout is not None
    assert 0 < timeout <= most


@pytest.mark.parametrize("asked", ["", "0", "soon"])
async def test_without_a_deadline_it_has_all_the_time_that_the_sandbox_has(asked: str) -> None:
    assert await timeout_of(asked) is None

"""What an init gives with its answers, or was to be given, is closed where nobody takes it."""

import asyncio
import contextlib
import json
import os
import signal
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from jail.limits import Limits
from jail.sessions import SessionTrouble, TooManySessions
from jail.sessions.hub.hub_session import MOST_COMMANDS, KeptSession, inherited
from jail.sessions.hub.line_to_init import InitLine


class Given:
    """An answer with a descriptor, and whether somebody still has that."""

    def __init__(self) -> None:
        self._reads, self._given = os.pipe()
        os.set_blocking(self._reads, False)

    def answer(self, line: InitLine) -> None:
        said = json.dumps({"asked": 1}).encode()
        socket.send_fds(line.theirs, [said], [self._given])
        os.close(self._given)

    def is_closed(self) -> bool:
        with contextlib.suppress(BlockingIOError):
            return os.read(self._reads, 1) == b""
        return False


@pytest.fixture
def given() -> Iterator[Given]:
    given = Given()
    yield given
    os.close(given._reads)


async def asked(line: InitLine) -> "asyncio.Task[dict[str, object]]":
    task = asyncio.ensure_future(line.ask("freeze"))
    await asyncio.sleep(0)
    assert line.theirs.recv(100) == b'{"freeze": 1}'
    return task


@pytest.fixture
async def line() -> InitLine:
    made = InitLine(lambda said, given: None, lambda: ConnectionError("it is over"))
    made.listen()
    return made


async def test_a_caller_gets_what_is_given(line: InitLine, given: Given) -> None:
    task = await asked(line)
    given.answer(line)
    (at,) = (await task)["given"]  # type: ignore[misc, attr-defined]
    assert not given.is_closed()
    os.close(at)
    assert given.is_closed()
    line.close()


async def test_it_is_closed_where_the_caller_has_gone_before(line: InitLine, given: Given) -> None:
    task = await asked(line)
    task.cancel()
    await asyncio.wait([task])
    given.answer(line)
    async with asyncio.timeout(100):
        while not given.is_closed():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    line.close()


async def test_it_is_closed_where_the_caller_goes_in_that_moment(
    line: InitLine, given: Given
) -> None:
    task = await asked(line)
    given.answer(line)
    line._hear()  # the answer is there, and its caller was not woken so far
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert given.is_closed()
    line.close()


async def test_a_terminal_that_the_kernel_dropped_ends_its_call_and_its_command() -> None:
    about = {"name": "mine", "ttl": 600.0, "idle": None}
    kept = KeptSession(about, "ns", Limits(), None)
    starting = asyncio.ensure_future(kept.start({"argv": ["sh"], "terminal": [80, 24]}))
    await asyncio.sleep(0)
    assert json.loads(kept._line.theirs.recv(1000))["start"] == 1
    kept._hear({"started": 1, "pid": 7}, [])
    with pytest.raises(SessionTrouble, match="too many files open"):
        await starting
    await asyncio.gather(*kept._killing)
    assert json.loads(kept._line.theirs.recv(1000)) == {"signal": 7, "number": signal.SIGKILL}
    kept._hear({"ended": 7, "status": signal.SIGKILL}, [])
    kept._line.close()


async def test_a_socket_for_the_proxy_that_the_kernel_dropped_is_said() -> None:
    kept = KeptSession({"name": "mine", "ttl": 600.0, "idle": None}, "ns", Limits(), None)
    asking = asyncio.ensure_future(kept.listen())
    await asyncio.sleep(0)
    assert json.loads(kept._line.theirs.recv(1000)) == {"listen": 1}
    kept._line._answer(1, {"port": 8080})
    with pytest.raises(SessionTrouble, match="too many files open"):
        await asking
    kept._line.close()


async def test_a_copy_that_its_parent_refuses_leaves_nothing_open() -> None:
    before = set(os.listdir("/proc/self/fd"))
    about = {"name": "mine", "ttl": 600.0, "idle": None}
    parent, child = (KeptSession(about, "ns", Limits(), None) for _ in range(2))
    running: dict[int, Any] = dict.fromkeys(range(MOST_COMMANDS))
    parent._running = running
    forking = asyncio.ensure_future(inherited(parent, child))
    await asyncio.sleep(0)
    parent._line._answer(1, {"refused": True})
    while not child._starting:  # noqa: ASYNC110
        await asyncio.sleep(0)
    child._hear({"started": 1, "pid": 7}, [])
    with pytest.raises(TooManySessions, match=f"runs {MOST_COMMANDS} commands"):
        await forking
    child._running[7].drop()
    for kept in (parent, child):
        kept._line.close()
    assert before.issuperset(os.listdir("/proc/self/fd"))

"""Sessions that are ready before they are asked for: taken over once each, never left behind."""

import asyncio
import contextlib
import os
import signal
import sys
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from tests.worker.images.archives import layer, oci
from tests.worker.images.roots import base
from tests.worker.sandbox.sessions.conftest import (
    ROOT,
    below,
    dead,
    hub_in,
    sessions_in,
    until,
    wait_for,
)
from worker.images import ImageSettings, ImageStore
from worker.sandbox.sessions import CommandRequest, SessionRequest, TooManySessions

pytestmark = pytest.mark.timeout(150)


class Leave:
    """Counts the starts that were made under it, and how many at once."""

    def __init__(self) -> None:
        self.ended = self.now = self.most = 0
        self.stirred = asyncio.Condition()

    @asynccontextmanager
    async def __call__(self):
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            yield
        finally:
            async with self.stirred:
                self.now -= 1
                self.ended += 1
                self.stirred.notify_all()

    async def until(self, ended: int) -> None:
        async with asyncio.timeout(60), self.stirred:
            await self.stirred.wait_for(lambda: self.ended >= ended)


@contextlib.asynccontextmanager
async def warm(sessions, size, request=None):
    leave = Leave()
    task = asyncio.ensure_future(sessions.warm(request or SessionRequest(), size, leave))
    try:
        await leave.until(size)
        yield leave
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def init_of(session) -> str:
    """By the number of its namespace, which no other session has."""
    ran = await session.run(CommandRequest(["readlink", "/proc/self/ns/pid"]))
    return ran.stdout.decode()


async def test_a_session_that_is_ready_becomes_the_one_that_is_asked_for(folder):
    sessions = sessions_in(folder)
    async with warm(sessions, 2) as leave:
        session = await sessions.open(
            SessionRequest(name="mine", env={"WHO": "me"}, tags={"of": "mine"}, ttl=60)
        )
        info = await session.info()
        assert (info.name, info.tags) == ("mine", {"of": "mine"})
        assert 50 < info.ends - info.created < 61
        ran = await session.run(CommandRequest(["sh", "-c", "echo $WHO $OTHER"], {"OTHER": "too"}))
        assert ran.stdout == b"me too\n"
        await leave.until(3)  # it is replaced
        assert leave.most == 1  # one after the other
        await session.end()


async def test_nobody_gets_what_another_one_has_got(folder):
    sessions = sessions_in(folder)
    async with warm(sessions, 4):
        opened = await asyncio.gather(*(sessions.open(SessionRequest()) for _ in range(12)))
        assert len({await init_of(session) for session in opened}) == 12
        for session in opened:
            await session.end()


async def test_other_limits_are_not_those_of_a_ready_one(folder):
    sessions = sessions_in(folder)
    async with warm(sessions, 1) as leave:
        session = await sessions.open(SessionRequest(memory_mb=64))
        assert (await session.info()).memory_mb == 64
        assert leave.ended == 1  # the ready one stays
        await session.end()


async def test_a_full_machine_keeps_what_is_ready_and_refills_it_when_it_has_room(folder):
    sessions = sessions_in(folder, session_most=3)
    leave = Leave()
    keeping = asyncio.ensure_future(sessions.warm(SessionRequest(), 2, leave))
    await leave.until(2)
    first = await sessions.open(SessionRequest(name="first"))
    await leave.until(3)
    await sessions.open(
        SessionRequest(name="second")
    )  # takes one, and there is no room for another
    await sessions.open(SessionRequest(name="third"))  # takes the last one
    assert not keeping.done()
    assert leave.ended == 3
    with pytest.raises(TooManySessions):
        await sessions.open(SessionRequest())
    await first.end()
    await leave.until(4)
    assert not keeping.done()
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)


async def test_a_ready_one_gives_way_where_the_machine_is_full(folder):
    sessions = sessions_in(folder, session_most=2)
    async with warm(sessions, 1):
        others = [await sessions.open(SessionRequest(memory_mb=64)) for _ in range(2)]
        with pytest.raises(TooManySessions):
            await sessions.open(SessionRequest())
        for session in others:
            await session.end()


@pytest.fixture
def store(tmp_path):
    store = ImageStore.of(ImageSettings(images=tmp_path / "images"), 65534)
    for name, text in (("task:1", "one"), ("task:2", "two")):
        layers = [base(), layer({"task/which": text})]
        store.add(oci(tmp_path / text, layers, name=name, packed=bytes))
    return store


async def which(session) -> str:
    return (await session.run(CommandRequest(["cat", "/task/which"]))).stdout.decode()


async def test_ready_sessions_of_an_image_are_taken_over_by_its_name(folder, store):
    sessions = sessions_in(folder, images=ImageSettings(images=store.folder))
    request = SessionRequest(image="task:1")
    async with (
        warm(sessions, 1, request) as leave,
        warm(sessions, 1, SessionRequest(image="task:2")) as other,
    ):
        session = await sessions.open(replace(request, env={"WHO": "me"}))
        ran = await session.run(CommandRequest(["sh", "-c", "cat /task/which; echo $WHO"]))
        assert ran.stdout == b"oneme\n"
        await leave.until(2)
        assert other.ended == 1
        assert await sessions.open(SessionRequest())
        assert (leave.ended, other.ended) == (2, 1)
        await sessions.open(SessionRequest(image="task:2"))
        await other.until(2)


async def test_a_name_that_has_moved_gives_the_new_image(folder, store):
    sessions = sessions_in(folder, images=ImageSettings(images=store.folder))
    async with warm(sessions, 2, SessionRequest(image="task:1")) as leave:
        store.extend(store.find("task:2"), None, "task:1", store.find("task:2").config)
        session = await sessions.open(SessionRequest(image="task:1"))
        assert await which(session) == "two"
        await leave.until(4)
        again = await sessions.open(SessionRequest(image="task:1"))
        assert await which(again) == "two"


OWNER = """
import asyncio, sys
from contextlib import nullcontext
from pathlib import Path
from tests.worker.sandbox.sessions.conftest import sessions_in
from worker.sandbox.sessions import SessionRequest
asyncio.run(sessions_in(Path(sys.argv[1])).warm(SessionRequest(), 4, nullcontext))
"""


async def test_ready_sessions_end_with_the_process_that_wants_them(folder):
    sessions = sessions_in(folder, session_hub_idle=60)
    session = await sessions.open(SessionRequest())
    hub, lonely = hub_in(folder), len(below(hub_in(folder)))
    async with warm(sessions, 4):
        await until(lambda: len(below(hub)) >= lonely + 3)
    await until(lambda: len(below(hub)) < lonely + 2)

    owner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", OWNER.replace("sys.argv[1])", "sys.argv[1]), session_hub_idle=60"),
        str(folder), cwd=ROOT,
    )  # fmt: skip
    try:
        await until(lambda: len(below(hub)) >= lonely + 3)
    finally:
        owner.kill()
        await owner.wait()
    await until(lambda: len(below(hub)) < lonely + 2)
    await session.end()


async def test_a_hub_that_is_killed_takes_its_ready_sessions_along(folder):
    sessions = sessions_in(folder)
    async with warm(sessions, 2):
        hub = hub_in(folder)
        everyone = [hub, *below(hub)]
        ended = os.pidfd_open(hub)
        os.kill(hub, signal.SIGKILL)
        wait_for(ended)
        os.close(ended)
        await until(dead, everyone)

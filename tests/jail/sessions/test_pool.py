"""Sessions that are ready before they are asked for: taken over once each, never left behind."""

import asyncio
import contextlib
import os
import signal
import sys
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from jail.images.settings import ImageSettings
from jail.images.store import ImageStore
from jail.jails import Jails
from jail.limits import Limits
from jail.sessions import CommandRequest, SessionRefused, SessionRequest, TooManySessions
from jail.sessions.hub.pool import Shelf, kind_of
from jail.sessions.hub.sessions import KeptSessions
from jail.sessions.hub.starts import Starts
from jail.sessions.hub.way_out import WayOut
from jail.sessions.settings import SessionSettings
from jail.settings import SandboxSettings
from tests.jail.images.archives import layer, oci
from tests.jail.images.roots import base
from tests.jail.sessions.conftest import (
    ROOT,
    below,
    dead,
    hub_in,
    sessions_in,
    until,
    wait_for,
)

IMAGES = ImageSettings()
LIMITS = {0: Limits(), 64: Limits(memory=64 << 20)}
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
        async with asyncio.timeout(100), self.stirred:
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


@pytest.mark.parametrize("env", [{"A=B": "x"}, {"": "x"}, {"A": "x\0"}, {"A": "\ud800"}])
async def test_variables_that_cannot_be_are_refused_whether_one_is_ready_or_not(folder, env):
    sessions = sessions_in(folder)
    with pytest.raises(SessionRefused, match="env: "):
        await sessions.open(SessionRequest(env=env))
    async with warm(sessions, 1) as leave:
        with pytest.raises(SessionRefused, match="env: "):
            await sessions.open(SessionRequest(env=env))
        session = await sessions.open(SessionRequest())
        await leave.until(2)  # no other was taken
        with pytest.raises(SessionRefused, match="env: "):
            await session.run(CommandRequest(["true"], env))
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
from tests.jail.sessions.conftest import sessions_in
from jail.sessions import SessionRequest
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


class Jail:
    """Stands in for a session. Counts how many there are at once."""

    now = most = 0

    def __init__(self, about):
        self.name, self.about, self.start_from, self.proxy = about["name"], about, None, {}
        self.over = asyncio.Event()
        self.why = ""
        self.handed_over = False

    @classmethod
    async def open(cls, may_open, about, on_end):
        cls.now += 1
        cls.most = max(cls.most, cls.now)
        jail = cls(about)
        jail.on_end = on_end
        await may_open.wait()
        return jail

    def hand_over(self, about, on_end):
        self.name, self.about, self.on_end, self.handed_over = about["name"], about, on_end, True

    async def end(self, why):
        await asyncio.sleep(0)
        Jail.now -= 1
        self.why = why
        self.over.set()
        self.on_end()


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """What a hub of at most three sessions keeps, without a process, a fork server or jails."""
    Jail.now = Jail.most = 0
    sandbox, settings = SandboxSettings(), SessionSettings()
    starts, way_out = Starts(sandbox, IMAGES), WayOut(settings.session_network, "ns", 65534)
    hub = KeptSessions(
        tmp_path, "hub", Jails(), starts, way_out, sandbox.limits(), 3, asyncio.Event()
    )
    hub.may_open = asyncio.Event()
    room = "jail.sessions.hub.sessions"
    monkeypatch.setattr(
        f"{room}.KeptSession.open",
        lambda jails, about, limits, start, on_end: Jail.open(hub.may_open, about, on_end),
    )
    monkeypatch.setattr(f"{room}.check_request", lambda about, *_: LIMITS[about["memory_mb"] or 0])
    return hub


def asked(**about):
    return {"name": "", "image": "", "network": None, "memory_mb": None, "tied": False, **about}


async def filled(hub, shelf):
    async def begin(on_end):
        return await Jail.open(hub.may_open, asked(), on_end)

    await hub._pool.fill(shelf, begin)


@pytest.mark.parametrize("memory", [None, 64], ids=["of-its-kind", "of-another-kind"])
async def test_a_creation_waits_for_one_that_is_being_made_if_the_machine_is_full(hub, memory):
    hub.may_open.set()
    for _ in range(2):
        await hub.open(asked())
    hub.may_open.clear()
    shelf = Shelf(kind_of(asked(), LIMITS[0]), 1)
    with hub._pool.holding(shelf):
        filling = asyncio.ensure_future(filled(hub, shelf))
        await until(lambda: Jail.now == 3)
        opening = asyncio.ensure_future(hub.open(asked(memory_mb=memory)))
        await until(lambda: hub.count() == 4)
        hub.may_open.set()
        await asyncio.gather(filling, opening)
        assert (Jail.now, Jail.most, hub.count()) == (3, 3, 3)


async def test_none_is_made_in_a_place_that_a_creation_has_taken(hub):
    hub.may_open.set()
    for _ in range(2):
        await hub.open(asked())
    hub.may_open.clear()
    shelf = Shelf(kind_of(asked(), LIMITS[0]), 1)
    with hub._pool.holding(shelf):
        assert shelf.wanted.is_set()
        opening = asyncio.ensure_future(hub.open(asked()))
        await until(lambda: Jail.now == 3)
        await filled(hub, shelf)  # which had leave before
        assert (Jail.most, len(shelf)) == (3, 0)
        hub.may_open.set()
        await opening


async def test_many_creations_at_once_are_never_more_jails_than_allowed(hub):
    hub.may_open.set()
    shelf = Shelf(kind_of(asked(), LIMITS[0]), 3)
    with hub._pool.holding(shelf):
        for _ in range(3):
            await filled(hub, shelf)
        other = [hub.open(asked(memory_mb=64)) for _ in range(3)]
        opened = await asyncio.gather(filled(hub, shelf), *other, filled(hub, shelf))
        assert (Jail.now, Jail.most) == (3, 3)
        assert all(hub.find(one.name) is one for one in opened[1:4])

"""A sandbox that is taken from its user: the work in it ends, as our side's doing."""

import asyncio
import contextlib
import threading

import pytest

from jail.errors import SandboxFailure
from jail.sessions import SessionGone
from tests.worker.lifecycle.conftest import gate_of, until
from worker.lifecycle import SandboxLost
from worker.lifecycle.box import Box

BEAT_OFTEN = 9.0  # a lease: its owner beats every 3 s, and a slow machine keeps it


@pytest.fixture
async def ends(reaper):
    """End a sandbox, from outside the block that uses it: that may hear of it meanwhile."""
    under_way = []

    def end(sandbox):
        ending = reaper().end("test", [sandbox.name], "by hand")
        under_way.append(asyncio.ensure_future(ending))
        return under_way[-1]

    yield end
    await asyncio.gather(*under_way)


async def test_the_body_of_a_sandbox_that_was_taken_is_cancelled(lifecycle, cloud, ends):
    life = lifecycle(sandbox_lease=BEAT_OFTEN)
    with pytest.raises(SandboxLost, match="taken over") as lost:
        async with life.open() as sandbox:
            ending = ends(sandbox)
            await asyncio.Event().wait()
    assert isinstance(lost.value, SandboxFailure)
    assert asyncio.current_task().cancelling() == 0
    await ending
    assert cloud.live == 0
    assert life.registry.look().count == 0


async def test_so_is_a_sessions_turn_and_the_next_opens_another(lifecycle, cloud, ends):
    life = lifecycle(sandbox_lease=BEAT_OFTEN)
    with pytest.raises(SandboxLost):
        async with life.session("sample-7") as sandbox:
            ends(sandbox)
            await asyncio.Event().wait()
    async with life.session("sample-7") as another:
        assert another.id != sandbox.id
    await life.end_session("sample-7")


async def test_a_body_that_swallows_that_comes_to_no_good_end(lifecycle, cloud, ends):
    life = lifecycle(sandbox_lease=BEAT_OFTEN)
    with pytest.raises(SandboxLost):
        async with life.open() as sandbox:
            ends(sandbox)
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()


async def test_a_body_that_fails_of_itself_meanwhile_keeps_its_error(lifecycle, cloud, ends):
    life = lifecycle(sandbox_lease=BEAT_OFTEN)
    with pytest.raises(KeyError):
        async with life.open() as sandbox:
            ends(sandbox)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise KeyError("its own") from None
    assert asyncio.current_task().cancelling() == 0


async def test_cancelled_from_outside_too_it_stays_cancelled(lifecycle, cloud, ends):
    life = lifecycle(sandbox_lease=BEAT_OFTEN)

    async def body():
        async with life.open() as sandbox:
            ends(sandbox)
            try:
                await asyncio.Event().wait()
            finally:
                asyncio.current_task().cancel()

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(body())


def test_blocking_code_hears_of_it_at_its_end(lifecycle, cloud, reaper):
    life = lifecycle(sandbox_lease=BEAT_OFTEN)
    with pytest.raises(SandboxLost), life.sync.open() as sandbox:
        asyncio.run(reaper().end("test", [sandbox.name], "by hand"))
        asyncio.run(until(lambda: sandbox.lost))
    with pytest.raises(SandboxLost), life.sync.session("sample-7") as sandbox:
        asyncio.run(reaper().end("test", [sandbox.name], "by hand"))
        asyncio.run(until(lambda: sandbox.lost))
    assert cloud.live == 0


async def test_a_start_that_is_taken_gives_up_that_sandbox_and_tries_another(
    lifecycle, cloud, reaper
):
    cloud.set(create=["never", "ok"])
    life = lifecycle(sandbox_lease=BEAT_OFTEN, startup_timeout=600.0, init_wall_budget=600.0)
    start = asyncio.create_task(life.start())
    await until(lambda: cloud.live)
    (record,) = life.registry.look().records
    await reaper().end("test", [record.name], "by hand")
    async with asyncio.timeout(100):
        sandbox = await start
    assert sandbox.name != record.name
    await life.stop(sandbox)
    assert cloud.stats()["creates"] == 2
    assert (await gate_of(life).status()).in_flight == 0


async def test_whatever_fails_in_a_heartbeat_the_next_one_comes(lifecycle, cloud, monkeypatch):
    life, renewals = lifecycle(sandbox_lease=BEAT_OFTEN), []
    renew = life.registry.renew

    def fails_first(rows):
        renewals.append(rows)
        if len(renewals) == 1:
            raise ValueError("a reply that nobody can read")
        return renew(rows)

    monkeypatch.setattr(life.registry, "renew", fails_first)
    async with life.open():
        await until(lambda: len(renewals) > 2)


async def test_of_several_who_lose_a_sandbox_each_is_told(lifecycle, cloud, reaper):
    def fails():
        raise RuntimeError("its event loop is closed")

    life, told = lifecycle(sandbox_lease=BEAT_OFTEN), threading.Event()
    sandbox = await life.start()
    name, fence = sandbox.name, sandbox._box.fence
    for call in (fails, told.set):
        user = Box(name, fence)
        user.on_taken(call)
        life.keeper.keep(user)
    await reaper().end("test", [name], "by hand")
    await until(told.is_set)
    assert sandbox.lost
    await life.stop(sandbox)


async def test_a_heartbeat_as_a_sandbox_is_forgotten_does_not_take_it_for_lost(
    lifecycle, cloud, caplog, monkeypatch
):
    life = lifecycle()
    sandbox = await life.start()
    rows = [(sandbox.name, sandbox._box.fence, life.keeper.lease)]
    forget = life.registry.forget

    def and_a_heartbeat(*record):
        forgotten = forget(*record)
        life.keeper._digest(rows, life.registry.renew(rows))
        return forgotten

    monkeypatch.setattr(life.registry, "forget", and_a_heartbeat)
    assert await life.stop(sandbox)
    assert not sandbox.lost
    assert "taken over" not in caplog.text


async def test_after_a_thread_that_could_not_start_the_next_one_beats(
    lifecycle, cloud, monkeypatch
):
    life, renewals = lifecycle(sandbox_lease=BEAT_OFTEN), []

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            life.keeper.keep(Box("mine", "1"))
    monkeypatch.setattr(life.registry, "renew", renewals.append)
    life.keeper.keep(other := Box("other", "2"))
    await until(lambda: renewals)
    assert renewals[0] == [("other", "2", BEAT_OFTEN)]
    life.keeper.drop(other)


def test_a_lost_sandbox_says_its_remedy_once():
    gone = SessionGone("no session 'a' lives on this machine. Open a new one")
    said = str(SandboxLost("a", f"it died: {gone}"))
    assert said.count("Open a new one") == 1
    assert said.startswith("sandbox a is lost: it died: no session 'a' lives on this machine.")

"""Who may reap, and when: nobody is reaped for an outage of Redis."""

import asyncio

import pytest

from ground.redis.connect import target_of
from tests.harness.servers import PrivateRedis
from tests.worker.lifecycle.cloud import CloudProvider
from tests.worker.lifecycle.conftest import quick, until
from worker.lifecycle import SandboxLifecycle, SandboxSpec
from worker.lifecycle.reaper.reaper import Offices, Reaper
from worker.lifecycle.registry.registry import Registry, runs

LEASE = 1.0


@pytest.fixture
async def watched(private_redis, cloud):
    """A server; a sandbox on it whose owner lives, and renews when the test does; its reaper,
    which has been in office for long enough."""
    server = private_redis(aof=False)
    settings = quick(sandbox_lease=LEASE, reap_interval=10.0)
    life = SandboxLifecycle(server.url, cloud.provider, run="test", settings=quick())
    sandbox = await life.start()
    life.keeper.drop(sandbox._box)
    reaper = Reaper(server.url, run="test", settings=settings)
    async with asyncio.timeout(100):
        # Until it acts, and says when the sandbox's own lease ends.
        renew(life, sandbox, 60.0)
        while (await reaper.look())["test"].due < 2 * LEASE:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    yield server, life, sandbox, reaper
    await life.stop(sandbox)
    await reaper.close()
    life.registry.close()


def renew(life, sandbox, lease):
    """The beat of the owner's heart: it is still the owner."""
    assert life.registry.renew([(sandbox.name, sandbox._box.fence, lease)]) == [True]


def about_to_end(life, sandbox):
    """As if it had been renewed a lease ago."""
    key = life.registry._keys[1]
    life.registry._client.zadd(key, {sandbox.name: (life.registry.look().now + LEASE / 4) * 1e6})


async def outage(server: PrivateRedis) -> None:
    """Longer than any lease of an owner."""
    server.freeze()
    await asyncio.sleep(1.5 * LEASE)  # a server's clock goes on while it is frozen
    server.thaw()


async def test_no_office_outlasts_an_outage_that_ends_an_owners_lease(watched):
    server, life, sandbox, reaper = watched
    about_to_end(life, sandbox)
    await outage(server)
    found = (await reaper.look())["test"]
    assert (found.elected, found.ended) == (True, [])
    assert found.due <= LEASE
    renew(life, sandbox, 60.0)


async def test_an_outage_between_the_election_and_the_claim_ends_the_office(watched, monkeypatch):
    server, life, sandbox, reaper = watched
    registry = reaper._registry("test")
    elect = registry.elect

    def elected_and_then_cut_off(reaper, scope, lease):
        since = elect(reaper, scope, lease)
        if scope:
            about_to_end(life, sandbox)
            asyncio.run(outage(server))
        return since

    monkeypatch.setattr(registry, "elect", elected_and_then_cut_off)
    assert (await reaper.look())["test"].ended == []
    renew(life, sandbox, 60.0)


async def test_an_office_is_kept_for_as_long_as_its_holder_lives(real_redis):
    """Also through a look that takes long: a provider that hangs costs no election."""
    registry, beats = Registry(target_of(real_redis), "test"), []
    elect = registry.elect

    def counted(*terms):
        beats.append(elect(*terms))
        return beats[-1]

    registry.elect = counted
    holder, other = Offices(4.0, 600.0), Offices(4.0, 600.0)
    await holder.stand(registry, "modal")
    keeping = asyncio.create_task(holder.keep())
    await until(lambda: len(beats) > 4)
    assert beats[-1] > 2.0, "it was in office for longer than one lease of it, 2 s, lasts"
    assert await other.stand(registry, "modal") is None
    assert await other.stand(registry, "local@here") is not None
    keeping.cancel()
    registry.close()


async def test_no_office_is_kept_for_a_look_that_never_ends(real_redis, caplog):
    registry = Registry(target_of(real_redis), "test")
    stuck, other = Offices(1.0, 0.0), Offices(1.0, 0.0)
    await stuck.stand(registry, "modal")
    keeping = asyncio.create_task(stuck.keep())
    async with asyncio.timeout(100):
        while await other.stand(registry, "modal") is None:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        while "another reaper may take over" not in caplog.text:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    keeping.cancel()
    registry.close()


async def test_every_look_tells_that_it_has_ended(reaper, monkeypatch):
    eye, ended = reaper(), []
    monkeypatch.setattr(eye._offices, "looked", lambda: ended.append(len(looks)))
    looks = []

    async def look():
        looks.append(1)
        if len(looks) == 1:
            raise OSError("one that failed has ended too")
        return {}

    monkeypatch.setattr(eye, "look", look)
    looking = asyncio.create_task(eye._look_on())
    await until(lambda: len(ended) > 1)
    assert ended[:2] == [1, 2]
    looking.cancel()


async def test_a_reaper_leaves_what_it_cannot_reach_to_one_that_can(lifecycle, cloud):
    """Elsewhere "not found" proves nothing: it is neither ended nor judged from there."""
    life = lifecycle(sandbox_grace=0.0)
    here, elsewhere = (
        Reaper(life.target, settings=quick(sandbox_grace=0.0), ours=provider)
        for provider in (cloud.provider, Elsewhere(cloud.address))
    )
    for dead in ("known", "unanswered"):
        await cloud.provider.create(SandboxSpec(), name=dead, tags={}, ttl=600)
        life.registry.open(
            dead, "nobody", 0.0, provider=cloud.provider.name, scope=cloud.provider.scope,
            instance="", permits=(), dies_after=600.0,
        )  # fmt: skip
    looked = (await elsewhere.look(wait=False))["test"]
    assert (looked.ended, looked.failed, cloud.live) == ([], {}, 2)
    by_hand = await elsewhere.end("test", ["unanswered"], "by hand")
    assert "is reached from tests.worker.lifecycle" in by_hand.failed["unanswered"]
    await until_ended(here, cloud)
    assert life.registry.look().count == 0
    for eye in (here, elsewhere):
        await eye.close()


async def until_ended(reaper, cloud):
    async with asyncio.timeout(100):
        while cloud.live:
            await reaper.look(wait=False)
            await asyncio.sleep(0.05)


class Elsewhere(CloudProvider):
    """The same provider on another machine: of this one's sandboxes it finds none."""

    scope = "cloud@elsewhere"

    async def find(self, name):
        return None

    async def terminate(self, id):
        return


async def test_a_registry_in_which_nothing_has_been_for_long_is_forgotten(lifecycle, cloud, reaper):
    life = lifecycle()
    async with life.open():
        assert not life.registry.retire(0.0)
    assert not life.registry.retire(3600.0)
    eye = reaper()
    assert list(await eye.look(wait=False)) == ["test"]
    assert life.registry.retire(0.0)
    assert (await eye.look(), eye._registries) == ({}, {})
    assert life.registry._client.keys("penstock:sandbox*") == []
    async with life.open():
        assert list(await eye.look(wait=False)) == ["test"]


async def test_a_run_that_begins_again_while_it_is_retired_stays_listed(lifecycle, monkeypatch):
    life = lifecycle()
    async with life.open():
        pass
    registry, call = life.registry, life.registry._call

    def retired_and_then_begun(script, *terms):
        reply = call(script, *terms)
        monkeypatch.undo()
        registry.session("sample-7", "box", "somebody", 60.0)
        return reply

    monkeypatch.setattr(registry, "_call", retired_and_then_begun)
    assert registry.retire(0.0)
    assert runs(life.target) == ["test"]


def test_a_record_is_written_to_a_server_that_has_forgotten_the_scripts(private_redis) -> None:
    registry = Registry(private_redis(aof=False).url, "test")
    for name in ("first", "second"):
        registry._client.script_flush()
        registry.open(name, "me", 60.0, provider="p", instance="", permits=(), dies_after=60.0)
    assert {record.name for record in registry.look().records} == {"first", "second"}
    assert runs(registry.target) == ["test"]
    registry.close()

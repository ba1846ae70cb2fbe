"""The reaper ends what nobody keeps, and nothing that somebody does."""

import asyncio
import threading
import time

import pytest
from redis.exceptions import RedisError

from ground import SettingError
from ground.redis.connect import target_of
from tests.harness import doomed, killing
from tests.worker.lifecycle.cloud import CloudProvider
from tests.worker.lifecycle.conftest import gate_of, quick, soon, until
from tests.worker.lifecycle.leases import began_long_ago, leases_end
from tests.worker.lifecycle.owner import opens_and_waits
from worker.lifecycle import SandboxLifecycle, StartFailed
from worker.lifecycle.reaper.reaper import Reaper
from worker.lifecycle.registry.records import StartingPermit


async def ended(cloud, reaper, within=100):
    """Look until nothing lives."""
    async with asyncio.timeout(within):
        while cloud.live:
            await reaper.look()
            await asyncio.sleep(0.05)


async def empty(life, reaper, within=100):
    async with asyncio.timeout(within):
        while life.registry.look().count or (await gate_of(life).status()).in_flight:
            await reaper.look()
            await asyncio.sleep(0.05)


async def test_the_sandboxes_of_a_killed_process_are_ended(private_redis, cloud):
    server = private_redis(aof=False)
    with killing.Child(opens_and_waits, server.url, cloud.address, 600) as owner:
        owner.wait_for("open")
        owner.kill()
    assert cloud.live == 1
    leases_end(server.url)
    await ended(cloud, Reaper(server.url, settings=soon()))


async def test_a_frozen_owner_within_its_lease_keeps_its_sandbox(private_redis, cloud):
    server = private_redis(aof=False)
    reaper = Reaper(server.url, settings=quick(sandbox_lease=20.0))
    with killing.Child(opens_and_waits, server.url, cloud.address, 0.5, 20.0) as owner:
        owner.wait_for("open")
        owner.freeze()
        for _ in range(10):
            await reaper.look(wait=False)
            await asyncio.sleep(0.05)  # ten looks of a reaper, while its lease runs
        assert cloud.live == 1
        owner.thaw()
        assert owner.wait_for("done")["alive"]
    assert cloud.live == 0


async def test_an_owner_that_wakes_too_late_is_told_and_harms_nobody(private_redis, cloud):
    server = private_redis(aof=False)
    with killing.Child(opens_and_waits, server.url, cloud.address, 0.5) as owner:
        owner.wait_for("open")
        owner.freeze()
        leases_end(server.url)
        await ended(cloud, Reaper(server.url, settings=soon()))
        owner.thaw()
        assert owner.wait_for("done") == {"reached": "done", "alive": False}
        assert owner.outcome().killed is False


async def test_an_owner_that_renews_late_keeps_what_nobody_has_claimed(lifecycle, cloud, reaper):
    life = lifecycle()
    sandbox = await life.start()
    box = sandbox._box
    life.keeper.drop(box)
    leases_end(life.target)
    assert life.registry.renew([(box.name, box.fence, 30.0)]) == [True]
    await reaper().look(wait=False)
    assert await sandbox.is_alive()
    await life.stop(sandbox)


async def test_of_what_was_claimed_its_last_owner_changes_nothing(lifecycle, cloud, reaper):
    life = lifecycle()
    sandbox = await life.start()
    life.keeper.drop(sandbox._box)
    cloud.set(terminate=["fail", "fail"])
    assert sandbox.name in (await reaper().end("test", [sandbox.name], "by hand")).failed
    mine = (sandbox.name, sandbox._box.fence)
    assert life.registry.renew([(*mine, 30.0)]) == [False]
    assert not life.registry.advance(*mine, "READY")
    assert not life.registry.condemn(*mine, "too late")
    assert not life.registry.forget(*mine, "ended")
    assert life.registry.look().states == {"TERMINATING": 1}
    await life.stop(sandbox)
    await empty(life, reaper())


async def test_after_an_outage_owners_renew_before_anybody_reaps(lifecycle, cloud, reaper):
    """A reaper newly elected lets one lease go by: all have ended, and none of it is proof."""
    life = lifecycle(sandbox_lease=30.0)
    sandbox = await life.start()
    box = sandbox._box
    life.registry._client.zadd(life.registry._keys[1], {box.name: 1})  # as long ago as it can be
    found = await reaper(sandbox_lease=30.0).look()
    assert found["test"].elected
    assert found["test"].due > 20
    assert cloud.live == 1
    await life.stop(sandbox)


async def test_to_end_one_touches_no_other_whatever_its_lease(lifecycle, cloud, reaper):
    """After an outage the leases of the living are over too, until they have renewed them."""
    life = lifecycle(sandbox_lease=30.0)
    living, other = await asyncio.gather(life.start(), life.start())
    life.registry._client.zadd(life.registry._keys[1], {living.name: 1})
    found = await reaper(sandbox_lease=30.0).end("test", [other.name], "by hand")
    assert (found.ended, found.failed) == ([other.name], {})
    assert await living.is_alive()
    assert await life.stop(living)


async def test_of_any_number_each_is_ended(lifecycle, cloud, reaper):
    life = lifecycle()
    for gone in ("named", "due"):
        names = [f"penstock-{gone}-{number}" for number in range(130)]
        for name in names:
            life.registry.open(
                name, "nobody", 600.0 if gone == "named" else 0.0, provider="", instance="",
                permits=(), dies_after=600.0,
            )  # fmt: skip
        if gone == "named":
            found = await reaper().end("test", names, "by hand")
        else:
            found = (await reaper().look(wait=False))["test"]
        assert (sorted(found.ended), found.failed) == (sorted(names), {})


async def test_two_reapers_at_once_end_each_sandbox_once_and_no_living_one(
    lifecycle, cloud, reaper
):
    life = lifecycle(limit=8)
    living, *dead = await asyncio.gather(*(life.start() for _ in range(6)))
    for sandbox in dead:
        life.keeper.drop(sandbox._box)
        life.registry.condemn(sandbox.name, "", "by hand")
    first, second = reaper(), reaper()
    await asyncio.gather(first.look(wait=False), second.look(wait=False))
    assert list(cloud.stats()["names"].values()) == [living.name]
    assert cloud.stats()["terminates"] == 5
    assert await life.stop(living)
    await empty(life, first)


async def test_a_record_says_why_its_sandbox_was_left_to_the_reaper(lifecycle, cloud, reaper):
    life = lifecycle()
    sandbox = await life.start()
    life.keeper.drop(sandbox._box)
    life.registry.condemn(sandbox.name, "", "by hand, " + "x" * 1000)
    (record,) = life.registry.look().records
    assert record.error == f"by hand, {'x' * 491}"
    await empty(life, reaper())


async def test_only_one_of_two_reapers_is_elected(lifecycle, cloud, reaper):
    life = lifecycle()
    async with life.open():
        first, second = reaper(sandbox_lease=60.0), reaper(sandbox_lease=60.0)
        assert (await first.look())["test"].elected
        assert not (await second.look())["test"].elected


async def test_a_provider_that_lists_the_dead_misleads_nobody(lifecycle, cloud, reaper):
    life = lifecycle()
    async with life.open() as sandbox:
        cloud.set(stale=["penstock-long-dead", sandbox.name])
        await (eye := reaper(sandbox_grace=0.0)).look(wait=False)
        await eye.look(wait=False)
        assert await sandbox.is_alive()


async def test_a_provider_that_cannot_find_the_young_is_not_believed(lifecycle, cloud, reaper):
    """Its creation was never answered: not found means gone only after the grace."""
    cloud.set(create=["lost"])
    life = lifecycle(limit=1, start_attempts=1, sandbox_grace=0.8)

    async def blind(name):
        return None

    life.provider.find = blind
    with pytest.raises(Exception, match="after 1 attempt"):
        await life.start()
    del life.provider.find
    assert cloud.live == 1
    assert (await gate_of(life).status()).in_flight == 1  # it may be starting, for all we know
    await ended(cloud, eye := reaper())
    await empty(life, eye)


async def test_an_unregistered_sandbox_is_spared_while_it_is_young(lifecycle, cloud, reaper):
    life = lifecycle()
    async with life.open():
        pass  # the registry and its fleet exist
    fleet = life.registry.look().facts["fleet"]
    tags = {"penstock-fleet": fleet, "penstock-run": "test"}
    cloud.ask("create", name="penstock-stray", tags=tags, image="", ttl=600)
    cloud.ask("create", name="another-fleets", tags=tags | {"penstock-fleet": "other"}, image="",
              ttl=600)  # fmt: skip
    eye = reaper(sandbox_grace=0.5)
    async with asyncio.timeout(100):
        while not (found := (await eye.look(wait=False))["test"]).young:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert found.strays == []
    assert cloud.live == 2
    async with asyncio.timeout(100):
        while cloud.live > 1:
            await eye.look(wait=False)
            await asyncio.sleep(0.05)
    assert list(cloud.stats()["names"].values()) == ["another-fleets"]


async def test_the_strays_of_each_run_are_ended_whatever_runs_share_a_provider(
    redis, cloud, reaper
):
    for run in ("one", "other"):
        life = SandboxLifecycle(redis, cloud.provider, run=run, settings=quick())
        async with life.open():
            pass  # the registry and its fleet exist
        tags = {"penstock-fleet": life.registry.look().facts["fleet"], "penstock-run": run}
        cloud.ask("create", name=f"penstock-{run}", tags=tags, image="", ttl=600)
        life.registry.close()
    eye = reaper()
    async with asyncio.timeout(100):
        while cloud.live:
            await eye.look(wait=False)
            await asyncio.sleep(0.05)


async def test_a_registry_that_cannot_be_read_keeps_the_reaper_from_no_other(
    redis, lifecycle, cloud, reaper
):
    life = lifecycle()
    sandbox = await life.start()
    life.keeper.drop(sandbox._box)
    life.registry.condemn(sandbox.name, "", "by hand")
    redis.set("penstock:sandbox:{broken}", "no hash")
    redis.sadd("penstock:sandboxes", "broken")
    with pytest.raises(RedisError, match="WRONGTYPE"):
        await reaper().look(wait=False)
    assert cloud.live == 0


async def test_a_terminate_that_is_told_not_found_is_success(lifecycle, cloud):
    life = lifecycle()
    sandbox = await life.start()
    cloud.ask("terminate", id=sandbox.id)
    assert await life.stop(sandbox)
    assert life.registry.look().count == 0


async def test_while_the_provider_is_down_nothing_is_forgotten(lifecycle, cloud, reaper):
    life = lifecycle(teardown_timeout=1.0)
    sandboxes = await asyncio.gather(*(life.start() for _ in range(3)))
    cloud.set(down=True)
    await asyncio.gather(*map(life.stop, sandboxes))
    eye = reaper()
    began = time.monotonic()
    while min(record.tries for record in life.registry.look().records) < 2:
        await eye.look(wait=False)
        await asyncio.sleep(0.05)
        assert time.monotonic() - began < 100
    seen = life.registry.look()
    assert seen.count == 3
    assert all("503: down" in record.error for record in seen.records)
    assert int(seen.facts["handed_over"]) >= 6
    cloud.set(down=False)
    await ended(cloud, eye)
    await empty(life, eye)


async def test_permits_of_a_process_killed_while_it_started_come_back(private_redis, cloud):
    """The permit belongs to the record: held while the sandbox may start, freed when it is dead."""
    server = private_redis(aof=False)
    cloud.set(never_ready=1.0)
    life = SandboxLifecycle(server.url, cloud.provider, run="test", settings=quick())
    at = killing.after("worker.lifecycle.keeper:Keeper.advance")
    with killing.Child(opens_and_waits, server.url, cloud.address, 600, at=at) as owner:
        assert owner.outcome().killed
    assert (await gate_of(life).status()).in_flight == 1
    leases_end(life.target)
    eye = Reaper(server.url, settings=soon())
    await ended(cloud, eye)
    await empty(life, eye)
    life.registry.close()


@pytest.mark.parametrize("provider", ["test.of.mine:Provider", "local"])
async def test_a_start_that_no_reaper_here_can_end_keeps_its_permit_no_longer_than_a_start_lasts(
    lifecycle, reaper, caplog, provider
):
    """Its machine died with it, or its provider is one that the reapers may not make."""
    caplog.set_level("INFO", "penstock.worker")
    life, eye = lifecycle(limit=1), reaper()
    permit = await gate_of(life).acquire()
    kept = StartingPermit(gate_of(life).name, permit.id, permit.fence)
    life.registry.open(
        "penstock-lost", "nobody", 60.0, provider=provider, scope="a machine that is off",
        instance="", permits=[kept], dies_after=3600.0,
    )  # fmt: skip
    await permit.entrust(3600.0)
    began_long_ago(life.target, "penstock-lost")
    await eye.look(wait=False)
    assert (await gate_of(life).status()).in_flight == 1  # its owner lives, as far as anybody knows
    leases_end(life.target)
    await eye.look(wait=False)
    assert (await gate_of(life).status()).in_flight == 0
    assert [record.name for record in life.registry.look().records] == ["penstock-lost"]
    assert "its STARTING permits are free" in caplog.text
    again = await gate_of(life).acquire(timeout=0.0)
    await eye.look(wait=False)
    assert (await gate_of(life).status()).in_flight == 1
    again.release()


async def test_a_start_whose_owner_is_dead_keeps_its_permit_for_as_long_as_a_start_lasts(
    lifecycle, reaper
):
    life = lifecycle(limit=1)
    permit = await gate_of(life).acquire()
    kept = StartingPermit(gate_of(life).name, permit.id, permit.fence)
    life.registry.open(
        "penstock-lost", "nobody", 0.0, provider="local", scope="a machine that is off",
        instance="", permits=[kept], dies_after=3600.0,
    )  # fmt: skip
    await permit.entrust(3600.0)
    await reaper().look(wait=False)
    assert (await gate_of(life).status()).in_flight == 1


async def test_a_permit_whose_sandbox_was_never_asked_for_waits_for_no_startup_timeout(
    private_redis, cloud
):
    """Nobody asks for it any more once its starter is dead: a grace later, not found means gone."""
    server = private_redis(aof=False)
    at = killing.before("tests.worker.lifecycle.cloud:CloudProvider.create")
    with killing.Child(starts_once, server.url, cloud.address, 3600.0, at=at) as owner:
        assert owner.outcome().killed
    life = SandboxLifecycle(server.url, cloud.provider, run="test", settings=quick())
    assert (await gate_of(life).status()).in_flight == 1
    leases_end(life.target)
    await empty(life, Reaper(server.url, settings=soon()))
    assert cloud.stats().get("creates", 0) == 0
    life.registry.close()


async def starts_once(url: str, address: str, seconds: float, lease: float = 60.0) -> None:
    settings = quick(
        startup_timeout=seconds, init_wall_budget=seconds, start_attempts=1, sandbox_lease=lease
    )
    life = SandboxLifecycle(url, CloudProvider(address), run="test", settings=settings)
    try:
        await life.stop(await life.start())
    except StartFailed as failed:
        doomed.reached("failed", why=str(failed))


async def test_a_starter_that_stood_still_for_longer_than_its_lease_asks_for_nothing(
    private_redis, cloud
):
    server = private_redis(aof=False)
    at = killing.freezing(killing.before("worker.lifecycle.starting:Start._bring_up"))
    life = SandboxLifecycle(server.url, cloud.provider, run="test", settings=quick())
    with killing.Child(starts_once, server.url, cloud.address, 80.0, 8.0, at=at) as owner:
        owner.wait_for("worker.lifecycle.starting:Start._bring_up")
        await empty(life, Reaper(server.url, settings=soon()))
        owner.thaw()
        assert "SandboxLost" in owner.wait_for("failed")["why"]
    assert cloud.stats().get("creates", 0) == 0
    life.registry.close()


async def test_one_that_turns_up_late_is_ended_as_soon_as_it_is_found(lifecycle, cloud, reaper):
    life = lifecycle(sandbox_grace=3600.0)
    life.registry.open(
        "penstock-late", "nobody", 0.0, provider=life.provider.name, instance="", permits=(),
        dies_after=7200.0,
    )  # fmt: skip
    eye = reaper(sandbox_grace=3600.0)
    assert "not found" in (await eye.look_at("test")).failed["penstock-late"]
    cloud.ask("create", name="penstock-late", tags={}, image="", ttl=600)
    await ended(cloud, eye)
    assert life.registry.look().count == 0


async def test_a_sandbox_past_its_providers_time_to_live_is_forgotten(lifecycle, cloud, reaper):
    """Nobody could end it; its provider has. Until then it is tried again and again."""
    life = lifecycle(sandbox_ttl=4.0, startup_timeout=2.0, attempt_floor=0.0, sandbox_grace=0.1)
    sandbox = await life.start()
    cloud.set(terminate=["fail"] * 1000)
    assert not await life.stop(sandbox)
    eye = reaper()
    assert "cannot terminate" in (await eye.look_at("test")).failed[sandbox.name]
    async with asyncio.timeout(100):
        while life.registry.look().count:
            await eye.look_at("test")
            await asyncio.sleep(0.05)


async def test_a_registry_that_was_lost_leaves_its_owners_to_end_what_is_theirs(real_redis, cloud):
    target = target_of(real_redis)
    life = SandboxLifecycle(target, cloud.provider, run="test", settings=quick())
    sandbox = await life.start()
    real_redis.flushall()
    await life.stop(sandbox)
    assert cloud.live == 0
    life.registry.close()


async def test_jobs_go_on_while_a_provider_is_made_and_one_that_is_missing_is_told_of_once(
    lifecycle, cloud, reaper, monkeypatch, caplog
):
    life, eye, made = lifecycle(), reaper(), []
    begun, going_on = threading.Event(), threading.Event()

    def makes(name):
        begun.set()
        made.append(going_on.wait(100))  # in vain where the event loop waits for this
        raise SettingError("provider", "is missing")

    monkeypatch.setattr("worker.lifecycle.provider.provider_named", makes)
    caplog.set_level("INFO", "penstock.worker")
    async with life.open():
        looking = asyncio.create_task(eye.look(wait=False))
        await until(begun.is_set)
        going_on.set()
        await looking
        await eye.look(wait=False)
    assert made == [True, True], "what is missing may come"
    assert caplog.text.count("are left to other reapers") == 1

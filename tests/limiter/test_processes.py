"""A process ends, is killed, or is frozen: what a gate makes of it."""

import asyncio
import multiprocessing
import time

import pytest

from limiter import Adaptive, TokenBucket, Wait
from tests.harness import doomed, killing
from tests.harness.servers import until
from tests.limiter import scenarios
from tests.limiter.in_flight import in_line, served, settled

pytestmark = pytest.mark.usefixtures("no_engine_is_left_running_hot")

SHORT = 2.0  # a lease that a test waits for, and its holder is to keep meanwhile
DOOMED = 0.6  # one whose holder dies
LONG = 60.0  # one that must not be waited for
SOON = 100.0  # only a hang takes longer


async def test_a_process_that_ends_in_order_returns_its_permits_at_once(
    real_redis, shared_server, gate_at, name
):
    gate = gate_at(shared_server.target)
    assert killing.run(scenarios.holds, shared_server.url, name, LONG, "returns").returned
    status = await gate.status()
    assert (status.in_flight, status.released, status.expired) == (0, 1, 0)


@pytest.mark.parametrize("how", ["os._exit", "SIGKILL"])
async def test_a_process_that_just_ends_leaves_its_permit_to_the_lease(
    real_redis, shared_server, how, gate_at, name
):
    gate = gate_at(shared_server.target)
    at = killing.named("holding") if how == "SIGKILL" else None
    killing.run(scenarios.holds, shared_server.url, name, DOOMED, how, at=at)
    (await gate.acquire(timeout=SOON)).release()
    status = await gate.status()
    assert (status.granted, status.expired) == (2, 1)


def holds_for_orphans(url, name):
    gate = TokenBucket(url, name, limit=1, lease=DOOMED, orphan_hold=600)
    with gate:
        doomed.reached("holding")


async def test_a_dead_owners_permit_is_kept_for_the_work_that_outlives_it(
    real_redis, shared_server, gate_at, name
):
    killing.run(holds_for_orphans, shared_server.url, name, at=killing.named("holding"))
    gate = gate_at(shared_server.target)
    (orphan,) = (await gate.status()).leases
    assert orphan.expires_in > 500
    after = orphan.expires_in - 2 * DOOMED
    until(lambda: gate.sync.status().leases[0].expires_in < after, "the end of its own lease")
    assert isinstance(await gate.try_acquire(), Wait)
    await gate.free(orphan.id, orphan.fence)
    (await gate.acquire(timeout=SOON)).release()


async def test_a_frozen_holder_finds_its_permit_lost(real_redis, shared_server, gate_at, name):
    gate = gate_at(shared_server.target)
    with killing.Child(scenarios.holds, shared_server.url, name, SHORT, "stays") as child:
        child.wait_for("holding")
        child.freeze()
        permit = await gate.acquire(timeout=SOON)
        child.thaw()
        assert child.outcome().returned == "lost"
        assert not permit.lost
        assert (await gate.status()).in_flight == 1
        permit.release()


async def test_a_frozen_waiter_is_passed_over_and_has_its_old_place_again(
    real_redis, shared_server, gate_at, name
):
    gate = gate_at(shared_server.target)
    permit = await gate.acquire()
    with killing.Child(scenarios.waits, shared_server.url, name, SHORT) as child:
        await settled(gate, waiting=1)
        second = await in_line(gate, 2)
        child.freeze()
        until(lambda: gate.sync.status().dropped == 1, "the end of its heartbeat's life")
        third = await in_line(gate, 2)
        child.thaw()
        await settled(gate, waiting=3)
        permit.release()
        child.wait_for("holding")
        (await served(second)).release()
        (await served(third)).release()
        assert child.outcome().returned is False


async def test_a_frozen_waiter_does_not_take_the_grant_it_slept_through(
    real_redis, shared_server, gate_at, name
):
    gate = gate_at(shared_server.target)
    permit = await gate.acquire()
    with killing.Child(scenarios.waits, shared_server.url, name, SHORT) as child:
        await settled(gate, waiting=1)
        child.freeze()
        permit.release()  # into the frozen one's hands: it beat a moment ago
        assert (await gate.status()).in_flight == 1
        taken = await gate.acquire(timeout=SOON)
        child.thaw()
        await settled(gate, waiting=1)
        taken.release()
        assert child.outcome().returned is False


async def test_a_line_of_dead_waiters_delays_the_living_by_no_more_than_their_lease(
    real_redis, shared_server, gate_at, name
):
    gate = gate_at(shared_server.target, lease=3)
    permit = await gate.acquire()
    with killing.Child(scenarios.many_wait, shared_server.url, name, 3, 1500) as child:
        await settled(gate, waiting=1500)
        behind = await in_line(gate, 1501)
        child.kill()
    permit.release()
    (await served(behind)).release()
    until(lambda: gate.sync.status().in_flight == 0, "the release")
    status = await gate.status()
    assert (status.dropped + status.expired, status.waiting) == (1500, 0)


async def test_nobody_polls_behind_a_dead_waiter(real_redis, shared_server, gate_at, name):
    """While nothing comes free, those behind it still wait for an event."""
    gate = gate_at(shared_server.target, lease=LONG)
    permit = await gate.acquire()
    with killing.Child(scenarios.waits, shared_server.url, name, SHORT) as child:
        await settled(gate, waiting=1)
        behind = await in_line(gate, 2)
        child.kill()
    until(lambda: gate.sync.status().dropped == 1, "the dead one's end")
    calls = real_redis.info("commandstats")["cmdstat_evalsha"]["calls"]
    await asyncio.sleep(0.5)  # in which one who polls would ask
    assert real_redis.info("commandstats")["cmdstat_evalsha"]["calls"] < calls + 20
    permit.release()
    (await served(behind)).release()


async def test_an_idle_process_does_nothing(real_redis, shared_server, gate_at):
    """Also when the heartbeat that was planned finds nothing to renew."""
    gate = gate_at(shared_server.target, lease=0.6)
    (await gate.acquire()).release()
    await asyncio.sleep(0.4)  # longer than half a lease: a heartbeat was planned
    before = time.process_time()
    await asyncio.sleep(0.4)  # what its processor time is measured over
    assert time.process_time() - before < 0.2


@pytest.mark.parametrize("how", ["fork", "spawn", "forkserver"])
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_child_of_multiprocessing_that_just_returns_gives_its_permits_back(
    how, real_redis, shared_server, name
):
    """At once, also where `atexit` is not called, and after its threads have ended."""
    args = (shared_server.url, name)
    child = multiprocessing.get_context(how).Process(target=scenarios.ends_well, args=args)
    child.start()
    child.join(100)
    assert child.exitcode == 0
    status = TokenBucket(shared_server.url, name, limit=2).sync.status()
    assert (status.granted, status.released, status.in_flight) == (2, 2, 0)


def reports_and_dies(url, name):
    gate = TokenBucket(url, name, limit=Adaptive(start=1, min=1, max=9), lease=DOOMED)
    with gate as permit:
        permit.throttled()
        doomed.reached("holding")


async def test_a_killed_holder_reports_nothing(real_redis, shared_server, gate_at, name):
    killing.run(reports_and_dies, shared_server.url, name, at=killing.named("holding"))
    gate = TokenBucket(shared_server.target, name, limit=Adaptive(start=1, min=1, max=9))
    permit = await gate.acquire(timeout=SOON)
    permit.unreported()
    permit.release()
    status = await gate.status()
    assert (status.limit, status.expired, status.adaptive.throttled) == (1, 1, 0)

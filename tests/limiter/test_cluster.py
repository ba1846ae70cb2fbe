"""A Redis Cluster: gates on every node in one process, and a node that fails alone."""

import asyncio
import gc
import itertools

import pytest

from limiter import Adaptive, GateUnavailable, PermitLost, TokenBucket, engine, remove_gate
from tests.harness import killing
from tests.harness.servers import until
from tests.limiter.in_flight import Observer, in_line, served, served_in_turn, settled

SOON = 100.0


# A process keeps the first terms it hears of a gate, so each test has gates of its own.
_names = (f"gate-{n}" for n in itertools.count())


def key(name):
    return f"penstock:gate:{{{name}}}"


@pytest.fixture
def names(redis_cluster):
    """One gate's name for each node, in the order of the nodes."""
    found = {}
    while len(found) < len(redis_cluster.nodes):
        name = next(_names)
        found[redis_cluster.nodes.index(redis_cluster.node_of(key(name)))] = name
    return [found[node] for node in range(len(found))]


def gates_at(cluster, names, lease=60.0, **more):
    return [TokenBucket(cluster.target, name, limit=1, lease=lease, **more) for name in names]


async def test_one_process_waits_on_every_node_at_once(redis_cluster, names):
    gates = gates_at(redis_cluster, names)
    permits = [await gate.acquire(timeout=SOON) for gate in gates]
    first = [await in_line(gate, 1) for gate in gates]
    second = [await in_line(gate, 2) for gate in gates]
    for permit in permits:
        permit.release()
    for task in first:
        (await served(task)).release()
    for task in second:
        (await served(task)).release()
    assert [(await gate.status()).granted for gate in gates] == [3, 3, 3]


async def test_a_cut_connection_costs_a_waiter_nothing(redis_cluster, names):
    gates = gates_at(redis_cluster, names, lease=6.0)
    permits = [await gate.acquire(timeout=SOON) for gate in gates]
    first = [await in_line(gate, 1) for gate in gates]
    second = [await in_line(gate, 2) for gate in gates]
    for node, permit in zip(redis_cluster.nodes, permits, strict=True):
        assert node.ask("CLIENT", "KILL", "TYPE", "normal") > 0
        permit.release()
    for task, behind in zip(first, second, strict=True):
        granted = await served(task)
        assert not behind.done()
        granted.release()
        (await served(behind)).release()
    assert [(await gate.status()).granted for gate in gates] == [3, 3, 3]


async def test_the_data_of_a_gate_is_on_its_own_node(redis_cluster, names):
    gates = gates_at(redis_cluster, names)
    permits = [await gate.acquire(timeout=SOON) for gate in gates]
    for node, name in zip(redis_cluster.nodes, names, strict=True):
        assert node.ask("ZCARD", f"{key(name)}:leases") == 1
    for permit in permits:
        permit.release()


async def test_flushed_scripts_are_loaded_again_on_every_node(redis_cluster, names):
    gates = gates_at(redis_cluster, names)
    for gate in gates:
        permit = await gate.acquire(timeout=SOON)
        for node in redis_cluster.nodes:
            node.ask("SCRIPT", "FLUSH")
        waiter = await in_line(gate, 1)
        for node in redis_cluster.nodes:
            node.ask("SCRIPT", "FLUSH")
        permit.release()
        (await served(waiter)).release()


@pytest.mark.parametrize("failure", ["killed", "frozen"])
async def test_a_node_that_fails_leaves_the_gates_of_the_others_alone(
    redis_cluster, names, failure
):
    healthy = gates_at(redis_cluster, names[:-1])
    (sick,) = gates_at(redis_cluster, names[-1:], lease=1.5)
    permits = [await gate.acquire(timeout=SOON) for gate in healthy]
    lost = await sick.acquire(timeout=SOON)
    waiters = [await in_line(gate, 1) for gate in healthy]
    *others, node = redis_cluster.nodes
    for other in others:  # else all stop serving once they have missed it for long enough
        other.ask("CONFIG", "SET", "cluster-require-full-coverage", "no")
    node.kill() if failure == "killed" else node.freeze()
    with pytest.raises(GateUnavailable):
        await sick.acquire(timeout=0.2)
    until(lambda: lost.lost, "the lease on the failed node to end")
    for permit in permits:
        await permit.renew()
        permit.release()
    for waiter in waiters:
        (await served(waiter)).release()
    redis_cluster.heal()
    with pytest.raises(PermitLost):
        lost.check()
    (await sick.acquire(timeout=SOON)).release()


async def test_a_process_that_starts_while_a_node_is_dead_has_the_gates_of_the_others(
    redis_cluster, names
):
    *others, dead = redis_cluster.nodes
    for other in others:
        other.ask("CONFIG", "SET", "cluster-require-full-coverage", "no")
    dead.kill()
    for gate in gates_at(redis_cluster, names[:-1]):
        (await gate.acquire(timeout=5)).release()


@pytest.mark.parametrize("keep_data", [True, False])
async def test_a_restarted_node_has_its_holder_and_its_waiters_again(
    redis_cluster, names, keep_data
):
    gate = gates_at(redis_cluster, names, lease=20.0, heartbeat=1.5)[1]
    permit = await gate.acquire(timeout=SOON)
    first = await in_line(gate, 1)
    second = await in_line(gate, 2)
    node = redis_cluster.nodes[1]
    if not keep_data:  # a node's own state, its slots, must stay
        node.ask("DEL", *(key(names[1]) + part for part in _PARTS))
    node.kill()
    redis_cluster.heal()
    async with asyncio.timeout(SOON):
        await permit.renew()
    until(lambda: gate.sync.status().waiting == 2, "both to be in line")
    await served_in_turn(permit, first, second)


@pytest.mark.parametrize("forgets", [False, True], ids=["in step", "forgets"])
async def test_a_replica_that_takes_over_a_node_keeps_permits_and_places_in_line(
    redis_cluster, names, forgets
):
    """What it had not heard of, the processes of holders and waiters tell it."""
    redis_cluster.add_replica(1)
    gate, other = (gates_at(redis_cluster, names, lease=20.0)[n] for n in (1, 0))
    elsewhere = await other.acquire(timeout=SOON)
    permit = await gate.acquire(timeout=SOON)
    first = await in_line(gate, 1)
    second = await in_line(gate, 2)
    node = redis_cluster.nodes[1]
    if forgets:
        node.ask("DEL", *(key(names[1]) + part for part in _PARTS))
    redis_cluster.replica.until_in_step(node)
    await asyncio.to_thread(redis_cluster.fail_over, 1)
    assert redis_cluster.nodes[1] is not node
    async with asyncio.timeout(SOON):
        await permit.renew()
    until(lambda: gate.sync.status().waiting == 2, "both to be in line")
    status = await gate.status()
    assert (status.in_flight, status.readmitted) == (1, int(forgets))
    await served_in_turn(permit, first, second)
    assert not elsewhere.lost
    elsewhere.release()


async def test_tasks_that_come_and_go_are_all_served_over_a_failover(redis_cluster, names):
    """Only what was not replicated yet may be given twice: of one gate, no more than its limit."""
    redis_cluster.add_replica(1)
    gate = TokenBucket(redis_cluster.target, names[1], limit=2, lease=3.0)
    observer, over = Observer(), asyncio.Event()

    async def goes_on():
        left = 3  # after the failover
        while left:
            async with gate.hold(timeout=SOON):
                with observer:
                    await asyncio.sleep(0.001)
            left -= over.is_set()

    tasks = [asyncio.create_task(goes_on()) for _ in range(6)]
    while not observer.peak:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    await asyncio.to_thread(redis_cluster.fail_over, 1)
    over.set()
    await asyncio.gather(*tasks)
    assert observer.peak <= 2 * 2
    await settled(gate, in_flight=0, waiting=0)


async def test_a_permit_whose_room_was_given_away_with_the_data_is_lost(redis_cluster, names):
    gate = gates_at(redis_cluster, names)[1]
    permit = await gate.acquire(timeout=SOON)
    redis_cluster.nodes[1].ask("DEL", *(key(names[1]) + part for part in _PARTS))
    taken = await gate.acquire(timeout=SOON)
    assert taken.fence > permit.fence
    with pytest.raises(PermitLost):
        await permit.renew()
    assert not taken.lost
    assert (await gate.status()).in_flight == 1
    taken.release()


_PARTS = ("", ":leases", ":holders", ":queue", ":waiters", ":alive")


def holds(url, name):
    from tests.harness import doomed

    permit = TokenBucket(url, name, limit=1, lease=2.0).sync.acquire()
    doomed.reached("holding")
    permit.release()


async def test_a_killed_holder_on_a_cluster_gives_its_permit_back(redis_cluster, names):
    for gate in gates_at(redis_cluster, names[:1], lease=2.0):
        killing.run(holds, redis_cluster.url, gate.name, at=killing.named("holding"))
        (await gate.acquire(timeout=SOON)).release()
        assert (await gate.status()).expired == 1


async def test_an_engine_ends_when_its_gate_and_its_permits_are_gone(
    redis_cluster, names, monkeypatch
):
    monkeypatch.setattr(engine, "_KEPT", 0.05)
    gates = gates_at(redis_cluster, names)
    permits = [await gate.acquire() for gate in gates]
    for gate in gates:
        (await in_line(gate, 1)).cancel()
    ours = [gate._client.unit.engine for gate in gates]
    del gate, gates  # no gate any more, and the permits left
    await asyncio.sleep(0.2)  # longer than _KEPT
    await permits[0].renew()  # they keep theirs
    assert not any(each.stopped for each in ours)
    for permit in permits:
        permit.release()
    del permit, permits
    gc.collect()
    until(lambda: not any(each._thread.is_alive() for each in ours), "their end")
    for gate in gates_at(redis_cluster, names):
        assert (await gate.status()).in_flight == 0
        assert gate._client.unit.engine not in ours


async def test_a_gate_on_each_node_finds_its_limit(redis_cluster, names):
    for name in names:
        gate = TokenBucket(redis_cluster.target, name, limit=Adaptive(start=4, min=1, max=9))
        async with gate as permit:
            permit.throttled(retry_after=1)
        status = await gate.status()
        assert (status.limit, status.adaptive.latest.why) == (3, "throttled")


async def test_a_gate_on_each_node_serves_shares_in_turn(redis_cluster, names):
    for name in names:
        gate = TokenBucket(redis_cluster.target, name, limit=1)
        await gate.configure(weights={"b": 3})
        async with gate.hold(share="a", timeout=SOON):
            waiters = [asyncio.create_task(gate.acquire(share=share)) for share in "aabb"]
            await settled(gate, waiting=4)
            shares = (await gate.status()).shares
            assert {(one.name, one.waiting) for one in shares.shares} == {("a", 2), ("b", 2)}
        for waiter in asyncio.as_completed(waiters):
            (await waiter).release()
        await settled(gate, in_flight=0, waiting=0)
        remove_gate(redis_cluster.target, name)


async def test_a_gate_on_each_node_counts_costs(redis_cluster, names):
    for name in names:
        rates = {"requests": 1000, "tokens": 1000}
        gate = TokenBucket(redis_cluster.target, name, limit=4, rates=rates)
        async with gate.hold(cost={"requests": 3, "tokens": 50}, timeout=SOON) as permit:
            permit.settle({"tokens": 20})
            waiter = asyncio.create_task(gate.acquire(cost={"requests": 2}, timeout=SOON))
            assert (await gate.status()).cost == 3
        (await served(waiter)).release()
        await settled(gate, in_flight=0, waiting=0)

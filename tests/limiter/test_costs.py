"""Permits that cost more than one, and gates with several amounts."""

import asyncio
import math
from typing import Any

import pytest

from ground import SettingError
from limiter import Adaptive, SyncPermit, TokenBucket, existing_gate, remove_gate, token_bucket
from limiter.terms import Amount, Terms
from tests.harness import killing
from tests.limiter.clocked import ClockedGate

SECOND = 1_000_000
SOON = 100.0


@pytest.fixture
def gate(redis) -> ClockedGate:
    return ClockedGate(redis, Terms(limit=10))


def ask(gate: ClockedGate, *rows: tuple[str, int | str], join: bool = True) -> list[int]:
    """Each an id and its cost."""
    asks: list[Any] = [(id, 0, "", f"{60 * SECOND} {cost}") for id, cost in rows]
    return gate.ask("p", asks, alive=600, join=join)[0]


def release(gate: ClockedGate, id: str, settled: str = "") -> None:
    gate.release("p", (id, f"{gate.holders[id]}  {settled}"))


def test_a_cost_takes_so_much_of_the_limit(gate):
    assert [each > 0 for each in ask(gate, ("a", 6), ("b", 4), ("c", 1))] == [True, True, False]
    release(gate, "b")
    assert set(gate.leases) == {"a", "c"}


def test_a_cost_above_the_limit_counts_as_the_limit_and_runs_alone(gate):
    ask(gate, ("small", 1), ("huge", 1000))
    assert set(gate.leases) == {"small"}
    release(gate, "small")
    assert set(gate.leases) == {"huge"}
    assert ask(gate, ("next", 1), join=False) == [0]


def test_a_limit_that_comes_down_strands_no_waiter(gate):
    ask(gate, ("a", 10), ("big", 9))
    gate.configure("operator", limit="3")
    release(gate, "a")
    assert gate.costs == {"big": 9}


def pass_by(gate: ClockedGate, most: int = 30) -> int:
    """Small ones come and go while a big one waits: how many do before it is alone."""
    for n in range(most):
        ask(gate, (f"s{n}", 4))
        if f"s{n}" not in gate.leases:
            return n
        release(gate, f"s{n}")
    return most


def test_others_pass_a_big_first_one_until_they_have_taken_four_times_its_cost(gate):
    ask(gate, ("a", 6), ("big", 5))
    assert pass_by(gate) == 5  # of 4 each, and 4 x 5 pass
    release(gate, "a")
    assert set(gate.leases) == {"big", "s5"}
    release(gate, "s5")
    ask(gate, ("bigger", 6))
    assert pass_by(gate) == 6, "the next one has its own patience"


@pytest.mark.parametrize("passing", [0, 1])
def test_how_much_passes_is_a_setting(gate, passing):
    ask(gate, ("a", 6))
    gate.configure("operator", passing=str(passing), weighs="1")
    ask(gate, ("big", 5))
    assert pass_by(gate) == passing  # of 4 each, and 5 pass


def test_nobody_passes_a_waiter_that_waits_for_its_rate(redis):
    gate = ClockedGate(redis, Terms(rate=10.0, burst=20))
    gate.sweep("p")
    gate.now += SECOND
    assert ask(gate, ("big", 15), ("small", 1)) == [-1, -2]
    gate.now += SECOND // 2
    gate.sweep("p")
    assert set(gate.leases) == {"big"}


def test_a_rate_is_charged_the_cost_and_settled_at_the_release(redis):
    gate = ClockedGate(redis, Terms(rate=10.0, burst=20))
    assert ask(gate, ("early", 1), join=False) == [0]
    gate.now += 10 * SECOND
    ask(gate, ("a", 50))
    assert float(gate.fields["tokens"]) == -30
    release(gate, "a", "requests=45")
    assert float(gate.fields["tokens"]) == 15
    ask(gate, ("b", 5))
    release(gate, "b", "requests=-20")
    assert float(gate.fields["tokens"]) == -10


def test_several_amounts_are_taken_in_one_step(redis):
    amounts = (Amount("tokens", 1000.0, 500),)
    gate = ClockedGate(redis, Terms(rate=8.0, burst=4, amounts=amounts))
    assert ask(gate, ("a", "1 tokens=400"), join=False) == [0]  # a new bucket is empty
    gate.now += 10 * SECOND
    assert [each > 0 for each in ask(gate, ("a", "1 tokens=400"), ("b", "1 tokens=300"))] == [
        True, False,
    ]  # fmt: skip
    assert gate.sweep("p") == 200_000  # until 200 tokens more
    gate.now += 200_000
    gate.sweep("p")
    assert set(gate.leases) == {"a", "b"}
    release(gate, "a", "tokens=300")
    assert float(gate.fields["tokens:tokens"]) == 300


def test_who_tries_learns_when_its_cost_is_earned(redis):
    gate = ClockedGate(redis, Terms(rate=10.0, burst=20))
    gate.sweep("p")
    gate.now += SECOND
    rows: list[Any] = [("a", 0, "", f"{SECOND} 15")]
    command = gate.commands("p").acquire(rows, SECOND, join=False, weighs=True)
    assert int(gate.run(command)[1]) == 500_000


def test_a_permit_lost_with_the_data_comes_back_with_its_cost(redis, gate):
    (fence,) = ask(gate, ("a", 8))
    redis.flushall()
    gate.now += 1
    assert gate.renew("p", ("a", fence, f"{60 * SECOND} 8")) == [True]
    assert [each > 0 for each in ask(gate, ("b", 2), ("c", 1))] == [True, False]


def test_a_gate_that_finds_its_limit_counts_what_permits_cost(redis):
    gate = ClockedGate(redis, Terms(limit=Adaptive(start=10, min=1, max=40)))
    ask(gate, ("a", 6), ("b", 4))
    fence = gate.holders["b"]
    gate.release("p", ("b", f"{fence} t"))
    assert int(gate.fields["limit"]) == 5  # 6 are in flight, and a little less than that


def test_a_gate_that_finds_its_limit_grows_by_what_permits_cost(redis):
    gate = ClockedGate(redis, Terms(limit=Adaptive(start=10, min=1, max=40)))
    ask(gate, ("a", 5), ("b", 5))
    release(gate, "a")
    assert int(gate.fields["limit"]) == 10
    release(gate, "b")
    assert int(gate.fields["limit"]) == 15


def test_a_cost_above_the_limit_counts_in_full_when_the_limit_is_raised(gate):
    ask(gate, ("a", 40))
    gate.configure("operator", limit="64")
    assert ask(gate, ("b", 54), join=False) == [0]
    assert [each > 0 for each in ask(gate, ("c", 24), ("d", 1))] == [True, False]


def test_a_cost_that_comes_back_after_a_loss_counts_in_full(redis, gate):
    ask(gate, ("a", 40))
    held = gate.holders["a"]
    redis.flushall()
    assert gate.renew("p", ("a", held, f"{60 * SECOND} 40")) == [True]
    gate.configure("operator", limit="64")
    assert ask(gate, ("b", 25), join=False) == [0]
    assert [each > 0 for each in ask(gate, ("c", 24))] == [True]


# What is refused


@pytest.mark.parametrize(
    ("given", "cost", "said"),
    [
        ({"limit": 4}, 0, "not 0"),
        ({"limit": 4}, -1, "not -1"),
        ({"limit": 4}, 1.5, "not 1.5"),
        ({"limit": 4}, math.nan, "not nan"),
        ({"limit": 4}, True, "not True"),
        ({"limit": 4}, "3", "not '3'"),
        ({"limit": 4}, 10**9 + 1, "not 1000000001"),
        ({"limit": 4}, {"tokens": 3}, "has no 'tokens'"),
        ({"rates": {"requests": 8, "tokens": 100}}, 3, "name its amounts"),
        ({"rates": {"requests": 8, "tokens": 9}}, {"token": 3}, "it has requests, tokens"),
        ({"rates": {"tokens": 8}}, {"tokens": 0}, "not 0"),
    ],
)
async def test_costs_that_make_no_sense_are_refused(redis, given, cost, said):
    gate = TokenBucket(redis, "g", **given)
    with pytest.raises(SettingError, match=said):
        await gate.acquire(cost=cost)
    with pytest.raises(SettingError, match=said):
        gate.sync.acquire(cost=cost)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rates": {"a b": 3}}, "letters, digits"),
        ({"rates": {"": 3}}, "letters, digits"),
        ({"rates": {"tokens": 0}}, "above 0"),
        ({"rates": {"tokens": math.nan}}, "above 0"),
        ({"rates": {"tokens": 5}, "rate": 3}, "give one of them"),
        ({"rates": {"tokens": 5}, "bursts": {"requests": 3}}, "needs a rate"),
        ({"rates": {"tokens": 5}, "bursts": {"others": 3}}, "has no rate"),
        ({"rates": {}}, "needs a limit"),
    ],
)
def test_amounts_that_cannot_work_are_refused(given, said):
    with pytest.raises(SettingError, match=said):
        TokenBucket("redis://127.0.0.1:1/0", "g", **given)


async def test_settlements_that_make_no_sense_are_refused(redis):
    plain = await TokenBucket(redis, "g", limit=3).acquire()
    with pytest.raises(SettingError, match="was not given"):
        plain.settle(3)
    permit = await TokenBucket(redis, "g", limit=3).acquire(cost=2)
    for actual, said in (
        (-1, "not -1"),
        ({"tokens": 3}, "acquired with 'tokens'"),
        (math.nan, "nan"),
    ):
        with pytest.raises(SettingError, match=said):
            permit.settle(actual)


# At the faces


async def test_the_faces_have_costs(redis):
    gate = TokenBucket(redis, "g", limit=10)
    async with gate.hold(cost=7):
        status = await gate.status()
        assert (status.in_flight, status.cost) == (1, 7)
        assert not await gate.try_acquire(cost=4)
        with gate.hold(cost=3):
            assert not gate.sync.try_acquire(cost=1)
        second = gate.sync.try_acquire(cost=2)
        assert second
        second.release()
    status = await existing_gate(redis, "g").status()
    assert (status.limit, status.in_flight, status.cost) == (10, 0, 0)


async def test_a_big_waiter_is_served_among_many_small_ones(redis):
    gate = TokenBucket(redis, "g", limit=4)
    over = asyncio.Event()

    async def small() -> None:
        while not over.is_set():
            async with gate.hold(cost=1, timeout=SOON):
                await asyncio.sleep(0)

    tasks = [asyncio.create_task(small()) for _ in range(8)]
    for _ in range(3):
        async with gate.hold(cost=4, timeout=SOON):
            assert (await gate.status()).cost == 4
    over.set()
    await asyncio.gather(*tasks)
    assert (await gate.status()).cost == 0


async def test_the_faces_have_amounts(redis):
    rates = {"requests": 1000, "tokens": 100_000}
    gate = TokenBucket(redis, "g", rates=rates, bursts={"tokens": 20_000})

    async def use() -> None:
        async with gate.hold(cost={"tokens": 500}, timeout=SOON):
            await asyncio.sleep(0)

    permit = await gate.acquire(cost={"tokens": 5_000}, timeout=SOON)
    permit.settle({"tokens": 100})
    permit.release()
    other = existing_gate(redis, "g")
    assert other.terms == gate.terms
    with other.hold(cost={"requests": 2}, timeout=SOON):
        amount = (await gate.status()).amounts["tokens"]
    assert (amount.rate, amount.burst) == (100_000, 20_000)
    await asyncio.gather(*(use() for _ in range(10)))
    assert (await gate.status()).in_flight == 0
    await gate.configure(rates={"tokens": 50_000}, bursts={"tokens": 3_000})
    amount = (await gate.status()).amounts["tokens"]
    assert (amount.rate, amount.burst) == (50_000, 3_000)
    assert amount.tokens <= 3_000
    with pytest.raises(SettingError, match="has no amount 'token'"):
        await gate.configure(rates={"token": 1})


async def test_a_gate_gets_amounts_by_force_and_is_removed_with_all_its_keys(redis):
    await TokenBucket(redis, "g", rate=1000).status()
    gate = TokenBucket(redis, "g", rates={"tokens": 1000.0}, enforce=True)
    (await gate.acquire(cost={"tokens": 3, "requests": 4}, timeout=SOON)).release()
    assert list((await gate.status()).amounts) == ["tokens"]
    other = TokenBucket(redis, "g", rate=1000, enforce=True)
    (await other.acquire(timeout=SOON)).release()
    assert (await other.status()).amounts == {}
    remove_gate(redis, "g", force=True)
    left = [key for key in redis.keys("penstock:gate:{g}*") if b":inbox:" not in key]
    assert left == []


def test_a_release_that_stays_counts_once_however_often_it_comes(redis):
    """Its permit is still there when a lost reply has it sent again."""
    amounts = (Amount("tokens", 10.0, 1000),)
    gate = ClockedGate(redis, Terms(Adaptive(20, 1, 100), amounts=amounts))
    ask(gate, ("a", "1 tokens=5"), join=False)  # a new bucket is empty
    gate.now += SECOND
    (fence,) = ask(gate, ("a", "1 tokens=5"))
    for _ in range(3):
        gate.release("p", ("a", f"{fence} o +{5 * SECOND} tokens=4"))
    assert (float(gate.fields["tokens:tokens"]), gate.fields["overloaded"]) == (9, "1")
    assert gate.leases == {"a": gate.now + 5 * SECOND}
    gate.release("p", ("a", f"{fence} o"))  # freed before its time
    assert (gate.leases, gate.fields["overloaded"]) == ({}, "1")


def test_a_gate_that_is_made_again_as_it_is_removed_is_whole(redis, monkeypatch):
    gate = TokenBucket(redis, "g", limit=2)
    again: list[SyncPermit] = []
    removing = token_bucket._REMOVE

    class MadeAgain:
        def call(self, *args: Any) -> Any:
            reply = removing.call(*args)
            again.append(gate.sync.acquire(cost=2, timeout=SOON))
            return reply

    held = gate.sync.acquire(cost=2, timeout=SOON)
    monkeypatch.setattr(token_bucket, "_REMOVE", MadeAgain())
    remove_gate(redis, "g", force=True)
    assert redis.hlen("penstock:gate:{g}:costs") == 1
    again[0].release()
    held.release()
    assert gate.sync.status().cost == 0


def holds(url: str) -> None:
    from tests.harness import doomed

    permit = TokenBucket(url, "g", limit=10, lease=2.0).sync.acquire(cost=7)
    doomed.reached("holding")
    permit.release()


async def test_a_killed_holder_leaks_no_cost(private_redis):
    server = private_redis(aof=False)
    gate = TokenBucket(server.url, "g", limit=10, lease=2.0)
    killing.run(holds, server.url, at=killing.named("holding"))
    assert server.ask("HVALS", "penstock:gate:{g}:costs") == [b"7"]
    (await gate.acquire(cost=10, timeout=SOON)).release()
    status = await gate.status()
    assert (status.expired, status.cost) == (1, 0)

"""Shares of a gate: who waits takes turns by weight."""

import asyncio
import math
from collections import Counter
from typing import Any

import pytest

from ground import SettingError
from limiter import LimitTimeout, TokenBucket, existing_gate, remove_gate
from limiter.terms import Amount, Terms
from tests.harness import killing
from tests.limiter.clocked import ClockedGate
from tests.limiter.in_flight import in_line, served, settled

SECOND = 1_000_000
SOON = 100.0


class Line:
    """Those who wait at a gate of one permit; each id begins with its share."""

    def __init__(self, redis: Any, terms: Terms | None = None) -> None:
        self.gate = ClockedGate(redis, terms or Terms(limit=1))
        self.numbers: Counter[str] = Counter()
        self.tickets: dict[str, str] = {}
        self.last = "first"
        self.gate.acquire("p", "first", term=600, alive=600)

    def join(self, share: str, waiters: int = 1, *, lane: int = 0, cost: str = "") -> list[str]:
        ids = []
        for _ in range(waiters):
            self.numbers[share] += 1
            ids.append(f"{share or 'none'}-{self.numbers[share]}")
        row = f"{lane} {share}" if share else lane
        term: int | str = f"{600 * SECOND} {cost}" if cost else 600 * SECOND
        _, tickets = self.gate.ask("p", [(id, row, "", term) for id in ids], alive=600)
        self.tickets.update(zip(ids, tickets, strict=True))
        return ids

    def next(self) -> str:
        """Who is granted the permit that is given back."""
        self.gate.release("p", (self.last, self.gate.holders[self.last]))
        (self.last,) = self.gate.leases
        return self.last

    def served(self, grants: int) -> Counter[str]:
        return Counter(self.next().partition("-")[0] for _ in range(grants))

    def weigh(self, **weights: str) -> None:
        fields = {f"weight:{share}": weight for share, weight in weights.items()}
        self.gate.configure("operator", **fields)


@pytest.fixture
def line(redis) -> Line:
    return Line(redis)


def test_a_newcomer_waits_behind_no_backlog(line):
    line.join("training", 60)
    line.served(20)
    line.join("evaluation", 3)
    assert line.served(8)["evaluation"] == 3


def test_shares_that_wait_are_served_by_weight(line):
    line.weigh(training="4", debug="0.5")
    for share in ("training", "evaluation", "debug"):
        line.join(share, 90)
    served = line.served(110)
    for share, weight in {"training": 4, "evaluation": 1, "debug": 0.5}.items():
        assert abs(served[share] - 110 * weight / 5.5) <= 1 + 0.01 * 110 * weight / 5.5


def test_any_thousand_permits_are_divided_by_weight(redis):
    """In two scripts, and in the order in which the fences say that they were granted."""
    line = Line(redis)
    weights = {"a": 7.0, "b": 4.0, "c": 2.5, "d": 1.0, "e": 1.0, "f": 0.3}
    line.weigh(**{share: str(weight) for share, weight in weights.items()})
    whole = sum(weights.values())
    for share, weight in weights.items():
        line.join(share, int(1500 * weight / whole) + 3)
    line.gate.configure("operator", limit="1001")
    line.gate.configure("operator", limit="1501")
    holders = line.gate.holders
    order = [id.partition("-")[0] for id in sorted(holders, key=holders.__getitem__)][1:]
    assert len(order) == 1500, "no room is left while somebody waits"
    for first in range(501):
        served = Counter(order[first : first + 1000])
        for share, weight in weights.items():
            due = 1000 * weight / whole
            assert abs(served[share] - due) <= 1 + 0.01 * due, (first, share)


def test_waiters_without_a_share_are_a_share_too(line):
    line.join("", 30)  # also those that waited before the gate had shares
    line.join("training", 30)
    assert abs(line.served(30)["none"] - 15) <= 1


def test_waiters_of_one_share_keep_their_order(line):
    line.join("other", 10)
    ids = line.join("training", 10)
    assert [id for id in (line.next() for _ in range(20)) if id in ids] == ids


def test_a_lower_lane_goes_before_all_shares_of_a_higher_one(line):
    line.weigh(training="1000")
    line.join("training", 3)
    line.join("evaluation", 3, lane=-1)
    line.join("", 3, lane=-2)
    served = [line.next().partition("-")[0] for _ in range(9)]
    assert served == ["none"] * 3 + ["evaluation"] * 3 + ["training"] * 3


def test_a_cancelled_backlog_owes_nothing(line):
    gone = line.join("alice", 200)
    line.join("bob", 100)
    line.served(10)
    line.gate.cancel("p", *gone)
    line.join("alice", 60)
    assert abs(line.served(60)["alice"] - 30) <= 1


def test_a_dead_process_owes_nothing(line):
    asks: list[Any] = [(f"gone-{n}", "0 alice", "", 600 * SECOND) for n in range(50)]
    line.gate.ask("dead", asks, alive=1)
    line.join("bob", 60)
    line.gate.now += 2 * SECOND
    line.join("alice", 60)
    served = line.served(40)
    assert abs(served["alice"] - 20) <= 1


def test_who_comes_and_goes_is_served_as_often_as_who_waits(line):
    line.join("backlog", 60)
    line.join("visitor")
    served = Counter[str]()
    for _ in range(40):
        share = line.next().partition("-")[0]
        served[share] += 1
        if share == "visitor":
            line.join("visitor")
    assert abs(served["visitor"] - 20) <= 1


def test_weights_turn_at_once(line):
    line.join("alice", 120)
    line.join("bob", 120)
    line.served(20)
    line.weigh(alice="9")
    assert abs(line.served(60)["alice"] - 54) <= 2
    line.weigh(alice="")
    assert abs(line.served(40)["alice"] - 20) <= 2
    line.weigh(**{"*": "2", "bob": "1"})
    assert abs(line.served(30)["alice"] - 20) <= 2


def test_a_small_weight_that_grows_waits_for_no_old_turn(line):
    line.weigh(small="0.001")
    line.join("small", 40)
    line.join("training", 100)
    line.served(20)
    line.weigh(small="1")
    assert abs(line.served(40)["small"] - 20) <= 1


def test_weight_0_is_served_when_nobody_else_waits(line):
    line.weigh(spare="0")
    line.join("spare", 4)
    line.join("training", 4)
    assert [line.next().partition("-")[0] for _ in range(8)] == ["training"] * 4 + ["spare"] * 4


def test_a_permit_given_up_is_asked_for_again_at_its_place(line):
    line.join("training", 3)
    line.join("other", 3)
    ticket = line.tickets["training-1"]
    while line.next() != "training-1":
        pass
    line.gate.ask("p", [("training-0", "0 training", ticket, 600 * SECOND)], alive=600)
    served = [line.next() for _ in range(3)]
    assert next(id for id in served if "training" in id) == "training-0"


def test_more_shares_than_are_kept_apart_wait_with_those_without_one(real_redis):
    redis = real_redis
    line = Line(redis)
    asks: list[Any] = [(f"s{n}", f"0 s{n}", "", 600 * SECOND) for n in range(10_003)]
    for start in range(0, len(asks), 500):
        line.gate.ask("p", asks[start : start + 500], alive=600)
    assert redis.zcard("penstock:gate:{g}:shares:0") == 10_001  # and those without one
    assert line.gate.line == ["s10000", "s10001", "s10002"]
    for start in range(0, 10_000, 500):
        line.gate.cancel("p", *(id for id, *_ in asks[start : start + 500]))
    assert line.gate.turns(0) == {"": 1.0}
    assert [line.next() for _ in range(3)] == ["s10000", "s10001", "s10002"]
    assert redis.keys("penstock:gate:{g}:[sio]*") == []


def test_a_lane_whose_clock_came_far_begins_again(line):
    line.join("alice", 20)
    line.join("bob", 20)
    line.join("spare", 2)
    line.weigh(spare="0", bob="4")
    far = 2.0**36
    key = "penstock:gate:{g}:shares:0"
    for share, place in line.gate.turns(0).items():
        line.gate.redis.zadd(key, {share: place + far})
    line.gate.redis.hset("penstock:gate:{g}", "clock:0", repr(far))
    served = line.served(20)
    assert abs(served["bob"] - 16) <= 1
    assert max(line.gate.turns(0).values()) < 2.0**47
    assert float(line.gate.fields["clock:0"]) < 100


# With costs


def test_a_share_pays_what_its_permits_cost(redis):
    line = Line(redis, Terms(limit=8))
    line.gate.configure("operator", passing="0", weighs="1")
    line.gate.release("p", ("first", line.gate.holders["first"]))
    line.gate.acquire("p", *(f"h{n}" for n in range(8)), term=600, alive=600)
    for _ in range(40):
        line.join("big", cost="4")
    line.join("small", 90)
    units = Counter[str]()
    held = sorted(line.gate.leases)
    for _ in range(60):
        id = held.pop(0)
        line.gate.release("p", (id, line.gate.holders[id]))
        for new in set(line.gate.leases) - set(held):
            units[new.partition("-")[0]] += line.gate.costs.get(new, 1)
            held.append(new)
    assert abs(units["big"] - units["small"]) <= 8


def test_what_is_settled_is_what_the_share_pays(redis):
    line = Line(redis, Terms(limit=8))
    line.join("alice", 2, cost="8")
    line.join("bob", 2, cost="8")
    assert line.next() == "alice-1"
    due = line.gate.turns(0)["alice"]
    line.gate.release("p", ("alice-1", f"{line.gate.holders['alice-1']}  requests=6|0|alice|8|2"))
    assert line.gate.turns(0)["alice"] == due - 6


def test_a_share_pays_for_the_amount_that_is_earned_slowest(redis):
    amounts = (Amount("tokens", 100.0, 1000),)
    line = Line(redis, Terms(rate=10.0, burst=10, amounts=amounts))
    line.gate.now += 100 * SECOND
    line.join("a", 40, cost="1 tokens=300")  # 3 s each
    line.join("b", 40, cost="5 tokens=100")  # 1 s each
    alone = Counter(id.partition("-")[0] for id in line.gate.leases)["a"]
    for _ in range(60):
        line.gate.now += SECOND
        line.gate.sweep("p")
    granted = Counter(id.partition("-")[0] for id in line.gate.leases)
    assert abs(granted["b"] - 3 * (granted["a"] - alone)) <= 3


def test_shares_of_weight_0_pay_for_small_amounts_too(redis):
    amounts = (Amount("tokens", 1000.0, 1000),)
    line = Line(redis, Terms(limit=1, amounts=amounts))
    line.gate.now += SECOND
    line.gate.acquire("p", "first", term=600, alive=600)
    line.weigh(debug="0", spare="0")
    line.join("debug", 10)
    line.join("spare", 10)
    assert line.served(10) == {"debug": 5, "spare": 5}


def test_shares_that_come_and_go_are_not_remembered_for_good(redis):
    line = Line(redis, Terms(limit=4))
    line.join("backlog", 90, cost="4")
    for n in range(40):
        (id,) = line.join(f"run{n}", cost="1")
        while line.next() != id:
            pass
        receipt = f"{line.gate.holders[id]}  requests=-3|0|run{n}|1|4"
        line.gate.release("p", (id, receipt))
        (line.last,) = line.gate.leases
    assert len(line.gate.idle(0)) < 10


def test_a_big_first_one_is_passed_for_a_while_whatever_its_share(redis):
    line = Line(redis, Terms(limit=10))
    line.join("big", cost="10")
    passed = 0
    while "big-1" not in line.gate.leases and passed < 60:
        (id,) = line.join(("a", "b")[passed % 2])
        if id not in line.gate.leases:
            break
        line.gate.release("p", (id, line.gate.holders[id]))
        passed += 1
    assert passed == 40  # four times its cost
    line.gate.release("p", ("first", line.gate.holders["first"]))
    assert "big-1" in line.gate.leases


# At the faces


async def test_the_faces_have_shares(redis):
    gate = TokenBucket(redis, "g", limit=1)
    await gate.configure(weights={"training": 3, "*": 0.5, "": 2})
    held = await gate.acquire(share="training")
    waiters = [
        asyncio.create_task(gate.acquire(share=share, timeout=SOON))
        for share in ("training", "training", "evaluation", "")
    ]
    await settled(gate, waiting=4)
    assert not await gate.try_acquire(share="debug")
    assert not gate.sync.try_acquire(share="debug")
    with pytest.raises(LimitTimeout) as late:
        await gate.acquire(share="training", timeout=0)
    assert late.value.place == 3, "in the line of its share"
    shares = (await existing_gate(redis, "g").status()).shares
    assert shares is not None
    assert (shares.others, shares.waiting) == (0.5, 3)
    assert {(one.name, one.waiting, one.weight, one.own) for one in shares.shares} == {
        ("training", 2, 3.0, True), ("evaluation", 1, 0.5, False), ("", 1, 2.0, True),
    }  # fmt: skip
    held.release()
    for waiter in asyncio.as_completed(waiters):
        (await waiter).release()
    with gate.hold(share="training", timeout=SOON):
        pass
    async with gate.hold(share="evaluation", timeout=SOON):
        gate.sync.configure(weights={"training": None})
    found = (await gate.status()).shares
    assert found is not None
    assert [(one.name, one.weight) for one in found.shares] == [("", 2.0)]
    remove_gate(redis, "g", force=True)
    left = [key for key in redis.keys("penstock:gate:{g}*") if b":inbox:" not in key]
    assert left == []


async def test_a_gate_that_uses_no_share_has_the_same_keys_and_fields(redis):
    gate = TokenBucket(redis, "g", limit=1)
    async with gate:
        waiter = await in_line(gate, 1, timeout=SOON)
        status = await gate.status()
    (await waiter).release()
    assert status.shares is None
    assert {b"more", b"shares", b"lanes"}.isdisjoint(redis.hgetall("penstock:gate:{g}"))


async def test_a_process_that_took_a_gate_for_a_plain_one_learns_that_it_is_not(redis):
    gate = TokenBucket(redis, "g", limit=1)
    (await gate.acquire()).release()
    await gate.configure(weights={"alice": 2})  # as an operator does, from elsewhere
    held = await gate.acquire(timeout=SOON)
    waiter = await in_line(gate, 1, timeout=SOON)
    held.release()
    (await served(waiter)).release()
    await settled(gate, in_flight=0)
    status = await gate.status()
    assert (status.granted, status.released) == (3, 3)


async def test_what_is_settled_reaches_the_share(redis):
    gate = TokenBucket(redis, "g", limit=8)
    held = await gate.acquire(cost=8)
    alice = [asyncio.create_task(gate.acquire(cost=8, share="alice")) for _ in range(3)]
    await settled(gate, waiting=3)
    held.release()
    (one,) = (await asyncio.wait(alice, return_when=asyncio.FIRST_COMPLETED))[0]
    due = redis.zscore("penstock:gate:{g}:shares:0", "alice")
    permit = one.result()
    permit.settle(3)
    await permit.give_back()
    # The next one was charged 8, the first got 5 back.
    assert redis.zscore("penstock:gate:{g}:shares:0", "alice") == due + 8 - 5
    for waiter in alice:
        waiter.cancel()
    await asyncio.gather(*alice, return_exceptions=True)


@pytest.mark.parametrize("share", ["a b", "a|b", "x" * 65, "-a", 3, "a~b", "*"])
async def test_names_that_are_no_share_are_refused(redis, share):
    gate = TokenBucket(redis, "g", limit=1)
    with pytest.raises(SettingError, match="1 to 64 letters"):
        await gate.acquire(share=share)
    with pytest.raises(SettingError, match="1 to 64 letters"):
        gate.sync.try_acquire(share=share)


@pytest.mark.parametrize("weight", [-1, math.nan, math.inf, 0.0001, 1001, True, "3", 10**400])
async def test_weights_that_make_no_sense_are_refused_and_change_nothing(redis, weight):
    gate = TokenBucket(redis, "g", limit=1)
    with pytest.raises(SettingError, match=r"0\.001 to 1000"):
        await gate.configure(weights={"fine": 2, "alice": weight}, limit=3)
    status = await gate.status()
    assert (status.limit, status.shares) == (1, None)


async def test_more_weights_than_are_kept_are_refused(real_redis):
    gate = TokenBucket(real_redis, "g", limit=1)
    await gate.configure(weights={f"s{n}": 2 for n in range(10_000)})
    with pytest.raises(SettingError, match="more than 10000"):
        gate.sync.configure(weights={"one-more": 1})
    gate.sync.configure(weights={"s1": None, "one-more": 1})


def waits(url: str) -> None:
    from tests.harness import doomed

    gate = TokenBucket(url, "g", limit=1, lease=2.0)

    async def wait() -> None:
        asks = [asyncio.create_task(gate.acquire(share="doomed")) for _ in range(20)]
        await settled(gate, waiting=20)
        doomed.reached("waiting")
        await asyncio.gather(*asks)

    asyncio.run(wait())


async def test_killed_waiters_owe_nothing_and_hold_up_nobody(private_redis):
    server = private_redis(aof=False)
    gate = TokenBucket(server.url, "g", limit=1)
    held = await gate.acquire()
    await asyncio.to_thread(killing.run, waits, server.url, at=killing.named("waiting"))
    waiting = asyncio.create_task(gate.acquire(share="alive", timeout=SOON))
    held.release()
    (await waiting).release()
    (await gate.acquire(share="doomed", timeout=SOON)).release()
    status = await gate.status()
    assert (status.waiting, status.in_flight) == (0, 0)
    # One may get a permit before its process counts as dead.
    assert status.dropped + status.expired == 20
    assert server.ask("KEYS", "penstock:gate:{g}:order") == []

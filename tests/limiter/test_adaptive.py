"""A gate that finds its limit: against its rule, and at its faces."""

import random
from collections import Counter
from typing import Any

import pytest

from ground import SettingError
from limiter import Adaptive, TokenBucket, existing_gate
from limiter.terms import Terms
from tests.limiter.clocked import ClockedGate
from tests.limiter.gate_machine import PROCESSES, STEP, GateMachine

SECOND = 1_000_000
WORDS = ["", "", "", "-", "o", "t", "t500000", "t40000000"]


class AdaptiveMachine(GateMachine):
    """A gate that adapts, and its model, put through a service's good and bad times."""

    def __init__(self, redis: Any, seed: int) -> None:
        super().__init__(redis)
        self.draw = random.Random(seed)
        start = self.draw.randint(1, 4)
        self.bounds = Adaptive(start, 1, self.draw.randint(start, 24))
        self.begin(start, None, 1)

    def live(self) -> None:
        """Something happens."""
        draw = self.draw
        process, picks = draw.choice(PROCESSES), [draw.randint(0, 30) for _ in range(3)]
        match draw.randint(0, 7):
            case 0:
                self.time_passes(draw.choice([1, 30, 65]))
                self.renew(process, picks)
            case 1:
                self.configure(min=str(draw.randint(1, 3)), max=str(draw.randint(3, 24)))
            case 2:
                self.cancel(process, picks, "cancelled")
            case 3 if draw.random() < 0.2:
                self.redis_loses_its_data()
            case 4:
                self.pause_or_resume(draw.random() < 0.2)
            case _:
                self.holders_come_and_go(draw.choice(WORDS), draw.randint(1, 24))
        self.all_is_well()

    def holders_come_and_go(self, word: str, at_once: int) -> None:
        """A service has them do that, which serves all, or none, for a while."""
        process = self.draw.choice(PROCESSES)
        for _ in range(self.draw.randint(1, 16)):
            held = [wish for wish in self.wishes if wish.id in self.model.leases][:at_once]
            permits = [(wish.id, wish.fence) for wish in held]
            self.gate.release(process, *((id, f"{fence} {word}".strip()) for id, fence in permits))
            self.model.release(process, permits, self.gate.now, word)
            self.all_is_well()
            self.acquire(process, [0] * self.draw.randint(1, 6), [], [], True, False)
            self.all_is_well()
            self.gate.now += STEP


def explore(redis: Any, seeds: range, steps: int) -> Counter[str]:
    seen: Counter[str] = Counter()
    for seed in seeds:
        machine = AdaptiveMachine(redis, seed)
        for _ in range(steps):
            machine.live()
            assert machine.model.stepping is not None
        seen.update(machine.model.stepping.counted)
    return seen


def test_the_limit_moves_as_its_rule_says(redis):
    seen = explore(redis, range(4), steps=20)
    assert all(seen.values()), seen


@pytest.mark.soak
def test_the_limit_moves_as_its_rule_says_for_long(redis):
    explore(redis, range(200), steps=50)


@pytest.fixture
def gate(redis) -> ClockedGate:
    return ClockedGate(redis, Terms(Adaptive(start=4, min=1, max=40)))


def come_and_go(gate: ClockedGate, word: str, times: int = 1) -> None:
    """All holders release with this report, and as many ask as may enter."""
    for _ in range(times):
        held = [(id, fence) for id, fence in gate.holders.items()]
        gate.now += 50_000
        gate.release("p", *((id, f"{fence} {word}".strip()) for id, fence in held))
        gate.acquire("p", *(f"{gate.now}-{n}" for n in range(50)), join=False, term=60)


def limit_of(gate: ClockedGate) -> int:
    return int(gate.fields["limit"])


def test_a_gate_grows_by_half_until_it_is_refused(gate):
    gate.acquire("p", *"abcd")
    limits = []
    for _ in range(4):
        come_and_go(gate, "")
        limits.append(limit_of(gate))
    assert limits == [6, 9, 13, 20]


def test_a_refusal_leaves_what_the_service_took_and_a_little_less(gate):
    come_and_go(gate, "", times=5)
    held = list(gate.holders.items())
    assert len(held) == 20
    for id, fence in held[:8]:
        gate.release("p", (id, f"{fence} t"))
    assert limit_of(gate) == 12
    assert float(gate.fields["ceiling"]) == pytest.approx(19)


def test_refusals_of_one_generation_cut_once(gate):
    come_and_go(gate, "", times=5)
    gate.release("p", *((id, f"{fence} t") for id, fence in gate.holders.items()))
    assert gate.fields["cuts"] == "1"
    assert gate.fields["throttled"] == "20"


def test_a_permit_that_is_dropped_or_expires_says_nothing(gate):
    gate.acquire("p", *"abcd", term=1)
    gate.now += 2 * SECOND
    gate.sweep("q")
    gate.acquire("p", *"efgh")
    gate.release("p", *((id, f"{fence} -") for id, fence in gate.holders.items()))
    assert limit_of(gate) == 4
    assert "cuts" not in gate.fields


def test_one_timeout_pauses_growth_and_a_twentieth_of_a_round_cuts(redis):
    gate = ClockedGate(redis, Terms(Adaptive(start=40, min=1, max=80)))
    gate.acquire("p", *(f"a{n}" for n in range(40)))
    first, *others = list(gate.holders.items())
    gate.release("p", (first[0], f"{first[1]} o"), *others)
    assert (limit_of(gate), gate.fields.get("cuts", "0")) == (40, "0")
    gate.acquire("p", *(f"b{n}" for n in range(40)))
    late = list(gate.holders.items())[:2]
    gate.release("p", *((id, f"{fence} o") for id, fence in late))
    assert (limit_of(gate), gate.fields["cuts"]) == (38, "1")


def test_a_late_overload_of_the_time_before_a_cut_counts_no_more(redis):
    gate = ClockedGate(redis, Terms(Adaptive(start=40, min=1, max=80)))
    gate.acquire("p", *(f"a{n}" for n in range(40)))
    early = list(gate.holders.items())
    gate.release("p", *((id, f"{fence} o") for id, fence in early[:2]))
    assert (limit_of(gate), gate.fields["cuts"]) == (38, "1")
    gate.release("p", *((id, f"{fence} o") for id, fence in early[2:]))
    gate.acquire("p", *(f"b{n}" for n in range(38)))
    gate.release("p", *gate.holders.items())
    assert (limit_of(gate), gate.fields["raises"]) == (39, "1")
    gate.acquire("p", *(f"c{n}" for n in range(39)))
    first = next(iter(gate.holders.items()))
    gate.release("p", (first[0], f"{first[1]} o"))
    assert gate.fields["cuts"] == "1"


def test_a_service_that_refuses_everything_is_left_alone_for_as_long_as_it_asked(gate):
    come_and_go(gate, "", times=5)
    before = float(gate.fields["exact"])
    come_and_go(gate, "t5000000", times=10)
    assert float(gate.fields["exact"]) == pytest.approx(0.95 * before)
    assert gate.acquire("p", "early", join=False) == [0]
    reply = gate.run(gate.commands("q").acquire([("c", 0, "", SECOND)], SECOND, join=False))
    assert 0 < int(reply[1]) <= 5 * SECOND, "who asks learns when to ask again"
    gate.now += 5 * SECOND
    assert gate.acquire("p", "late", join=False) != [0]


async def test_a_gate_that_nobody_has_used_yet_is_made_to_adapt(redis):
    gate = TokenBucket(redis, "unused", limit=8)
    await gate.configure(adapt=True, min=1, max=16)
    status = await gate.status()
    assert status.adaptive is not None
    assert status.limit == 8


def test_bounds_take_effect_at_once_and_a_number_pins(gate):
    gate.acquire("p", *"abcdef")
    gate.configure("operator", min="5", max="9")
    assert limit_of(gate) == 5
    assert len(gate.leases) == 5
    gate.configure("operator", limit="30")
    come_and_go(gate, "t", times=3)
    assert limit_of(gate) == 30
    gate.configure("operator", adapts="limit")
    assert limit_of(gate) == 9


def test_changes_are_kept_with_their_reason(redis, gate):
    gate.acquire("p", *"abcd", term=60)
    come_and_go(gate, "", times=2)
    come_and_go(gate, "t")
    gate.configure("operator", limit="7")
    found = redis.xrange("penstock:gate:{g}:changes")
    why = [fields[b"why"].decode() for _, fields in found]
    assert sorted(set(why)) == ["pinned", "served", "throttled"]
    assert (why[0], why[-1]) == ("served", "pinned")
    assert [fields[b"to"].decode() for _, fields in found][-1] == "7"


def test_an_adaptive_rate_moves_with_its_burst(redis):
    gate = ClockedGate(redis, Terms(rate=Adaptive(start=10.0, min=1.0, max=100.0)))
    gate.acquire("p", "first", join=False)
    gate.acquire("p", *(f"w{n}" for n in range(40)), alive=3600, term=60)
    for _ in range(20):
        gate.now += SECOND // 5
        gate.release("p", *gate.holders.items())
    grown = float(gate.fields["rate"])
    assert grown > 10
    gate.release("p", *((id, f"{fence} t") for id, fence in gate.holders.items()))
    assert float(gate.fields["rate"]) < grown


@pytest.mark.parametrize(
    ("bounds", "said"),
    [
        (Adaptive(20, 30, 40), "must be in this order"),
        (Adaptive(20, 1, 10), "must be in this order"),
        (Adaptive(20, 0, 40), "not 0"),
        (Adaptive(20, 1, 2.5), "not 2.5"),
    ],
)
def test_bounds_that_cannot_work_are_refused(bounds, said):
    with pytest.raises(SettingError, match=said):
        TokenBucket("redis://127.0.0.1:1/0", "g", limit=bounds)


async def test_the_faces_report(redis):
    gate = TokenBucket(redis, "g", limit=Adaptive(start=4, min=1, max=8))
    async with gate as permit:
        permit.throttled(retry_after=2)
    with gate as permit:
        permit.overloaded()
    with pytest.raises(ZeroDivisionError):
        async with gate:
            _ = 1 / 0
    permit = await gate.acquire()
    with pytest.raises(SettingError, match="retry_after"):
        permit.throttled(retry_after=-1)
    await permit.give_back()
    status = await gate.status()
    assert status.adaptive is not None
    assert (status.adaptive.throttled, status.adaptive.overloaded) == (1, 1)
    assert (status.limit, status.adaptive.adapts, status.adaptive.max) == (3, "limit", 8)
    assert status.adaptive.latest is not None
    assert status.adaptive.latest.why in ("throttled", "overloaded")


async def test_bounds_are_live_and_wrong_ones_are_refused(redis):
    gate = TokenBucket(redis, "g", limit=4)
    with pytest.raises(SettingError, match="does not adapt"):
        await gate.configure(min=1)
    with pytest.raises(SettingError, match="give max too"):
        await gate.configure(adapt=True)
    await gate.configure(adapt=True, max=8)
    with pytest.raises(SettingError, match="order"):
        gate.sync.configure(min=9)
    gate.sync.configure(min=6)
    assert (await gate.status()).limit == 6
    await gate.configure(limit=3)
    status = await gate.status()
    assert (status.limit, status.adaptive and status.adaptive.adapts) == (3, None)


async def test_a_gate_that_adapts_begins_at_start_only_without_its_data(redis):
    gate = TokenBucket(redis, "g", limit=Adaptive(start=4, min=1, max=8))
    async with gate as permit:
        permit.throttled()
    cut = (await gate.status()).limit
    another = TokenBucket(redis, "g", limit=Adaptive(start=7, min=1, max=8))
    assert (await another.status()).limit == cut == 3
    assert (await existing_gate(redis, "g").status()).limit == cut
    redis.flushall()
    assert (await gate.status()).limit == 4

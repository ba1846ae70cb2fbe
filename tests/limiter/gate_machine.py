"""A gate and its model, to which any events happen alike, and what must hold after each."""

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from limiter.terms import Adaptive, Terms
from tests.limiter.clocked import ClockedGate, Sight
from tests.limiter.model import Model, Wish
from tests.limiter.stepping import Stepping

# A step of the clock is a 64th of a second: with whole rates, tokens are exact in
# floating point too, and the model may demand equality.
STEP = 15_625
LIFE = 64 * STEP
PROCESSES = ("p", "q", "r")
COUNTERS = (
    "granted", "released", "expired", "cancelled", "timeouts", "dropped", "readmitted", "lost",
)  # fmt: skip

processes = st.sampled_from(PROCESSES)
lanes = st.sampled_from([0, 0, 0, 1, -3])
picks = st.lists(st.integers(0, 30), max_size=4)
rates = st.sampled_from([1, 2, 8, 64])
reports = st.sampled_from(["", "", "-", "o", "t", "t500000", "t40000000"])


class GateMachine(RuleBasedStateMachine):
    """Does the same to a gate and to its model, and compares all that can be seen."""

    def __init__(self, redis: Any) -> None:
        super().__init__()
        redis.flushall()
        self.redis = redis
        self.wishes: list[Wish] = []
        self.granted: list[int] = []
        self.last_fence = 0
        self.grants: list[int] = []
        self.paced = 0  # grants before the rate was last changed

    bounds: Adaptive | None = None
    kind_of_gate: type[ClockedGate] = ClockedGate

    @initialize(limit=st.integers(1, 4), rate=st.none() | rates, burst=st.integers(1, 4))
    def a_gate(self, limit: int, rate: int | None, burst: int) -> None:
        self.begin(limit, rate, burst)

    def begin(self, limit: int, rate: int | None, burst: int) -> None:
        allowed = self.bounds or limit
        terms = Terms(allowed, float(rate) if rate else None, burst if rate else None)
        self.terms = (limit, rate, terms.burst)
        self.gate = self.kind_of_gate(self.redis, terms)
        self.model = self.a_model()
        self.gate.sweep("p")
        self.model.sweep("p", self.gate.now)

    @rule(steps=st.integers(1, 30) | st.sampled_from([63, 64, 65, 96]))
    def time_passes(self, steps: int) -> None:
        self.gate.now += steps * STEP

    @rule(
        process=processes,
        lanes=st.lists(lanes, min_size=1, max_size=4),
        again=picks,
        back=picks,
        join=st.booleans(),
        hold=st.booleans(),
    )
    def acquire(
        self,
        process: str,
        lanes: list[int],
        again: list[int],
        back: list[int],
        join: bool,
        hold: bool,
    ) -> None:
        term = LIFE + hold * LIFE // 2
        new = [
            Wish(f"w{len(self.wishes) + n}", process, lane, term) for n, lane in enumerate(lanes)
        ]
        asking = [*self.picked(again, process), *new]
        self.wishes += new
        self.ask(process, asking, [wish for wish in self.picked(back) if wish not in asking], join)

    @rule(process=processes, picks=picks.filter(bool))
    def first_asks_arrive_once_more(self, process: str, picks: list[int]) -> None:
        """As they were sent, without a ticket, and after whatever has been made of them since."""
        late = self.picked(picks, process)
        for wish in late:
            wish.score = ""
        if late:
            self.ask(process, late, [], join=True)

    @rule(process=processes, picks=picks, stale=st.booleans(), word=reports)
    def release(self, process: str, picks: list[int], stale: bool, word: str) -> None:
        permits = [(wish.id, wish.fence - stale) for wish in self.picked(picks)]
        reported = [(id, self.receipt(id, fence, word)) for id, fence in permits]
        released = self.gate.release(process, *reported)
        assert released == self.model.release(process, permits, self.gate.now, word)
        assert not (stale and released)

    @rule(process=processes, picks=picks)
    def renew(self, process: str, picks: list[int]) -> None:
        held = [wish for wish in self.picked(picks, process) if wish.fence]
        permits = [(wish.id, wish.fence, self.term(wish)) for wish in held]
        kept = self.gate.renew(process, *permits, alive=LIFE / 1e6)
        assert kept == self.model.renew(process, held, LIFE, self.gate.now)

    @rule(picks=picks)
    def revoke(self, picks: list[int]) -> None:
        for wish in self.picked(picks)[:1]:
            revoked = self.gate.revoke("operator", wish.id)
            assert revoked == self.model.revoke("operator", wish.id, self.gate.now)

    @rule(process=processes, picks=picks, counter=st.sampled_from(["cancelled", "timeouts"]))
    def cancel(self, process: str, picks: list[int], counter: str) -> None:
        ids = [wish.id for wish in self.picked(picks)]
        places = self.gate.cancel(process, *ids, counter=counter)
        assert places == self.model.cancel(process, ids, counter, self.gate.now)

    @rule(process=processes)
    def sweep(self, process: str) -> None:
        wake = self.gate.sweep(process)
        self.model.sweep(process, self.gate.now)
        assert (wake != 0) or not self.gate.line, "nobody looks again at once after looking"

    @rule(limit=st.integers(1, 5))
    def resize(self, limit: int) -> None:
        self.configure(limit=str(limit))

    @rule(paused=st.booleans())
    def pause_or_resume(self, paused: bool) -> None:
        self.configure(paused=str(int(paused)))

    @rule(rate=rates, burst=st.integers(1, 4))
    def pace(self, rate: int, burst: int) -> None:
        self.model.begin("operator", self.gate.now)
        self.configure(rate=str(float(rate)), burst=str(burst))
        self.paced = len(self.grants)

    @precondition(lambda self: self.model.counted["granted"] > 2)
    @rule()
    def redis_loses_its_data(self) -> None:
        self.redis.flushall()
        self.gate.forget_letters()
        self.gate.now += STEP  # a restart takes longer than a microsecond: fences rely on it
        self.model = self.a_model()
        self.paced = len(self.grants)
        self.sweep("p")

    @invariant()
    def all_is_well(self) -> None:
        if hasattr(self, "gate"):
            sight = self.gate.look(PROCESSES)
            counted = {counter: int(sight.fields.get(counter, 0)) for counter in COUNTERS}
            self.the_gate_is_what_the_model_says(sight, counted)
            self.what_came_in_went_out_or_is_in_flight(sight, counted)
            self.fences_only_grow(sight)
            self.nobody_waits_while_there_is_room(sight)
            self.no_window_has_more_grants_than_its_rate_allows()

    def the_gate_is_what_the_model_says(self, sight: Sight, counted: dict[str, int]) -> None:
        model = self.model
        assert sight.leases == {id: lease.ends for id, lease in model.leases.items()}
        assert sight.line == [id for _, id, _ in model.line]
        assert sight.leftovers == 0
        for process, letters in sight.letters.items():
            assert letters == model.mailed.pop(process, [])
            for id, fence in letters:
                self.got(next(wish for wish in self.wishes if wish.id == id), fence)
        assert counted == {counter: model.counted[counter] for counter in COUNTERS}
        assert sight.fields["limit"] == str(model.limit)
        if rule := model.stepping:
            assert rule.min <= model.limit <= rule.max
            assert {name: int(sight.fields.get(name, 0)) for name in rule.counted} == rule.counted
            assert float(sight.fields["exact"]) == pytest.approx(rule.exact)

    def what_came_in_went_out_or_is_in_flight(self, sight: Sight, counted: dict[str, int]) -> None:
        came = counted["granted"] + counted["readmitted"]
        assert came - counted["released"] - counted["expired"] == len(sight.leases)

    def fences_only_grow(self, sight: Sight) -> None:
        granted, self.granted = sorted(self.granted), []
        assert len(set(granted)) == len(granted)
        if granted:
            # No grant takes the leases above the limit then in force.
            assert self.model.limit is None or len(sight.leases) <= self.model.limit
            assert granted[0] > self.last_fence
            self.last_fence = granted[-1]

    def nobody_waits_while_there_is_room(self, sight: Sight) -> None:
        """By what the last script wrote: what time has changed since, the next one acts on."""
        fields = sight.fields
        if fields.get("paused") == "1" or float(fields.get("hold_until", 0)):
            return
        full = len(sight.leases) >= int(fields["limit"])
        spent = self.model.rate and float(fields["tokens"]) < 1
        assert full or spent or not (sight.line or sight.apart)

    def no_window_has_more_grants_than_its_rate_allows(self) -> None:
        if not self.model.rate:
            return
        rate, burst = self.model.rate, self.model.burst or 0
        times = self.grants[self.paced :]
        for first, start in enumerate(times):
            for last, end in enumerate(times[first:], 1):
                assert last <= burst + Fraction(end - start, 1_000_000) * rate

    def receipt(self, id: str, fence: int, word: str) -> str:
        return f"{fence} {word}".strip()

    def term(self, wish: Wish) -> int | str:
        return wish.term

    def lane(self, wish: Wish) -> int | str:
        return wish.lane

    def a_model(self) -> Model:
        stepping = Stepping(self.terms[0], 1, self.bounds.max) if self.bounds else None
        return Model(*self.terms, filled=self.gate.now, stepping=stepping)

    def ask(self, process: str, asking: list[Wish], back: list[Wish], join: bool) -> None:
        rows = [(wish.id, self.lane(wish), wish.score, self.term(wish)) for wish in asking]
        given = [(wish.id, wish.fence) for wish in back]
        verdicts, scores = self.gate.ask(process, rows, alive=LIFE / 1e6, join=join, released=given)
        assert verdicts == self.model.acquire(process, asking, given, LIFE, join, self.gate.now)
        for wish, verdict, score in zip(asking, verdicts, scores, strict=True):
            if verdict > 0:
                self.got(wish, verdict)
            elif verdict < 0:
                wish.score = score

    def configure(self, **changes: str) -> None:
        self.gate.configure("operator", **changes)
        self.model.configure("operator", changes, self.gate.now)

    def got(self, wish: Wish, fence: int) -> None:
        """A caller hears of its grant, perhaps once more."""
        if fence != wish.fence:
            assert fence > wish.fence
            self.granted.append(fence)
            self.grants.append(self.gate.now)
            wish.fence = fence

    def picked(self, picks: list[int], process: str = "") -> list[Wish]:
        """Some of the latest wishes, each once."""
        known = [wish for wish in self.wishes if process in ("", wish.process)][-12:]
        chosen = dict.fromkeys(pick % len(known) for pick in picks) if known else ()
        return [known[n] for n in chosen]

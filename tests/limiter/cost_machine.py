"""A gate whose permits cost more than one, and its model: exact, and slow."""

from dataclasses import dataclass, field
from fractions import Fraction
from random import Random
from typing import Any

import pytest

from limiter.terms import Amount, Terms
from tests.limiter.clocked import ClockedGate, Sight
from tests.limiter.gate_machine import PROCESSES, STEP, GateMachine
from tests.limiter.model import Model, Wish

PASSING = 4
Cost = tuple[int, int]  # units, tokens
COSTS: list[Cost] = [(1, 1), (3, 1), (1, 5), (2, 2), (9, 1), (1, 1), (1, 40)]


def cost_of(id: str) -> Cost:
    """Each wish has a cost; the first ones of a short example differ."""
    return COSTS[int(id[1:]) * 3 % len(COSTS)]


@dataclass
class CostModel(Model):
    """What a gate with costs means, said a second time."""

    token_rate: int = 0
    token_burst: int = 0
    earned: Fraction = Fraction(0)
    units: dict[str, int] = field(default_factory=dict)  # of the permits
    back: dict[str, Cost] = field(default_factory=dict)  # what a release settles
    passed: int = 0
    passed_by: str = ""

    def begin(self, caller: str, now: int) -> None:
        if self.token_rate:
            grown = self.earned + Fraction(now - self.filled, 1_000_000) * self.token_rate
            self.earned = min(Fraction(self.token_burst), grown)
        super().begin(caller, now)

    @property
    def used(self) -> int:
        return sum(self.units[id] for id in self.leases)

    def wanted(self, id: str) -> int:
        units = cost_of(id)[0]
        return units if self.limit is None else min(units, self.limit)

    def obstacle(self, id: str) -> str:
        units, tokens = cost_of(id)
        if self.limit is not None and self.used + self.wanted(id) > self.limit:
            return "limit"
        if self.rate and self.tokens < min(units, self.burst or 0):
            return "time"
        if self.token_rate and self.earned < min(tokens, self.token_burst):
            return "time"
        return ""

    def hand_over(self, now: int) -> None:
        self.step(now)
        self.expire(now)
        self.advance(now)

    def advance(self, now: int) -> None:
        """The first in line go in; small ones pass a big first one for a while."""
        first, budget = "", 0
        for entry in [] if self.paused else [*self.line]:
            _, id, wish = entry
            if (self.limit is not None and self.used >= self.limit) or (first and budget <= 0):
                break
            if not self.alive(wish.process):
                self.line.remove(entry)
                self.counted["dropped"] += 1
                continue
            why = self.obstacle(id)
            if why == "time":
                break
            if not why and (not first or self.wanted(id) <= budget):
                if first:
                    budget -= self.wanted(id)
                    self.passed += self.wanted(id)
                self.line.remove(entry)
                fence = self.let_in(id, wish.process, wish.term, now)
                self.mailed.setdefault(wish.process, []).append((id, fence))
            elif not first:
                first = id
                if self.passed_by != id:
                    self.passed, self.passed_by = 0, id
                budget = PASSING * self.wanted(id) - self.passed

    def let_in(self, id: str, process: str, term: int, now: int) -> int:
        fence = super().let_in(id, process, term, now)
        units, tokens = cost_of(id)
        self.units[id] = self.wanted(id)
        if self.rate:
            self.tokens -= units - 1
        if self.token_rate:
            self.earned -= tokens
        return fence

    def acquire(
        self,
        process: str,
        wishes: list[Wish],
        given_back: list[tuple[str, int]],
        life: int,
        join: bool,
        now: int,
    ) -> list[int]:
        self.begin(process, now)
        self.let_go(given_back)
        self.hand_over(now)
        verdicts = [self.ask(wish, process, join, now) for wish in wishes]
        if min(verdicts) < 0:
            self.advance(now)
            self.lives[process] = now + life
        self.clear_the_head()
        return verdicts

    def ask(self, wish: Wish, process: str, join: bool, now: int) -> int:
        new = wish.id not in self.leases and not self.place(wish.id) and not self.line
        if new and not self.paused and not self.obstacle(wish.id):
            return self.let_in(wish.id, process, wish.term, now)
        return super().ask(wish, process, join, now)

    def open(self) -> bool:
        return False  # `ask` has looked

    def let_go(self, permits: list[tuple[str, int]], word: str = "") -> int:
        for id, fence in permits:
            if self.holds(id, fence) and id in self.back:
                units, tokens = self.back[id]
                if self.rate:
                    self.tokens = min(Fraction(self.burst or 0), self.tokens + units)
                if self.token_rate:
                    self.earned = min(Fraction(self.token_burst), self.earned + tokens)
        return super().let_go(permits, word)

    def keep(self, wish: Wish, process: str, now: int) -> bool:
        lost = wish.id not in self.leases
        if lost and self.limit is not None and self.used + self.wanted(wish.id) > self.limit:
            self.counted["lost"] += 1
            return False
        if lost:
            self.units[wish.id] = self.wanted(wish.id)
        limit, self.limit = self.limit, None
        kept = super().keep(wish, process, now)
        self.limit = limit
        return kept


class CostMachine(GateMachine):
    """Does the same to a gate with costs and to its model."""

    model: CostModel

    def __init__(self, redis: Any, seed: int) -> None:
        super().__init__(redis)
        self.draw = Random(seed)
        self.back: dict[str, Cost] = {}
        rate = self.draw.choice([None, None, 8, 64])
        self.begin(self.draw.randint(1, 8), rate, self.draw.randint(1, 6))

    def live(self) -> None:
        """Something happens."""
        draw = self.draw
        process, picks = draw.choice(PROCESSES), [draw.randint(0, 30) for _ in range(3)]
        match draw.randint(0, 11):
            case 0:
                self.time_passes(draw.choice([1, 8, 30, 65]))
                self.renew(process, picks)
            case 1:
                self.cancel(process, picks, "cancelled")
            case 2 if draw.random() < 0.3:
                self.configure(limit=str(draw.randint(1, 12)))
            case 3 if draw.random() < 0.1 and self.model.counted["granted"] > 2:
                self.redis_loses_its_data()
            case 4 if draw.random() < 0.3:
                self.pause_or_resume(draw.random() < 0.3)
            case 5:
                for id in self.model.leases:
                    self.back[id] = (draw.randint(-6, 6), draw.randint(-20, 20))
            case 6 | 7 | 8:
                self.release(process, picks, draw.random() < 0.1, "")
            case _:
                new, join = draw.randint(1, 4), draw.random() < 0.9
                self.acquire(process, [0] * new, picks[:1], picks[1:2], join, draw.random() < 0.3)
        self.gate.now += draw.choice([0, STEP])
        self.all_is_well()

    def begin(self, limit: int, rate: int | None, burst: int) -> None:
        self.amounts = (Amount("tokens", 64.0, 8),) if burst % 2 else ()
        self.terms = (limit, rate, burst if rate else None)
        terms = Terms(limit, float(rate) if rate else None, self.terms[2], self.amounts)
        self.gate = ClockedGate(self.redis, terms)
        self.model = self.a_model()
        self.sweep("p")

    def receipt(self, id: str, fence: int, word: str) -> str:
        if id not in self.back:
            return super().receipt(id, fence, word)
        units, tokens = self.back[id]
        return f"{fence} {word} requests={units} tokens={tokens}"

    def term(self, wish: Wish) -> int | str:
        units, tokens = cost_of(wish.id)
        return f"{wish.term} {units}{f' tokens={tokens}' if self.amounts else ''}"

    def ask(self, process: str, asking: list[Wish], back: list[Wish], join: bool) -> None:
        for wish in back:  # these are released without a settlement
            self.back.pop(wish.id, None)
        super().ask(process, asking, back, join)

    def a_model(self) -> CostModel:
        amount = (64, 8) if self.amounts else (0, 0)
        model = CostModel(*self.terms, filled=self.gate.now)
        model.token_rate, model.token_burst = amount
        model.back = self.back
        return model

    def the_gate_is_what_the_model_says(self, sight: Sight, counted: dict[str, int]) -> None:
        super().the_gate_is_what_the_model_says(sight, counted)
        model = self.model
        units = {id: model.units[id] for id in model.leases}
        assert self.gate.costs == {id: each for id, each in units.items() if each > 1}
        assert int(sight.fields.get("extra", 0)) == sum(units.values()) - len(units)
        if model.rate:
            assert float(sight.fields["tokens"]) == pytest.approx(float(model.tokens))
        if model.token_rate:
            tokens = float(sight.fields.get("tokens:tokens", 0))
            assert tokens == pytest.approx(float(model.earned))

    def fences_only_grow(self, sight: Sight) -> None:
        granted = bool(self.granted)
        super().fences_only_grow(sight)
        if granted and self.model.limit is not None:
            assert self.model.used <= self.model.limit, "no grant takes the costs above the limit"

    def no_window_has_more_grants_than_its_rate_allows(self) -> None:
        """A settlement gives back; the model has each token."""

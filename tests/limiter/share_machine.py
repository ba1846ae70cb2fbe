"""A gate whose waiters have shares, and its model: exact, and slow."""

from dataclasses import dataclass, field
from fractions import Fraction
from random import Random
from typing import Any

from limiter.terms import Terms
from tests.limiter.clocked import ClockedGate, Sight
from tests.limiter.gate_machine import PROCESSES, STEP, GateMachine
from tests.limiter.model import Model, Wish

SHARES = ("", "a", "b", "", "c", "a", "b", "a")
WEIGHTS = (None, 0.0, 0.5, 1.0, 2.0, 4.0)
LANES = (0, 0, 0, 0, 1, -3)


def share_of(id: str) -> str:
    """Each wish has a share."""
    return SHARES[int(id[1:]) * 3 % len(SHARES)]


@dataclass
class Turns:
    """One lane's shares: when the next of each is due, and how far it has come."""

    due: dict[str, Fraction] = field(default_factory=dict)
    ahead: dict[str, Fraction] = field(default_factory=dict)
    clock: Fraction = Fraction(0)


@dataclass
class ShareModel(Model):
    """What a gate with shares means, said a second time."""

    weights: dict[str, Fraction] = field(default_factory=dict)
    turns: dict[int, Turns] = field(default_factory=dict)

    def step_of(self, share: str) -> Fraction:
        return 1 / (self.weight_of(share) or Fraction(1))

    def weight_of(self, share: str) -> Fraction:
        return self.weights.get(share, self.weights.get("*", Fraction(1)))

    def waiting(self, lane: int, share: str) -> list[tuple[int, str, Wish]]:
        return [
            entry
            for entry in self.line
            if entry[0] // self.LANE == lane and share_of(entry[1]) == share
        ]

    def enter(self, lane: int, share: str) -> None:
        turns = self.turns.setdefault(lane, Turns())
        if share not in turns.due:
            begins = max(turns.clock, turns.ahead.pop(share, Fraction(0)))
            turns.due[share] = begins + self.step_of(share)

    def leave(self, lane: int, share: str) -> None:
        turns = self.turns[lane]
        came_to = turns.due.pop(share) - self.step_of(share)
        turns.ahead = {one: place for one, place in turns.ahead.items() if place > turns.clock}
        if came_to > turns.clock:
            turns.ahead[share] = came_to
        if not turns.due:
            del self.turns[lane]

    def look(self) -> None:
        """The one who goes next becomes the first in the list."""
        for lane in [*self.turns]:
            for share in [share for share in self.turns[lane].due if share]:
                if not self.waiting(lane, share):
                    self.leave(lane, share)
        if not self.line:
            self.turns.clear()
            return
        self.line.sort(key=lambda entry: entry[:2])
        plain = [entry[0] // self.LANE for entry in self.line if not share_of(entry[1])]
        for lane in sorted(lane for lane in self.turns if not plain or lane <= plain[0]):
            if lane in plain:
                self.enter(lane, "")
            if (share := self.whose_turn(lane)) is not None:
                first = min(self.waiting(lane, share), key=lambda entry: entry[:2])
                self.line.remove(first)
                self.line.insert(0, first)
                return

    def whose_turn(self, lane: int) -> str | None:
        """The share '' leaves only when its turn comes: it may wait without a word to us."""
        turns = self.turns[lane]
        while turns.due:
            share = min(turns.due, key=lambda one: (not self.weight_of(one), turns.due[one], one))
            if self.waiting(lane, share):
                return share
            self.leave(lane, share)
        return None

    def hand_over(self, now: int) -> None:
        self.step(now)
        self.expire(now)
        self.clear_the_head_while_open(now)
        self.look()

    def clear_the_head_while_open(self, now: int) -> None:
        while self.line and self.open():
            self.clear_the_head()
            if self.line:
                score, id, wish = self.line.pop(0)
                self.charge(score // self.LANE, share_of(id))
                fence = self.let_in(id, wish.process, wish.term, now)
                self.mailed.setdefault(wish.process, []).append((id, fence))

    def charge(self, lane: int, share: str) -> None:
        if (turns := self.turns.get(lane)) is not None:
            turns.clock = max(turns.clock, turns.due[share])
            turns.due[share] += self.step_of(share)

    def clear_the_head(self) -> None:
        self.look()
        while self.line and not self.alive(self.line[0][2].process):
            self.line.pop(0)
            self.counted["dropped"] += 1
            self.look()

    def stand_in_line(self, wish: Wish) -> None:
        super().stand_in_line(wish)
        if share_of(wish.id):
            score = next(score for score, id, _ in self.line if id == wish.id)
            self.enter(score // self.LANE, share_of(wish.id))

    def place(self, id: str) -> int:
        """In the line of its share; that of those without one goes through all lanes."""
        mine = next((entry for entry in self.line if entry[1] == id), None)
        if mine is None:
            return 0
        share, lane = share_of(id), mine[0] // self.LANE
        line = self.waiting(lane, share) if share else [
            entry for entry in self.line if not share_of(entry[1])
        ]  # fmt: skip
        return sorted(entry[:2] for entry in line).index(mine[:2]) + 1

    def weigh(self, weights: dict[str, float | None]) -> None:
        before = {
            (lane, share): (self.weight_of(share), self.step_of(share))
            for lane, turns in self.turns.items()
            for share in turns.due
        }
        for share, weight in weights.items():
            if weight is None:
                self.weights.pop(share, None)
            else:
                self.weights[share] = Fraction(weight)
        for (lane, share), (weight, step) in before.items():
            if weight != self.weight_of(share):
                turns = self.turns[lane]
                came_to = max(turns.due[share] - step, turns.clock)
                turns.due[share] = came_to + self.step_of(share)


class ShareMachine(GateMachine):
    """Does the same to a gate with shares and to its model."""

    model: ShareModel

    def __init__(self, redis: Any, seed: int) -> None:
        super().__init__(redis)
        self.draw = Random(seed)
        self.begin(self.draw.randint(1, 5), self.draw.choice([None, None, 8, 64]), 4)

    def live(self) -> None:
        """Something happens."""
        draw = self.draw
        process, picks = draw.choice(PROCESSES), [draw.randint(0, 30) for _ in range(3)]
        match draw.randint(0, 12):
            case 0:
                self.time_passes(draw.choice([1, 8, 30, 65]))
                self.renew(process, picks)
            case 1:
                self.cancel(process, picks, "cancelled")
            case 2:
                self.resize(draw.randint(1, 5))
            case 3:
                self.weigh({draw.choice(("a", "b", "c", "", "*")): draw.choice(WEIGHTS)})
            case 4 if draw.random() < 0.2 and self.model.counted["granted"] > 2:
                self.redis_loses_its_data()
            case 4:
                self.first_asks_arrive_once_more(process, picks)
            case 5 | 6 | 7 | 8:
                self.release(process, picks, draw.random() < 0.1, "")
            case _:
                lanes = [draw.choice(LANES) for _ in range(draw.randint(1, 5))]
                join = draw.random() < 0.9
                self.acquire(process, lanes, picks[:1], picks[1:2], join, draw.random() < 0.3)
        self.all_is_well()
        self.gate.now += draw.choice([0, STEP])

    def weigh(self, weights: dict[str, float | None]) -> None:
        self.model.begin("operator", self.gate.now)
        self.model.weigh(weights)
        self.configure(**{f"weight:{share}": "" if weight is None else str(weight)
                          for share, weight in weights.items()})  # fmt: skip

    def begin(self, limit: int, rate: int | None, burst: int) -> None:
        self.terms = (limit, rate, burst if rate else None)
        terms = Terms(limit, float(rate) if rate else None, self.terms[2])
        self.gate = ClockedGate(self.redis, terms)
        self.model = self.a_model()
        self.sweep("p")

    def lane(self, wish: Wish) -> int | str:
        share = share_of(wish.id)
        return f"{wish.lane} {share}" if share else wish.lane

    def a_model(self) -> ShareModel:
        return ShareModel(*self.terms, filled=self.gate.now)

    def the_gate_is_what_the_model_says(self, sight: Sight, counted: dict[str, int]) -> None:
        line, model = self.model.line, self.model
        apart = sorted((e for e in line if share_of(e[1])), key=lambda e: (
            e[0] // model.LANE, share_of(e[1]), e[0], e[1]
        ))  # fmt: skip
        assert sight.apart == [id for _, id, _ in apart]
        model.line = sorted((e for e in line if not share_of(e[1])), key=lambda e: e[:2])
        super().the_gate_is_what_the_model_says(sight, counted)
        model.line = line
        for lane, turns in model.turns.items():
            assert self.gate.turns(lane) == {
                share: place + (0 if model.weight_of(share) else 2**50)
                for share, place in turns.due.items()
            }, f"lane {lane}"

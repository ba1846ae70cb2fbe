"""A gate whose waiters have costs, shares, or both, and its model, to which the same happens."""

from random import Random
from typing import Any

import pytest

from limiter.terms import Amount, Terms
from tests.limiter.clocked import ClockedGate, Sight
from tests.limiter.gate_machine import PROCESSES, STEP, GateMachine
from tests.limiter.line_model import Cost, LineModel, Settlement, Turns
from tests.limiter.model import Wish

WEIGHTS = (None, 0.0, 0.5, 1.0, 2.0, 4.0)
LANES = (0, 0, 0, 0, 1, -3)
BEHIND = 2**46  # the places of weight 0 begin here


class LineMachine(GateMachine):
    """Does the same to a gate and to its model, by the dice of a seed."""

    model: LineModel

    def __init__(self, redis: Any, seed: int, *, costs: bool, shares: bool) -> None:
        super().__init__(redis)
        self.draw = Random(seed)
        self.costs, self.shares = costs, shares
        self.settled: dict[str, Settlement] = {}
        rate = self.draw.choice([None, None, 8, 64])
        self.begin(self.draw.randint(1, 8 if costs else 5), rate, self.draw.randint(1, 6))

    def begin(self, limit: int, rate: int | None, burst: int) -> None:
        self.amounts = (Amount("tokens", 32.0, 8),) if self.costs and burst % 2 else ()
        self.terms = (limit, rate, burst if rate else None)
        terms = Terms(limit, float(rate) if rate else None, self.terms[2], self.amounts)
        self.gate = ClockedGate(self.redis, terms)
        self.model = self.a_model()
        self.sweep("p")

    def a_model(self) -> LineModel:
        token_rate, token_burst = (32, 8) if self.amounts else (0, 0)
        return LineModel(
            *self.terms, filled=self.gate.now, costs=self.costs, shares=self.shares,
            token_rate=token_rate, token_burst=token_burst, settled=self.settled,
        )  # fmt: skip

    def live(self) -> None:
        """Something happens."""
        draw = self.draw
        process, picks = draw.choice(PROCESSES), [draw.randint(0, 30) for _ in range(3)]
        match draw.randint(0, 15):
            case 0:
                self.time_passes(draw.choice([1, 8, 30, 65]))
                self.renew(process, picks)
            case 1:
                self.cancel(process, picks, draw.choice(["cancelled", "timeouts"]))
            case 2:
                self.resize(draw.randint(1, 12 if self.costs else 5))
            case 3 if self.shares:
                self.weigh({draw.choice(("a", "b", "c", "", "*")): draw.choice(WEIGHTS)})
            case 4 if draw.random() < 0.15 and self.model.counted["granted"] > 2:
                self.redis_loses_its_data()
            case 4:
                self.first_asks_arrive_once_more(process, picks)
            case 5 if draw.random() < 0.3:
                self.pause_or_resume(draw.random() < 0.3)
            case 6 | 7 if self.costs:
                self.holders_learn_what_it_cost()
            case 8 if draw.random() < 0.3:
                self.revoke(picks)
            case 8 | 9 | 10 | 11:
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

    def holders_learn_what_it_cost(self) -> None:
        for wish in self.wishes:
            if wish.id in self.model.leases:
                cost = (self.draw.randint(0, 12), self.draw.randint(0, 60))
                lane = int(wish.score) // self.model.LANE if wish.score else None
                self.settled[wish.id] = Settlement(cost, lane)

    def receipt(self, id: str, fence: int, word: str) -> str:
        """As a permit that was settled gives it."""
        if id not in self.settled:
            return super().receipt(id, fence, word)
        settlement, said = self.settled[id], self.model.cost_of(id)
        units, tokens = said[0] - settlement.cost[0], said[1] - settlement.cost[1]
        text = f"{fence} {word} requests={units} tokens={tokens}"
        if settlement.lane is None:
            return text
        turn = (settlement.lane, self.model.share_of(id), _text(said), _text(settlement.cost))
        return text + "".join(f"|{part}" for part in turn)

    def term(self, wish: Wish) -> int | str:
        return f"{wish.term} {_text(self.model.cost_of(wish.id))}" if self.costs else wish.term

    def lane(self, wish: Wish) -> int | str:
        share = self.model.share_of(wish.id)
        return f"{wish.lane} {share}" if share else wish.lane

    def ask(self, process: str, asking: list[Wish], back: list[Wish], join: bool) -> None:
        for wish in back:  # these are released without a settlement
            self.settled.pop(wish.id, None)
        super().ask(process, asking, back, join)

    # What must hold

    def the_gate_is_what_the_model_says(self, sight: Sight, counted: dict[str, int]) -> None:
        line, model = self.model.line, self.model
        apart = [entry for entry in line if model.share_of(entry[1])]
        apart.sort(key=lambda e: (model.lane_of(e), model.share_of(e[1]), e[0], e[1]))
        assert sight.apart == [id for _, id, _ in apart]
        model.line = [entry for entry in line if entry not in apart]
        super().the_gate_is_what_the_model_says(sight, counted)
        model.line = line
        self.turns_are_what_the_model_says(sight)
        self.costs_are_what_the_model_says(sight)

    def turns_are_what_the_model_says(self, sight: Sight) -> None:
        model = self.model
        for lane in set(LANES):
            turns = model.turns.get(lane, Turns())
            assert self.gate.turns(lane) == {
                share: place + (0 if model.weight_of(share) else BEHIND)
                for share, place in turns.due.items()
            }, f"lane {lane}"
            assert float(sight.fields.get(f"clock:{lane}", 0)) == turns.clock
            ahead = {share: own for share, own in turns.ahead.items() if own > turns.clock}
            idle = self.gate.idle(lane)
            assert {share: own for share, own in idle.items() if own > turns.clock} == ahead

    def costs_are_what_the_model_says(self, sight: Sight) -> None:
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
        if granted and self.model.limit is not None and len(self.model.leases) > 1:
            # One whose cost is above the limit gets in when it is alone.
            assert self.model.used <= self.model.limit, "no grant takes the costs above the limit"

    def nobody_waits_while_there_is_room(self, sight: Sight) -> None:
        if not self.costs:  # else a big first one may wait alone; the model knows for whom
            super().nobody_waits_while_there_is_room(sight)

    def no_window_has_more_grants_than_its_rate_allows(self) -> None:
        if not self.costs:  # else a settlement gives back; the model has each token
            super().no_window_has_more_grants_than_its_rate_allows()


def _text(cost: Cost) -> str:
    return f"{cost[0]} tokens={cost[1]}"

"""A process's way to one gate: what both faces of a gate ask of its engine."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from ground.redis.answers import Answer
from ground.redis.url import RedisTarget
from ground.redis.wire import packed
from ground.shares import check_share
from limiter.engine import GateEngine, gate_unit
from limiter.errors import GateError, GateUnavailable
from limiter.exchange import GateUnit
from limiter.ledger import Ask, Call, Ledger, LoopAsk, ThreadAsk, Wish
from limiter.permit import with_cost
from limiter.terms import Cost, Manner, Terms, check_wish

AnyAsk = TypeVar("AnyAsk", LoopAsk, ThreadAsk)


class GateClient:
    """Made with the gate; the engine is found, or started, when something is asked."""

    def __init__(self, target: RedisTarget, name: str, terms: Terms, manner: Manner) -> None:
        self.name = name
        self._target = target
        self._terms = terms
        self._manner = manner
        self._unit: GateUnit | None = None

    def __reduce__(self) -> Any:
        """Another process has its own engine, as a forked child has."""
        return GateClient, (self._target, self.name, self._terms, self._manner)

    @property
    def unit(self) -> GateUnit:
        """The gate's in this process. An engine that has ended is replaced: after a fork, say."""
        unit = self._unit
        if unit is None or unit.engine.stopped:
            unit = gate_unit(self._target, self.name, self._new_unit)
            self._usual, self._usual_try = self._wish(unit), self._wish(unit, joins=False)
            self._unit = unit
            unit.engine.post(unit, partial(unit.meet, self._terms, self._manner))
        return unit

    def _new_unit(self, engine: GateEngine) -> GateUnit:
        return GateUnit(engine, self.name, self._terms, self._manner)

    def new_ask(
        self,
        kind: type[AnyAsk],
        timeout: float | None = None,
        ticket: str = "",
        lane: int = 0,
        orphan_hold: float | None = None,
        cost: Cost | None = None,
        share: str = "",
        *,
        joins: bool = True,
    ) -> AnyAsk:
        """A checked request; its answer is not waited for yet."""
        if lane or share or cost is not None or orphan_hold is not None or type(lane) is not int:
            check_wish(timeout, lane, ticket, orphan_hold)
            if share:
                check_share(share)
            charge = None if cost is None else self._terms.charge(cost)
            unit = self.unit  # last: it makes the gate
            wish = self._wish(unit, int(lane), orphan_hold, charge, share, joins)
        else:
            if timeout is not None or ticket != "":
                check_wish(timeout, lane, ticket)
            unit = self.unit
            wish = self._usual if joins else self._usual_try
        now = unit.engine.clock()
        return kind(unit, wish, now, math.inf if timeout is None else now + timeout, ticket)

    def _wish(
        self,
        unit: GateUnit,
        lane: int = 0,
        orphan_hold: float | None = None,
        charge: dict[str, int] | None = None,
        share: str = "",
        joins: bool = True,
    ) -> Wish:
        if charge is None and self._terms.amounts:
            charge = {}
        special = bool(share) or charge is not None
        if special and unit.commands.plain:
            unit.commands.use_full()  # so that what is sent before it goes the same way
        hold_us = int((self._manner.orphan_hold if orphan_hold is None else orphan_hold) * 1e6)
        return Wish(
            row=f"{lane} {share}" if share else lane, share=share, hold_us=hold_us,
            term=with_cost(unit.term_us + hold_us, charge), charge=charge, joins=joins,
            special=special,
        )  # fmt: skip

    def ask(self, ask: Ask) -> None:
        """Post it; its answer comes."""
        unit = ask.ledger
        unit.engine.request(unit, ask.enter, ask)

    def abandon(self, ask: Ask) -> None:
        """The ask's caller waits no longer: cancel the ask, or release what it got."""
        unit = ask.ledger
        unit.engine.post(unit, partial(unit.abandon, ask))

    def seconds_left(self, ask: Ask) -> float | None:
        return ask.seconds_left(ask.ledger.engine.clock())

    def call(self, command: Callable[[Ledger], Any], answer: Answer) -> None:
        """Send a command out of turn; refused here if its arguments cannot be said to Redis."""
        unit = self.unit
        deadline = unit.engine.clock() + min(self._manner.patience, 5.0)
        call = Call(command(unit), answer, deadline)
        try:
            packed([call.command])
        except (TypeError, UnicodeError) as wrong:
            raise GateError(f"gate {self.name!r}: this cannot be said to Redis: {wrong}") from None
        unit.engine.request(unit, partial(unit.call, call), answer)

    def silent(self) -> GateUnavailable:
        return GateUnavailable(self.name, str(self._target), "it is silent")

"""The shortcuts of an engine: one for each event loop that asks often enough."""

import asyncio
from typing import TYPE_CHECKING

from limiter import loop_wire
from limiter.answers import LoopAnswer
from limiter.ledger import Ledger
from limiter.permit import Lease
from limiter.shortcut import Shortcut
from limiter.wishes import Ask

if TYPE_CHECKING:
    from limiter.engine import Engine


class Shortcuts:
    """See the module."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self._possible = loop_wire.possible(engine.target)
        self._all: dict[asyncio.AbstractEventLoop, Shortcut] = {}

    def ask(self, ledger: Ledger, ask: Ask) -> bool:
        if not (self._possible and isinstance(ask.answer, LoopAnswer)):
            return False
        loop = ask.answer.loop
        shortcut = self._all.get(loop)
        if shortcut is None:
            self._sweep()
            shortcut = self._all[loop] = Shortcut(self._engine, loop)
        return shortcut.ask(ledger, ask)

    def release(self, ledger: Ledger, lease: Lease) -> bool:
        """Only on the loop itself: a permit may be given back by any thread."""
        loop = asyncio._get_running_loop()
        shortcut = self._all.get(loop) if loop is not None else None
        return shortcut is not None and shortcut.release(ledger, lease)

    def lend(self, ledger: Ledger) -> None:
        """What is granted now to a loop that has a shortcut is the loop's to give back by it:
        else a task that takes and gives without a pause would never leave the engine's way."""
        for answer, outcome in ledger.outcomes:
            if isinstance(outcome, Lease) and isinstance(answer, LoopAnswer):
                shortcut = self._all.get(answer.loop)
                if shortcut is not None and shortcut.open:
                    ledger.lend(outcome)

    def end(self) -> None:
        for shortcut in [*self._all.values()]:
            shortcut.end()

    def _sweep(self) -> None:
        for loop in [*self._all]:
            if loop.is_closed() and (shortcut := self._all.pop(loop, None)) is not None:
                shortcut.end()

"""The engines of this process for its gates: one for each Redis.

An engine renews its process's leases. Grants by other processes reach it by an inbox.
"""

import itertools
import logging
import os
import weakref
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

from ground.keys import new_owner
from ground.process import PerProcess
from ground.redis.engine import NEVER, Engine
from ground.redis.url import RedisTarget
from limiter.commands import SCRIPTS
from limiter.errors import GateError
from limiter.exchange import GateUnit
from limiter.permit import Lease, Report

log = logging.getLogger("penstock.limiter")

_KEPT = 60.0  # seconds for which an engine whose gates and permits are gone waits for others


class GateEngine(Engine):
    """The engine of all gates that a process uses on one Redis."""

    name = "gates"

    def __init__(self, target: RedisTarget, retire: Callable[["GateEngine"], bool]) -> None:
        self.process = new_owner()
        # Ids that no other permits have, anywhere. A counter, not chance: its system call drops the
        # GIL, and the thread could send a release before the acquire it should ride with.
        numbered = (os.urandom(8).hex() + ":{:x}").format
        self.new_id: Callable[[], str] = map(numbered, itertools.count(1)).__next__
        # Their gates and permits keep them, and `busy` while there is something to do. So a turn
        # costs only what the gates in use cost.
        self._units: WeakValueDictionary[str, GateUnit] = WeakValueDictionary()
        self._retire = retire
        self._unwanted_since = NEVER
        super().__init__(target, SCRIPTS, log)

    def unit(self, name: str, make: Callable[["GateEngine"], GateUnit]) -> GateUnit:
        """A gate's unit; its first caller gives the terms. Called with the engines' guard held."""
        unit = self._units.get(name)
        if unit is None:
            unit = self._units[name] = make(self)
            weakref.finalize(unit, self.wake).atexit = False
            # One blocked command must not outlast a lease's margin.
            self.connection.timeout = min(self.connection.timeout, unit.lease_seconds / 6)
        return unit

    @property
    def wanted(self) -> bool:
        """Whether this process has, or may yet have, a gate or permit here."""
        return bool(self._units or self.busy)

    # Hooks of `Engine`

    def _ended_error(self) -> Exception:
        return GateError(f"{self.target}: the process is ending, its gates are closed")

    def _due_by_time(self) -> float:
        return self._unwanted_since + _KEPT

    def _tick(self, now: float) -> None:
        if self.wanted:
            self._unwanted_since = NEVER
        else:
            self._unwanted_since = min(self._unwanted_since, now)

    def _retires(self) -> bool:
        """Whether the engine retires: on a Cluster each gate has one, which must not outlive its
        gates for good."""
        return self.clock() >= self._unwanted_since + _KEPT and self._retire(self)

    def _unclaimed(self, outcome: Any) -> None:
        if isinstance(outcome, Lease):
            outcome.report = Report.NOTHING
            outcome.keeper.hand_back(outcome)


_engines = PerProcess[tuple[RedisTarget, str], GateEngine]()
stop_all = _engines.stop_all


def gate_unit(target: RedisTarget, gate: str, make: Callable[[GateEngine], GateUnit]) -> GateUnit:
    """A gate's in this process: an engine that has one does not retire."""
    with _engines.guard:
        return engine_for(target, gate).unit(gate, make)


def engine_for(target: RedisTarget, gate: str = "") -> GateEngine:
    """This process's engine for a Redis; started on first use, and again after a fork.

    On a Cluster each gate has an engine of its own: the node that keeps it may fail
    alone, and a blocked command serves one slot.
    """
    key = (target, gate if target.kind == "cluster" else "")
    return _engines.get(key, lambda: GateEngine(target, _retire))


def _retire(engine: GateEngine) -> bool:
    """End an engine that no caller can reach; False if one came back meanwhile."""
    with _engines.guard:
        if engine.wanted:
            return False
        for key in [key for key, each in _engines.all.items() if each is engine]:
            del _engines.all[key]
        engine.stopped = True
        return True

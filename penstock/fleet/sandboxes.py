"""Session sandboxes of every run are read from their registries; nothing is written."""

import asyncio
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ground import Client, connect
from ground.redis.url import RedisTarget
from penstock.fleet.lines import Waiter
from penstock.fleet.model import Registry, Sandbox
from worker.lifecycle.registry import registry
from worker.lifecycle.registry.records import UNWATCHED, Record, Registered

SHOWN_SANDBOXES = 50
MOST_LOOKED_AT = 2000  # of one run, for a list of them


class Registries:
    """The registries of one Redis, over one client, which is kept for the next time."""

    def __init__(self, target: RedisTarget) -> None:
        self._target = target
        self._client: Client | None = None
        self._lock = threading.Lock()

    async def look(self, runs: Iterable[str], most: int = SHOWN_SANDBOXES) -> dict[str, Registered]:
        """The registries of these runs, by name; their sandboxes that are in trouble listed
        first."""
        return {run: await asyncio.to_thread(self._look, run, most) for run in sorted(runs)}

    async def listed(self, runs: Iterable[str]) -> list[Sandbox]:
        """Read up to 2,000 sandboxes of each of these runs, those that fail to end first."""
        found = {run: await asyncio.to_thread(self._look, run, MOST_LOOKED_AT) for run in runs}
        return _first(box for run, seen in found.items() for box in _of_run(run, seen))

    def _look(self, run: str, most: int) -> Registered:
        with self._lock:
            if self._client is None:
                self._client = connect(self._target)
        seen = registry.Registry(self._target, run, patience=0.0, client=self._client)
        return seen.look(most)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()


def registries(found: dict[str, Registered]) -> tuple[Registry, ...]:
    return tuple(
        Registry(run, dict(seen.states), seen.failing, seen.counters, seen.reaper)
        for run, seen in found.items()
    )


def sandboxes(found: dict[str, Registered]) -> tuple[Sandbox, ...]:
    """The sandboxes of all runs together: those that fail to end first, then the youngest."""
    shown = [box for run, seen in found.items() for box in _of_run(run, seen)]
    return tuple(_first(shown)[:SHOWN_SANDBOXES])


def _of_run(run: str, seen: Registered) -> list[Sandbox]:
    return [_shown(run, record, seen.now) for record in seen.records]


def starting_gates(names: Iterable[str]) -> list[str]:
    """The gates whose permits starts need: the fleet's, and those of runs."""
    return [name for name in names if name.rpartition("/")[2] == "starting"]


def with_reasons(boxes: Sequence[Sandbox], lines: Mapping[str, Sequence[Waiter]]) -> list[Sandbox]:
    """Sandboxes that are not ready say why, with the place of their opener at a STARTING gate."""
    opened = {(box.run, box.session): box.name for box in boxes if box.state in _ON_THEIR_WAY}
    return [
        replace(box, waits=_waits(box, opened.get((box.run, box.session), ""), lines))
        for box in boxes
    ]


_ON_THEIR_WAY = {
    "CREATING": "its provider is asked to make it",
    "STARTING": "its provider has made it, and it is let in once it answers",
}


def _waits(box: Sandbox, opened: str, lines: Mapping[str, Sequence[Waiter]]) -> str:
    if box.state != "WAITING":
        return _ON_THEIR_WAY.get(box.state, "")
    if opened:
        return f"its opener starts sandbox {opened} for it"
    process = box.owner.rpartition(":")[0]
    for gate, line in lines.items():
        for one in line:
            if one.process.rpartition(":")[0] == process:
                place = f"{one.place} of {len(line)} in line at gate {gate!r}"
                return f"its opener is {place}: {one.waits}"
    return "its opener has not begun yet, or is gone: then its lease's end lets another one open it"


def _first(shown: Iterable[Sandbox]) -> list[Sandbox]:
    return sorted(shown, key=lambda box: (not box.failing, -box.since))


def _shown(run: str, record: Record, now: float) -> Sandbox:
    return Sandbox(
        run=run, name=record.name, id=record.ref.id if record.ref else "",
        provider=record.provider, state=record.state,
        starting=bool(record.permits) and record.state != "READY", session=record.instance,
        owner=record.owner, since=record.made, failing=record.failing, tries=record.tries,
        trouble=record.trouble(now), overdue=now - record.lease_end >= UNWATCHED,
    )  # fmt: skip

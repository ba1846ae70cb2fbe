"""The monitor's one pair of eyes: a look a second, however many people watch."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator
from dataclasses import asdict, replace
from typing import Any

from ground.complaint import Complaint
from ground.redis.connect import UNWELL
from ground.tasks import heed_cancellation
from penstock.fleet import Fleet, FleetReader
from penstock.fleet.history import StoredHistory, lately
from penstock.monitor.answers import as_json

log = logging.getLogger("penstock.monitor")
_LEASES_SHOWN = 3


class Watch:
    """A watch looks until it is closed; `news` gives each look as it comes.

    The monitor's own run is looked at `always`, since its history is kept; another run only
    while somebody watches it.
    """

    def __init__(self, reader: FleetReader, every: float = 1.0, *, always: bool = True) -> None:
        self.reader = reader
        self.history = StoredHistory(reader.client, reader.run)
        self.fleet: Fleet | None = None
        self._every = every
        self._always = always
        self._watchers = 0
        self._wanted = asyncio.Event()
        self._changed = asyncio.Condition()
        self._number = 0
        self._latest = ""
        self._said = ""
        self._complaint = Complaint(log, "the fleet could not be read")
        self._looking = asyncio.create_task(self._look_on())

    @property
    def watched(self) -> bool:
        """Whether somebody watches."""
        return bool(self._watchers)

    async def close(self) -> None:
        self._looking.cancel()
        await asyncio.wait([self._looking])
        if self._always:
            with contextlib.suppress(*UNWELL):
                await self.history.leave()

    async def news(self) -> AsyncGenerator[str, None]:
        """Yield what went before, then every look: messages of server-sent events."""
        rested = not self._always and not self._watchers
        seen, told = self._number if rested else 0, False  # an old look would pass for news
        self._watchers += 1
        self._wanted.set()
        try:
            while True:
                async with self._changed:
                    await self._changed.wait_for(lambda: self._number > seen)  # noqa: B023
                    seen, message = self._number, self._latest
                if not told and self.history.points:
                    yield _message("history", self.history.as_list()[:-1])
                    told = True
                yield message
        finally:
            self._watchers -= 1

    async def _look_on(self) -> None:
        while True:
            heed_cancellation()
            if not self._always and not self._watchers:
                self._wanted.clear()
                await self._wanted.wait()
            try:
                await self._tell("fleet", await self._look())
                await self.history.store(self.history.points[-1])
                self._complaint.over()
            except UNWELL as problem:
                self._complaint.of(problem)
                await self._tell("trouble", {"reason": str(problem)})
            except Exception as problem:  # what one key holds must not end the looking
                if repr(problem) != self._said:  # its traceback is needed once
                    self._said = repr(problem)
                    log.exception("the fleet could not be read")
                await self._tell("trouble", {"reason": f"{type(problem).__name__}: {problem}"})
            await asyncio.sleep(self._every)

    async def _look(self) -> dict[str, Any]:
        fleet = self.fleet = await self.reader.read()
        if not self.history.points:
            await self.history.recall(fleet.at)
        point = self.history.add(fleet)
        return {
            "fleet": shown(fleet),
            "point": asdict(point),
            "summary": {"level": fleet.level, "sentence": fleet.sentence},
            "lately": lately(self.history.points, fleet.at),
        }

    async def _tell(self, event: str, data: Any) -> None:
        async with self._changed:
            self._number, self._latest = self._number + 1, _message(event, data)
            self._changed.notify_all()


def shown(fleet: Fleet) -> dict[str, Any]:
    """A look, less what no page needs each second."""
    gates = tuple(replace(gate, leases=gate.leases[:_LEASES_SHOWN]) for gate in fleet.gates)
    return replace(fleet, gates=gates).as_dict()


def _message(event: str, data: Any) -> str:
    return f"event: {event}\ndata: {as_json(data)}\n\n"

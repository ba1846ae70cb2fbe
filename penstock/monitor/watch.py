"""The monitor's one pair of eyes: a look a second, however many people watch."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from typing import Any

from ground import heed_cancellation
from ground.http.guard import UNWELL
from penstock.fleet import Fleet, FleetReader
from penstock.fleet.history import StoredHistory

log = logging.getLogger("penstock.monitor")
_LEASES_SHOWN = 3


class Watch:
    """Looks for as long as it is open; `news` gives each look as it comes."""

    def __init__(self, reader: FleetReader, every: float = 1.0) -> None:
        self.reader = reader
        self.history = StoredHistory(reader.client, reader.run)
        self._every = every
        self._changed = asyncio.Condition()
        self._number = 0
        self._latest = ""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        looking = asyncio.create_task(self._look_on())
        try:
            yield
        finally:
            looking.cancel()
            await asyncio.wait([looking])

    async def news(self) -> AsyncIterator[str]:
        """What went before, then every look: messages of server-sent events."""
        seen, told = 0, False
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: self._number > seen)  # noqa: B023
                seen, message = self._number, self._latest
            if not told and self.history.points:
                yield _message("history", self.history.as_list()[:-1])
                told = True
            yield message

    async def _look_on(self) -> None:
        while True:
            heed_cancellation()
            try:
                await self._tell("fleet", await self._look())
                await self.history.store(self.history.points[-1])
            except UNWELL as problem:
                log.warning("the fleet could not be read: %s", problem)
                await self._tell("trouble", {"reason": str(problem)})
            await asyncio.sleep(self._every)

    async def _look(self) -> dict[str, Any]:
        fleet = await self.reader.read()
        if not self.history.points:
            await self.history.recall(fleet.at)
        return {"fleet": shown(fleet), "point": asdict(self.history.add(fleet))}

    async def _tell(self, event: str, data: Any) -> None:
        async with self._changed:
            self._number, self._latest = self._number + 1, _message(event, data)
            self._changed.notify_all()


def shown(fleet: Fleet) -> dict[str, Any]:
    """A look, less what no page needs each second."""
    gates = tuple(replace(gate, leases=gate.leases[:_LEASES_SHOWN]) for gate in fleet.gates)
    return replace(fleet, gates=gates).as_dict()


def _message(event: str, data: Any) -> str:
    return f"event: {event}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n"

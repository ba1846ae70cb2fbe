"""The demo's trainer: it takes what is ready, and counts every group once, with data or without."""

from collections.abc import Callable
from typing import Any

from buffer import RolloutBuffer
from ground import heed_cancellation


class Trainer:
    """Takes from one buffer; says of each group that comes without data that it timed out."""

    def __init__(self, buffer: RolloutBuffer, timed_out: Callable[[Any], None]) -> None:
        self._buffer = buffer
        self._say = timed_out
        self.delivered = 0
        self.timed_out: list[Any] = []

    @property
    def accounted_for(self) -> int:
        return self.delivered + len(self.timed_out)

    async def train(self, groups: int) -> None:
        """Take and acknowledge, until so many groups are accounted for."""
        while self.accounted_for < groups:
            heed_cancellation()
            if batch := await self._buffer.take(2, wait=0.2):
                await self._buffer.ack(batch)
                self.delivered += len(batch.groups)
                # A batch takes along what has timed out by then: it is told here, or below.
                self._note(batch.discarded)
            await self._buffer.sweep()
            self._note(await self._buffer.unreported())

    def _note(self, ids: list[Any]) -> None:
        for id in ids:
            if id not in self.timed_out:
                self.timed_out.append(id)
                self._say(id)

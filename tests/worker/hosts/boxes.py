"""The session sandboxes that the hosts of one test open."""

import asyncio

from ground.settings import GroundSettings
from jail.sessions import LocalSessions
from tests.worker.lifecycle.leases import leases_end
from worker.lifecycle.reaper.reaper import Reaper


class Boxes:
    """Local ones, and the Redis in which they are registered."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def names(self) -> list[str]:
        return [info.name async for info in LocalSessions().list()]

    async def kill(self) -> None:
        """All of them, as a machine that dies does: their owners hear nothing."""
        for name in await self.names():
            await LocalSessions().end(name)

    async def ended(self) -> None:
        """Until their owners have ended all."""
        async with asyncio.timeout(100):
            while await self.names():  # noqa: ASYNC110 - a hub sends no word of it
                await asyncio.sleep(0.05)

    def leases_end(self) -> None:
        """All of them, now: their owners are dead."""
        leases_end(self.url, GroundSettings.load().run)

    async def reaped(self) -> None:
        """Until a reaper has ended those whose leases are over, or that were left to it."""
        reaper = Reaper(self.url)
        async with asyncio.timeout(100):
            while await self.names():
                await reaper.look(wait=False)
                await asyncio.sleep(0.05)
        await reaper.close()

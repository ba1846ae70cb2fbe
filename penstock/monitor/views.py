"""The monitor has one view for each run that somebody watches."""

import asyncio
from typing import Self

from ground.keys import check_run
from ground.redis.url import RedisTarget
from penstock.fleet import FleetReader
from penstock.monitor.watch import Watch

MOST = 8  # runs at once: each is a look per second while somebody watches it


class View:
    """A view of one run: its reader, and the look that all who watch it share."""

    def __init__(self, target: RedisTarget | str, run: str, *, always: bool) -> None:
        self.reader = FleetReader(target, run)
        self.watch = Watch(self.reader, always=always)

    async def close(self) -> None:
        await self.watch.close()
        await self.reader.aclose()


class Views:
    """The monitor's own run, which is always looked at, and those asked for by `?run=`."""

    def __init__(self, target: RedisTarget | str, run: str) -> None:
        self._target = target
        self._run = run
        self._views: dict[str, View] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def of(self, run: str) -> View:
        """The view of a run, or the monitor's own. `ValueError` if the name is not valid, or if too
        many runs are watched."""
        return self.view(check_run(run or self._run))

    def view(self, run: str) -> View:
        if run not in self._views:
            if len(self._views) >= MOST:
                self._forget_one()
            self._views[run] = View(self._target, run, always=run == self._run)
        return self._views[run]

    def _forget_one(self) -> None:
        """Forget a view that nobody watches. A question to it that is under way fails, and is asked
        again."""
        for run, view in self._views.items():
            if run != self._run and not view.watch.watched:
                del self._views[run]
                closing = asyncio.create_task(view.close())
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)
                return
        raise ValueError(f"{MOST} runs are watched already: close a page of another run")

    async def __aenter__(self) -> Self:
        self.view(self._run)
        return self

    async def __aexit__(self, *_: object) -> None:
        for view in self._views.values():
            await view.close()
        if self._closing:
            await asyncio.wait(self._closing)

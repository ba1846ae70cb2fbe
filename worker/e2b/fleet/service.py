"""A server of E2B's face does this besides answering, if it has a Redis.

It renews the leases of this machine's sandboxes, follows their ends, announces its room, and is a
reaper, as each worker is.
"""

import asyncio
import logging
import socket
from typing import Any, Self

from redis.exceptions import RedisError

from ground import PenstockError
from ground.complaint import Complaint
from ground.redis.connect import AnyRedis
from jail.sessions import LocalSessions
from worker.e2b.boxes import OUR_ROOTS, Boxes
from worker.e2b.fleet.fleet import Fleet
from worker.e2b.fleet.images import Images
from worker.e2b.fleet.machines import Machine, Machines
from worker.e2b.registered import Registered
from worker.e2b.settings import E2bSettings
from worker.lifecycle.reaper.reaper import Reaper

log = logging.getLogger("penstock.worker")


class Service:
    """Made before the server listens; `async with` while it serves."""

    def __init__(
        self, redis: AnyRedis, run: str, address: str, sessions: LocalSessions,
        settings: E2bSettings, most: int,
    ) -> None:  # fmt: skip
        self.registered = Registered(
            redis, run, sessions, settings.e2b_patience, changed=lambda: self._machines.tell()
        )
        self.boxes = Boxes(sessions, settings, self.registered)
        lifecycle = self.registered.lifecycle
        self._sessions, self._most, self._others = sessions, most, 0
        self._lease = lifecycle.settings.sandbox_lease
        self._id = f"{socket.gethostname()}/{address}"
        self._scope, self._address = lifecycle.provider.scope, address
        self._images = Images(sessions.images)
        self._machines = Machines(redis, run, self._id, self._own, self._lease)
        self.fleet = Fleet(self._own(), self._machines, lifecycle.registry)
        self._reaper = Reaper(redis, settings=lifecycle.settings, ours=lifecycle.provider)
        self._complaint = Complaint(log, "the registry does not follow this machine's sandboxes")
        self._tasks: list[asyncio.Task[Any]] = []
        self.leave = lifecycle.starting

    def _own(self) -> Machine:
        alive = self._others + self.registered.count
        images = (*OUR_ROOTS, *self._images.names())
        return Machine(self._id, self._scope, self._address, alive, self._most, images)

    async def __aenter__(self) -> Self:
        await self._machines.look(0.0)
        if not self.fleet.reached:
            log.warning("Redis does not answer: no sandbox can be created until it does")
        await self._follow()
        self._machines.start()
        self._tasks = [asyncio.create_task(work) for work in (self._keep(), self._reaper.work())]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.to_thread(self._machines.stop)
        self.fleet.close()
        await self._reaper.close()
        await self.registered.close()

    async def _keep(self) -> None:
        """Compare with each heartbeat what is registered and what lives: what ended by itself has
        no other way to the registry."""
        while True:
            await asyncio.sleep(self._lease / 3)
            await self._follow()

    async def _follow(self) -> None:
        try:
            await self.registered.follow(self.boxes.living())
            living = [info async for info in self._sessions.list()]
            self._others = max(0, len(living) - self.registered.count)
        except (RedisError, OSError, PenstockError) as problem:
            self._complaint.of(problem)
        except Exception:  # nothing else does it: this goes on
            log.exception("the registry does not follow this machine's sandboxes")
        else:
            self._complaint.over()

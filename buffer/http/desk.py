"""A server's desk holds one `RolloutBuffer` per task, the generators, and the clock's beat.

Nothing here is state: another server on the same Redis answers the same.
"""

import asyncio
import logging
import math
import time
from typing import Annotated, Any

import redis.exceptions
from fastapi import Depends
from starlette.requests import Request

from buffer.errors import GeneratorError, UnknownTask
from buffer.generator.discovery import Generator, discover
from buffer.group_functions import GroupFunctions
from buffer.http.answers import Refused, integer
from buffer.link import Link
from buffer.rollout_buffer import RolloutBuffer
from buffer.settings import BufferSettings, TaskConfig
from buffer.task import enter, enter_started, listed_tasks, tidied_tasks
from ground import PenstockError, RedisFull
from ground.complaint import Complaint
from ground.redis.url import RedisTarget
from ground.tasks import heed_cancellation

log = logging.getLogger(__name__)

BEAT = 1.0  # seconds between looks at what is due
_FIRST_TASK = "math"  # upstream's, before anything was started


class Desk:
    """The tasks of one run, as one server sees them."""

    def __init__(self, target: RedisTarget | str, run: str, settings: BufferSettings) -> None:
        self.run = run
        self.settings = settings
        self.link = Link(target, patience=settings.redis_patience)
        self.generators = discover(settings.generators)
        self._buffers: dict[str, RolloutBuffer] = {}
        self._current: tuple[float, str] = (-math.inf, "")

    def buffer(self, task: str) -> RolloutBuffer:
        """A task's buffer, with the functions its generator defines."""
        if task not in self._buffers:
            self._buffers[task] = self._make(task)
        return self._buffers[task]

    async def existing(self, task: str) -> RolloutBuffer:
        """The buffer of a task that was started or configured; else `UnknownTask`."""
        if task not in self._buffers and task not in await self.tasks():
            raise UnknownTask(task, self.run)
        return self.buffer(task)

    async def current(self) -> RolloutBuffer:
        """The buffer that a request without a task means: the one last started."""
        seen, task = self._current
        if time.monotonic() - seen > BEAT:
            task = (await self.tasks() or [""])[-1]
            self._current = (time.monotonic(), task)
        if task:
            return self.buffer(task)
        # Upstream takes items before any start, for groups of 16; so do we.
        config = self.config_of({"num_repeat_per_sample": self.settings.buffer_group_size})
        return await self.start(_FIRST_TASK, config)

    async def start(self, task: str, config: TaskConfig) -> RolloutBuffer:
        """Put a task's settings in force, and let it be the current one."""
        buffer = self.renewed(task)
        await buffer.begin(config)
        await enter_started(self.link, self.run, task)
        self._current = (time.monotonic(), task)
        return buffer

    async def configure(
        self, task: str, config: TaskConfig, asked: dict[str, Any]
    ) -> RolloutBuffer:
        """Put settings in force that later rollouts keep. The current task stays the current one:
        its trainer may name none in its URL."""
        buffer = self.renewed(task)
        await buffer.configure(config, asked)
        await enter(self.link, self.run, task)
        return buffer

    def renewed(self, task: str) -> RolloutBuffer:
        """A task's buffer, with the functions that its generator defines by now."""
        self.rediscover()
        buffer = self._buffers[task] = self._make(task)
        return buffer

    async def tasks(self) -> list[str]:
        """Every task of the run, the current one last."""
        return await listed_tasks(self.link, self.run)

    async def keep_time(self) -> None:
        """Look at what is due in every task, until cancelled."""
        complaint = Complaint(log, "a sweep failed, and the next one follows")
        while True:
            heed_cancellation()
            try:
                for task in await tidied_tasks(self.link, self.run):
                    await self._sweep(task)
                complaint.over()
            except (PenstockError, redis.exceptions.RedisError, OSError) as failure:
                complaint.of(failure)
            await asyncio.sleep(BEAT)

    async def _sweep(self, task: str) -> None:
        """Sweep one task; if it is forgotten or fails, the clock of the others goes on."""
        try:
            await self.buffer(task).sweep(serving=True)
        except UnknownTask as gone:
            log.debug("a task has expired", extra={"reason": str(gone)})
        except (redis.exceptions.ResponseError, RedisFull) as failure:
            log.warning("sweep failed", extra={"task": task, "reason": str(failure)})

    async def aclose(self) -> None:
        await self.link.aclose()

    async def config_for(self, task: str, payload: dict[str, object]) -> TaskConfig:
        """The settings of a rollout: what it names, over what the task was asked to have."""
        if "num_repeat_per_sample" not in payload:
            raise Refused(400, "num_repeat_per_sample is missing: how many answers make a group")
        buffer = self.buffer(task)
        config = self.config_of(payload, await buffer.asked())
        await buffer.check_room(config)
        return config

    def config_of(
        self, payload: dict[str, object], asked: dict[str, Any] | None = None
    ) -> TaskConfig:
        """A task's settings from what was sent, over those asked for before, over the server's."""
        given: dict[str, object] = self.settings.of_tasks
        for settings in (asked or {}, payload):
            given.update({k: v for k, v in settings.items() if k in TaskConfig.model_fields})
        if "num_repeat_per_sample" in payload:
            given["group_size"] = integer(payload, "num_repeat_per_sample", least=1)
        elif "group_size" not in given:
            raise Refused(400, "group_size is missing: how many answers make a group")
        return TaskConfig.load(**given)

    def _make(self, task: str) -> RolloutBuffer:
        generator: Generator | None = self.generators.get(task)
        return RolloutBuffer(
            self.link, task, run=self.run, settings=self.settings,
            functions=generator.functions if generator else GroupFunctions(),
        )  # fmt: skip

    def rediscover(self) -> None:
        """Files may have changed since the last start; a fault keeps what was good."""
        try:
            self.generators = discover(self.settings.generators)
        except GeneratorError as fault:
            why = {"reason": str(fault)}
            log.error("generators could not be reloaded; the old ones stay", extra=why)  # noqa: TRY400


async def _of(request: Request) -> Desk:
    desk: Desk = request.app.state.desk
    return desk


Serving = Annotated[Desk, Depends(_of)]

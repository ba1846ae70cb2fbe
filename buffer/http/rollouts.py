"""Rollouts: the generator of a task, run in a process that is looked after.

One record in Redis says what runs and which server owns it. A server that dies loses
its rollouts to another, or to itself when it is back: the generator starts again
and skips what is finished. The same payload twice is one rollout.
"""

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import signal
import sys
import uuid
from typing import Annotated, Any

from fastapi import Depends
from starlette.requests import Request

from buffer.http.answers import Refused
from buffer.http.desk import Desk
from buffer.item import instance_key
from buffer.rollout_buffer import RolloutBuffer
from buffer.settings import TaskConfig
from ground import RedisError, check_name, load_script, tagged
from ground.keys import in_run

log = logging.getLogger(__name__)

LEASE = 6.0
_BEAT = 1.5
_RESTARTS = 5


class Rollouts:
    """The rollouts that this server runs."""

    def __init__(self, desk: Desk, own_url: str) -> None:
        self._desk = desk
        self._own_url = own_url
        self._owner = uuid.uuid4().hex
        self._running: dict[str, asyncio.Task[None]] = {}

    async def start(self, payload: dict[str, Any]) -> str:
        """Begin a task's rollout, fresh or resumed; says what it did."""
        task = _task_of(payload)
        config = self._desk.config_of(payload)
        skip = _skips_of(payload)
        digest = hashlib.sha256(json.dumps(payload, sort_keys=True).encode()).hexdigest()
        if not await self._call("hire", task, digest, json.dumps(payload)):
            return "the same rollout is running"
        try:
            await self._prepare(task, config, skip)
        except BaseException:
            await self._call("dismiss", task, digest, "failed")
            raise
        if task not in self._desk.generators:
            log.warning(
                "no generator for this task_type: items must come from elsewhere",
                extra={"task": task, "known": ", ".join(self._desk.generators)},
            )
            return f"no generator for {task!r} here; the buffer waits for items from elsewhere"
        self._run(task, digest, payload)
        return "started"

    async def _prepare(self, task: str, config: TaskConfig, skip: list[Any]) -> None:
        await self._stop(task)
        buffer = await self._desk.start(task, config)
        if skip:
            await buffer.resume(skip)
        else:
            await buffer.reset()

    async def look_after(self) -> None:
        """Keep what we own, let go of what was replaced, take over what lost its server."""
        while True:
            try:
                for task in await self._desk.tasks():
                    await self._watch(task)
            except (RedisError, OSError) as outage:
                log.warning("rollouts are not renewed", extra={"reason": str(outage)})
            await asyncio.sleep(_BEAT)

    async def end(self) -> None:
        """Stop every generator of ours. Their records stay: another server, or the next one
        here, goes on with them once our leases have ended."""
        for task in list(self._running):
            await self._stop(task)

    async def _watch(self, task: str) -> None:
        digest, payload = await self._call("watch", task)
        if payload and task in self._desk.generators:
            log.info("a rollout goes on here", extra={"task": task})
            self._run(task, digest.decode(), json.loads(payload))
        elif not digest and task in self._running:
            log.info("a rollout was replaced", extra={"task": task})
            await self._stop(task)

    def _run(self, task: str, digest: str, payload: dict[str, Any]) -> None:
        self._running[task] = asyncio.create_task(self._supervise(task, digest, payload))

    async def _supervise(self, task: str, digest: str, payload: dict[str, Any]) -> None:
        for failures in range(_RESTARTS + 1):
            buffer = self._desk.buffer(task)
            code = await self._generate(task, await self._as_run(buffer, digest, payload))
            if code == 0:
                break
            log.error("a generator ended badly", extra={"task": task, "code": code})
            await asyncio.sleep(min(30.0, 2.0**failures))
        state = "finished" if code == 0 else "failed"
        await self._call("dismiss", task, digest, state)
        self._running.pop(task, None)
        log.info("a rollout ended", extra={"task": task, "state": state})

    async def _as_run(
        self, buffer: RolloutBuffer, digest: str, payload: dict[str, Any]
    ) -> dict[str, Any]:
        """The payload for the generator: what is finished is skipped, and it writes to a path
        of its own, which is closed to it as soon as another rollout is started."""
        skip = await buffer.finished_rounds(payload.get("skip_instance_ids") or [])
        url = str(payload.get("remote_buffer_url") or self._own_url).rstrip("/")
        if "/tasks/" not in url:
            url = f"{url}/tasks/{buffer.task}"
        url = f"{url}/rollouts/{digest}"
        return {**payload, "skip_instance_ids": list(skip.elements()), "remote_buffer_url": url}

    async def _generate(self, task: str, payload: dict[str, Any]) -> int:
        path = self._desk.generators[task].path
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "buffer.generator.run", str(path), str(os.getpid()),
            stdin=asyncio.subprocess.PIPE, stdout=sys.stderr, start_new_session=True,
        )  # fmt: skip
        try:
            await process.communicate(json.dumps(payload).encode())
        finally:
            _kill_group(process.pid)  # also what it left behind
            await process.wait()
        return process.returncode or 0

    async def _stop(self, task: str) -> None:
        if running := self._running.pop(task, None):
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def _call(self, script: str, task: str, *args: str) -> Any:
        key = tagged("buffer", in_run(self._desk.run, task), "rollout")
        full = [self._owner, int(LEASE * 1000), *args]
        return await self._desk.link.run(load_script("buffer", script), [key], full)


async def _of(request: Request) -> Rollouts:
    rollouts: Rollouts = request.app.state.rollouts
    return rollouts


Running = Annotated[Rollouts, Depends(_of)]


def _task_of(payload: dict[str, Any]) -> str:
    if "task_type" not in payload:
        raise Refused(400, "task_type is missing: it names the task, and so its generator")
    try:
        task = check_name(str(payload.get("task_type", "")), "a task_type")
    except ValueError as wrong:
        raise Refused(400, str(wrong)) from None
    if "/" in task:
        raise Refused(400, f"a task_type has no '/': {task!r}")
    return task


def _skips_of(payload: dict[str, Any]) -> list[Any]:
    skip = payload.get("skip_instance_ids") or []
    if not isinstance(skip, list):
        raise Refused(400, "skip_instance_ids must be a list")
    for named in skip:
        instance_key(named)
    return skip


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # all of it has ended
        os.killpg(pid, signal.SIGKILL)

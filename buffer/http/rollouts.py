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
from collections import Counter
from enum import Enum, auto
from typing import Annotated, Any, NamedTuple

import redis.exceptions
from fastapi import Depends
from starlette.requests import Request

from buffer.errors import GeneratorError
from buffer.http.answers import Refused
from buffer.http.desk import Desk
from buffer.http.reach import check_reach, check_readable, with_token, without_token
from buffer.item import instance_key
from buffer.settings import TaskConfig
from ground import PenstockError, RedisFull
from ground.backoff import backoff
from ground.complaint import Complaint
from ground.keys import check_name, in_run, tagged
from ground.lua import load_script
from ground.tasks import ended, heed_cancellation

log = logging.getLogger(__name__)

LEASE = 6.0
_BEAT = 1.5
_PAUSE = 1.0
_RESTARTS = 5
_FAILURES = (PenstockError, redis.exceptions.RedisError, OSError)  # it may be better next time


class Rollout(NamedTuple):
    """A rollout as it was asked for; the same payload twice has the same digest."""

    task: str
    digest: str
    payload: dict[str, Any]


class Hire(Enum):
    """The answer to a request for a rollout."""

    FRESH = auto()  # it is this server's to prepare
    REPLACED = auto()  # so it is, though it ran: its trainer came back with an older list
    RUNS = auto()  # it is running already


class Rollouts:
    """The rollouts that this server runs."""

    def __init__(self, desk: Desk, own_url: str) -> None:
        self._desk = desk
        self._own_url = own_url
        self._owner = uuid.uuid4().hex
        self._running: dict[str, asyncio.Task[None]] = {}
        self._preparing: dict[str, str] = {}
        self._seen: dict[str, bytes | None] = {}  # digests, by task

    async def start(self, payload: dict[str, Any]) -> str:
        """Begin a task's rollout, fresh or resumed; says what it did."""
        task = _task_of(payload)
        config = await self._desk.config_for(task, payload)
        skip = _skips_of(payload)
        self._desk.rediscover()
        if task in self._desk.generators:
            check_reach(payload, self._desk.settings, self._own_url)
            await _check_file_of(payload)
        rollout = _rollout_of(task, without_token(payload, self._desk.settings.buffer_token))
        hire = await self._hire(rollout, skip)
        if hire is Hire.RUNS:
            return "the same rollout is running"
        self._seen[task] = rollout.digest.encode()
        resumed = skip or hire is Hire.REPLACED
        if not await self._prepare(rollout, config, skip if resumed else None):
            return "another rollout of the task was started meanwhile"
        if task not in self._desk.generators:
            log.warning(
                "no generator has this task_type: other processes must write its items",
                extra={"task": task, "known": ", ".join(self._desk.generators)},
            )
            return f"no generator for {task!r} here; the buffer waits for items from elsewhere"
        self._run(rollout)
        return "started"

    async def _hire(self, rollout: Rollout, skip: list[Any]) -> Hire:
        """Claim a rollout for this server, or find that it runs. Raises `Refused` while another
        server prepares it."""
        asked = "hire", rollout.task, rollout.digest, json.dumps(rollout.payload)
        taken, state = await self._call(*asked, "0")
        again = not taken and state == b"running" and await self._missed(rollout.task, skip)
        if again:
            taken, state = await self._call(*asked, "1")
        if taken:
            return Hire.REPLACED if again else Hire.FRESH
        if state == b"running":
            return Hire.RUNS
        await asyncio.sleep(_PAUSE)  # slime's client has none between its tries
        raise Refused(503, f"the same rollout of {rollout.task!r} is being prepared; ask again")

    async def _missed(self, task: str, skip: list[Any]) -> bool:
        """Whether groups were delivered that the list does not name: then this is no repeated
        call, but a trainer that died and came back with what it had saved last."""
        named = Counter(map(instance_key, skip))
        return bool(await self._desk.buffer(task).catalog.unnamed(named))

    async def _prepare(self, rollout: Rollout, config: TaskConfig, skip: list[Any] | None) -> bool:
        """Resume the task from a list, or reset it if there is none; False if the rollout was
        replaced meanwhile: then the task is another's, and left alone. It does not count as running
        until this is done: if this server dies first, the next server that is asked prepares it."""
        task, digest, _ = rollout
        self._preparing[task] = digest
        try:
            await self._stop(task)
            if not await self._is_ours(rollout):
                return False
            buffer = await self._desk.start(task, config)
            if not await self._is_ours(rollout):
                return False
            if skip is None:
                await buffer.reset()
            else:
                await buffer.catalog.resume(skip)
            return bool(await self._call("enter", task, digest, "running"))
        except BaseException:
            await self._call("enter", task, digest, "failed")
            raise
        finally:
            if self._preparing.get(task) == digest:
                del self._preparing[task]

    async def _is_ours(self, rollout: Rollout) -> bool:
        return bool(await self._call("enter", rollout.task, rollout.digest, "preparing"))

    async def look_after(self) -> None:
        """Renew this server's rollouts, stop those that were replaced, take over orphans."""
        complaint = Complaint(log, "the leases of rollouts were not renewed")
        while True:
            heed_cancellation()
            try:
                for task in await self._desk.tasks():
                    await self._watch_or_report(task)
                complaint.over()
            except _FAILURES as outage:
                complaint.of(outage)
            await asyncio.sleep(_BEAT)

    async def end(self) -> None:
        """Stop every generator of this server. Their records stay: when the leases have ended,
        another server, or the next one here, continues them."""
        for task in list(self._running):
            await self._stop(task)

    async def _watch_or_report(self, task: str) -> None:
        """Renew the lease of one task; what Redis refuses for it does not keep the others from
        renewal."""
        try:
            await self._watch(task)
        except (redis.exceptions.ResponseError, RedisFull) as refusal:
            extra = {"task": task, "reason": str(refusal)}
            log.warning("the lease of a rollout was not renewed", extra=extra)

    async def _watch(self, task: str) -> None:
        await self._hear_of_start(task)
        able = task in self._desk.generators
        preparing, running = self._preparing.get(task, ""), self._running.get(task)
        idle = able and running is None and not preparing
        flags = str(int(able)), str(int(idle))
        digest, payload = await self._call("watch", task, preparing, *flags)
        if payload and able and task not in self._running and task not in self._preparing:
            log.info("a rollout continues on this server", extra={"task": task})
            self._run(Rollout(task, digest.decode(), json.loads(payload)))
        elif not digest and running is not None and self._running.get(task) is running:
            log.info("a rollout was replaced", extra={"task": task})
            await self._stop(task)

    async def _hear_of_start(self, task: str) -> None:
        """If another server started a rollout, read the generators again, as it did. Reads here
        call their functions."""
        digest = await self._desk.link.command("HGET", self._key(task), "digest")
        if digest != self._seen.get(task):
            self._desk.renewed(task)
            self._seen[task] = digest

    def _run(self, rollout: Rollout) -> None:
        self._running[rollout.task] = asyncio.create_task(self._supervise(rollout))

    async def _supervise(self, rollout: Rollout) -> None:
        task = rollout.task
        for failures in range(_RESTARTS + 1):
            code = await self._try(rollout)
            if code == 0:
                break
            log.error("a generator failed", extra={"task": task, "code": code})
            await asyncio.sleep(backoff(failures + 1, 1.0, 30.0))
        state = "finished" if code == 0 else "failed"
        await self._conclude(rollout, state)
        self._running.pop(task, None)
        log.info("a rollout ended", extra={"task": task, "state": state})

    async def _conclude(self, rollout: Rollout, state: str) -> None:
        """Repeat until Redis has its end: a record left as running would block the next start."""
        while True:
            try:
                await self._call("enter", rollout.task, rollout.digest, state)
                return
            except _FAILURES as failure:
                extra = {"task": rollout.task, "state": state, "reason": str(failure)}
                log.warning("the end of a rollout could not be recorded; trying again", extra=extra)
            await asyncio.sleep(_PAUSE)

    async def _try(self, rollout: Rollout) -> int:
        """Run the generator once: its exit status, or 1 if it could not be started."""
        try:
            return await self._generate(rollout.task, await self._as_run(rollout))
        except (*_FAILURES, Refused) as failure:
            extra = {"task": rollout.task, "reason": str(failure)}
            log.warning("a generator could not be started", extra=extra)
            return 1

    async def _as_run(self, rollout: Rollout) -> dict[str, Any]:
        """The payload for the generator: what is finished is skipped. It writes to a path of its
        own, which is closed to it as soon as another rollout is started."""
        task, digest, payload = rollout
        check_reach(payload, self._desk.settings, self._own_url)
        skip = await self._desk.buffer(task).catalog.finished_rounds(
            payload.get("skip_instance_ids") or []
        )
        url = str(payload.get("remote_buffer_url") or self._own_url).rstrip("/")
        if "/tasks/" not in url:
            url = f"{url}/tasks/{task}"
        url = with_token(f"{url}/rollouts/{digest}", self._desk.settings.buffer_token)
        return {**payload, "skip_instance_ids": list(skip.elements()), "remote_buffer_url": url}

    async def _generate(self, task: str, payload: dict[str, Any]) -> int:
        generator = self._desk.generators.get(task)
        if generator is None:
            raise GeneratorError(f"the file of {task!r} was removed while its rollout ran")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "buffer.generator.run", str(generator.path),
            str(os.getpid()), stdin=asyncio.subprocess.PIPE, stdout=sys.stderr,
            start_new_session=True,
        )  # fmt: skip
        try:
            await process.communicate(json.dumps(payload).encode())
        finally:
            _kill_group(process.pid)  # also what it left behind
            await _reaped(process)
        return process.returncode or 0

    async def _stop(self, task: str) -> None:
        if running := self._running.pop(task, None):
            await ended([running])

    def _key(self, task: str) -> str:
        return tagged("buffer", in_run(self._desk.run, task), "rollout")

    async def _call(self, script: str, task: str, *args: str) -> Any:
        full = [self._owner, int(LEASE * 1000), *args]
        return await self._desk.link.run(load_script("buffer", script), [self._key(task)], full)


async def _of(request: Request) -> Rollouts:
    rollouts: Rollouts = request.app.state.rollouts
    return rollouts


Running = Annotated[Rollouts, Depends(_of)]


def _task_of(payload: dict[str, Any]) -> str:
    if "task_type" not in payload:
        raise Refused(400, "task_type is missing: it names the task, and so its generator")
    if not isinstance(payload["task_type"], str):
        raise Refused(400, "task_type must be a string")
    try:
        task = check_name(payload["task_type"], "a task_type")
    except ValueError as wrong:
        raise Refused(400, str(wrong)) from None
    if "/" in task:
        raise Refused(400, f"a task_type has no '/': {task!r}")
    return task


async def _check_file_of(payload: dict[str, Any]) -> None:
    try:
        await asyncio.to_thread(check_readable, payload)  # it may be on a network's disk
    except Refused:
        await asyncio.sleep(_PAUSE)  # slime's client has none between its tries
        raise


def _rollout_of(task: str, payload: dict[str, Any]) -> Rollout:
    canonical = json.dumps(payload, sort_keys=True).encode()
    return Rollout(task, hashlib.sha256(canonical).hexdigest(), payload)


def _skips_of(payload: dict[str, Any]) -> list[Any]:
    skip = payload.get("skip_instance_ids")
    if skip is None:
        return []
    if not isinstance(skip, list):
        raise Refused(400, "skip_instance_ids must be a list")
    for named in skip:
        instance_key(named)
    return skip


async def _reaped(process: asyncio.subprocess.Process) -> None:
    """Wait for the end of a killed process. `ended` cancels again each second, which a busy
    machine may need for it; that breaks nothing off."""
    waiting = asyncio.ensure_future(process.wait())
    cancelled = None
    while not waiting.done():
        try:
            await asyncio.shield(waiting)
        except asyncio.CancelledError as again:
            cancelled = again
    if cancelled is not None:
        raise cancelled


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # all of it has ended
        os.killpg(pid, signal.SIGKILL)

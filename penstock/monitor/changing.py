"""What the monitor changes: gates, queues, jobs, groups, sandboxes. Each change is noted."""

import asyncio
import contextlib
import functools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ground import SettingError, tagged
from ground.http.guard import UNWELL
from penstock.fleet import FleetReader
from penstock.monitor.answers import Answer, Handler, refused
from penstock.monitor.audit import Audit
from penstock.monitor.job_changes import CHANGES, change_jobs
from worker.lifecycle.reaper.reaper import Reaper
from worker.lifecycle.reaper.reaping import Reaped

_LARGEST = 64 << 10
_MOST_JOBS = 500
Act = Callable[[Request], Awaitable[tuple[str, str, Response]]]


class Changes:
    """The handlers of POST. Without a token all of them refuse."""

    def __init__(self, reader: Callable[[Request], FleetReader], *, may_act: bool) -> None:
        self._reader = reader
        self._may_act = may_act

    def handlers(self) -> dict[str, Handler]:
        """Each path with what answers it."""
        acts: dict[str, Act] = {
            "/api/gates/{name:path}": self._change_gate,
            "/api/queues/{name:path}": self._change_queue,
            "/api/jobs": self._change_jobs,
            "/api/jobs/{id}/requeue": self._requeue_job,
            "/api/groups/{task}/requeue": self._requeue_group,
            "/api/sandboxes/{run}/reap": self._reap,
            "/api/sandboxes/{run}/{name}/end": self._end_sandbox,
        }
        return {path: self._guarded(act) for path, act in acts.items()}

    def _guarded(self, act: Act) -> Handler:
        @functools.wraps(act)
        async def guarded(request: Request) -> Response:
            if not self._may_act:
                return refused(
                    403, "this monitor only shows: it was started without PENSTOCK_MONITOR_TOKEN"
                )
            try:
                audit = Audit(self._reader(request).client)
                what, target, answer = await act(request)
            except (SettingError, ValueError, TypeError, OverflowError) as wrong:
                return refused(400, str(wrong))
            except UNWELL as problem:  # some of it may have been done
                with contextlib.suppress(*UNWELL):
                    await audit.note(request, "change", request.url.path, f"broke off: {problem}")
                raise
            await audit.note(request, what, target, _outcome(answer))
            return answer

        return guarded

    async def _change_gate(self, request: Request) -> tuple[str, str, Response]:
        """Change a gate: `{"paused": true}`, or any of `limit`, `rate` and `burst`."""
        wanted = await _object(request, {"paused", "limit", "rate", "burst"})
        name = request.path_params["name"]
        what = "change gate: " + ", ".join(f"{key} {json.dumps(v)}" for key, v in wanted.items())
        gate = await self._reader(request).gate(name)
        if gate is None:
            return what, name, refused(404, f"there is no gate {name!r}")
        paused = _flag(wanted.pop("paused")) if "paused" in wanted else None
        if wanted:  # first: terms that are refused change nothing
            await gate.configure(**wanted)
        if paused is not None:
            await (gate.pause() if paused else gate.resume())
        return what, name, Answer(asdict(await gate.status()))

    async def _change_queue(self, request: Request) -> tuple[str, str, Response]:
        """Pause or resume a queue: `{"paused": true}`. Running jobs go on."""
        wanted = await _object(request, {"paused"})
        name, paused = request.path_params["name"], _flag(wanted["paused"])
        client, key = self._reader(request).client, tagged("work", name)
        what = "pause queue" if paused else "resume queue"
        if not await client.sismember("rq:queues", f"rq:queue:{name}"):
            return what, name, refused(404, f"there is no queue {name!r}")
        await (client.hset(key, "paused", 1) if paused else client.hdel(key, "paused"))
        return what, name, Answer({"done": True})

    async def _change_jobs(self, request: Request) -> tuple[str, str, Response]:
        """Retry, cancel or delete jobs: `{"do": "retry", "ids": [...]}`, at most 500 of them."""
        wanted = await _object(request, {"do", "ids"})
        change, ids = str(wanted.get("do")), _ids(wanted.get("ids"))
        if change not in CHANGES:
            raise ValueError(f"`do` must be one of {', '.join(CHANGES)}")
        found = await asyncio.to_thread(change_jobs, self._reader(request).target, change, ids)
        answer = Answer({"done": len(ids) - len(found), "refused": found})
        shown = ", ".join(ids[:5]) + (f" and {len(ids) - 5} more" if len(ids) > 5 else "")
        return f"{change} {len(ids)} jobs" if len(ids) > 1 else f"{change} job", shown, answer

    async def _requeue_job(self, request: Request) -> tuple[str, str, Response]:
        """A failed job goes back to its queue."""
        id, target = request.path_params["id"], self._reader(request).target
        found = await asyncio.to_thread(change_jobs, target, "requeue", [id])
        return "retry job", id, _done(not found, "there is no failed job of that id")

    async def _requeue_group(self, request: Request) -> tuple[str, str, Response]:
        """A group goes back to ready: `{"instance_id": "math_17", "round": 0}`."""
        wanted = await _object(request, {"instance_id", "round"})
        instance, number = wanted.get("instance_id"), int(wanted.get("round", 0))
        if not isinstance(instance, str | int):
            raise TypeError("`instance_id` must be a string or a number: which group?")
        task = request.path_params["task"]
        what, target = "requeue group", f"{task}: {instance}, round {number}"
        for buffer in await self._reader(request).open_buffers():
            if buffer.task == task:
                done = await buffer.requeue(instance, number)
                return what, target, _done(done, "it is neither in quarantine nor kept")
        return what, target, refused(404, "there is no such task in this run")

    async def _reap(self, request: Request) -> tuple[str, str, Response]:
        """End all sandboxes of the run whose owner is dead, now."""
        run = request.path_params["run"]
        async with self._reaper(request) as reaper:
            found = await reaper.look_at(run)
        return "reap sandboxes", run, _reaped(found)

    async def _end_sandbox(self, request: Request) -> tuple[str, str, Response]:
        """End one sandbox, even if it is in use. If that fails, a reaper tries again."""
        run, name = request.path_params["run"], request.path_params["name"]
        async with self._reaper(request) as reaper:
            found = await reaper.end(run, [name], "ended from the monitor")
        if not found:
            return "end sandbox", name, refused(404, f"run {run!r} has no sandbox {name!r}")
        return "end sandbox", f"{run}: {name}", _reaped(found)

    @asynccontextmanager
    async def _reaper(self, request: Request) -> AsyncIterator[Reaper]:
        reaper = Reaper(self._reader(request).target)
        try:
            yield reaper
        finally:
            await reaper.close()


async def _object(request: Request, known: set[str]) -> dict[str, Any]:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _LARGEST:
            raise ValueError(f"the body has more than {_LARGEST} bytes")
    try:
        found = json.loads(body)
    except RecursionError:
        raise ValueError("the body is nested too deeply") from None
    if not isinstance(found, dict) or not found or not found.keys() <= known:
        raise ValueError(f"the body must be a JSON object with some of {', '.join(sorted(known))}")
    return found


def _flag(given: Any) -> bool:
    if not isinstance(given, bool):
        raise TypeError("`paused` must be true or false")
    return given


def _ids(given: Any) -> list[str]:
    ids = given if isinstance(given, list) else []
    if not 0 < len(ids) <= _MOST_JOBS or not all(isinstance(id, str) and id for id in ids):
        raise ValueError(f"`ids` must be a list of 1 to {_MOST_JOBS} jobs")
    return ids


def _reaped(found: Reaped) -> Response:
    if found.failed:
        name, why = next(iter(found.failed.items()))
        return refused(409, f"{len(found.failed)} not gone yet, tried again: {name}: {why}")
    return Answer({"done": True, "ended": found.ended, "strays": found.strays})


def _done(done: bool, otherwise: str) -> Response:
    return Answer({"done": True}) if done else refused(409, otherwise)


def _outcome(answer: Response) -> str:
    body = json.loads(bytes(answer.body))
    if answer.status_code >= 300:
        return str(body.get("message", answer.status_code))
    refusals = body.get("refused") or []
    return f"{body['done']} done, {len(refusals)} refused" if refusals else "done"

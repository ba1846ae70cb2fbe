"""Gates, queues, jobs, groups and sandboxes are changed here, for all callers. Each change is noted
with its author and what came of it. One that makes no sense raises, and is not noted."""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from ground import SettingError
from ground.keys import tagged
from ground.lua import load_script
from ground.redis.connect import UNWELL
from limiter import GateInUse, UnknownGate, UnknownPermit, remove_gate
from penstock.changes.audit import Audit, Author
from penstock.changes.jobs import CHANGES, change_jobs
from penstock.fleet import FleetReader
from penstock.in_order import run_in_order
from worker import CodeQueue
from worker.lifecycle.reaper.dead_owners import Reaped
from worker.lifecycle.reaper.reaper import Reaper
from worker.queue.shares import Charge

MOST_JOBS = 500  # at once
_PAUSE = load_script("worker.queue", "pause")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Changed:
    """The outcome of a change. `refusal` says why it was not made; `absent` that there is no such
    thing. `refused` are those of several jobs that were, each with the reason."""

    found: dict[str, Any] = field(default_factory=dict)
    refusal: str = ""
    absent: bool = False

    @property
    def outcome(self) -> str:
        """The outcome in a few words."""
        refused = self.found.get("refused") or []
        some = f"{self.found.get('done')} done, {len(refused)} refused"
        return self.refusal or (some if refused else "done")


class Changes:
    """The changes of one author, over one reader."""

    def __init__(self, reader: FleetReader, by: Author) -> None:
        self._reader = reader
        self._by = by

    async def gate(self, name: str, *, paused: bool | None = None, **terms: Any) -> Changed:
        """Change what a gate's `configure` takes, and whether it is paused."""
        said = terms if paused is None else {"paused": paused, **terms}
        return await self._noted(_said("change gate", said), name, self._gate(name, paused, terms))

    async def revoke(self, gate: str, permit: str) -> Changed:
        """Take one permit from its holder."""
        doing = self._revoke(gate, permit)
        return await self._noted("revoke permit", f"{gate}: {permit}", doing)

    async def remove_gate(self, name: str, *, force: bool) -> Changed:
        """Delete it, and with `force` also one in use."""
        what = "remove gate by force" if force else "remove gate"
        return await self._noted(what, name, self._remove_gate(name, force))

    async def queue(self, name: str, *, paused: bool) -> Changed:
        """Running jobs continue."""
        what = "pause queue" if paused else "resume queue"
        return await self._noted(what, name, self._queue(name, paused=paused))

    async def weights(
        self, queue: str, weights: Mapping[str, float | None], by: Charge | None
    ) -> Changed:
        """How the shares of a queue take turns."""
        said = {"by": by, "weights": weights} if by else {"weights": weights}
        return await self._noted(
            _said("change queue", said), queue, self._weights(queue, weights, by)
        )

    async def jobs(self, change: str, ids: Sequence[str]) -> Changed:
        """Retry, cancel or delete at most 500."""
        if change not in CHANGES:
            raise ValueError(f"`do` must be one of {', '.join(CHANGES)}")
        if not 0 < len(ids) <= MOST_JOBS:
            raise ValueError(f"`ids` must be a list of 1 to {MOST_JOBS} jobs")
        what = f"{change} {len(ids)} jobs" if len(ids) > 1 else f"{change} job"
        return await self._noted(what, _some(ids), self._jobs(change, ids))

    async def requeue_job(self, id: str) -> Changed:
        """A failed one goes back to its queue."""
        return await self._noted("retry job", id, self._requeue_job(id))

    async def requeue_group(self, task: str | None, instance: str | int, number: int) -> Changed:
        """The group goes back to ready. Without a task: in whichever has it."""
        target = f"{task or 'any task'}: {instance}, round {number}"
        doing = self._requeue_group(task, instance, number)
        return await self._noted("requeue group", target, doing)

    async def reap(self, run: str, *, strays_now: bool = False) -> Changed:
        """End all sandboxes of the run whose owner is dead; and strays, if so said, of any age."""
        what = "reap sandboxes and all strays" if strays_now else "reap sandboxes"
        return await self._noted(what, run, self._reap(run, strays_now))

    async def end_sandboxes(self, run: str, names: Sequence[str], why: str) -> Changed:
        """End these, even if they are in use. Where that fails, a reaper tries again."""
        what = f"end {len(names)} sandboxes" if len(names) > 1 else "end sandbox"
        doing = self._end_sandboxes(run, names, why)
        return await self._noted(what, f"{run}: {_some(names)}", doing)

    async def _noted(self, what: str, target: str, doing: Awaitable[Changed]) -> Changed:
        audit = Audit(self._reader.client)
        try:
            changed = await doing
        except SettingError:
            raise
        except UNWELL as problem:  # some of it may have been done
            with contextlib.suppress(*UNWELL):
                await audit.note(self._by, what, target, f"broke off: {problem}")
            raise
        try:
            await audit.note(self._by, what, target, changed.outcome)
        except UNWELL as problem:  # a full Redis lets keys go, and takes no note of it
            log.warning("%s: %s: %s, but it could not be noted: %s", what, target, changed.outcome,
                        problem)  # fmt: skip
        return changed

    async def _gate(self, name: str, paused: bool | None, terms: dict[str, Any]) -> Changed:
        gate = await self._reader.gate(name)
        if gate is None:
            return Changed(refusal=f"there is no gate {name!r}", absent=True)
        if terms:  # first: terms that are refused change nothing
            await gate.configure(**terms)
        if paused is not None:
            await (gate.pause() if paused else gate.resume())
        return Changed(asdict(await gate.status()))

    async def _revoke(self, name: str, permit: str) -> Changed:
        gate = await self._reader.gate(name)
        if gate is None:
            return Changed(refusal=f"there is no gate {name!r}", absent=True)
        try:
            return Changed(asdict(await gate.revoke(permit)))
        except UnknownPermit as unknown:
            return Changed(refusal=str(unknown), absent=True)

    async def _remove_gate(self, name: str, force: bool) -> Changed:
        try:
            await asyncio.to_thread(remove_gate, self._reader.target, name, force=force)
        except (UnknownGate, GateInUse) as refusal:
            return Changed(refusal=str(refusal), absent=isinstance(refusal, UnknownGate))
        return Changed({"done": True})

    async def _queue(self, name: str, *, paused: bool) -> Changed:
        client, keys = self._reader.client, [tagged("work", name), tagged("work", name, "workers")]
        if await self._reader.queue(name) is None:
            return Changed(refusal=f"there is no queue {name!r}", absent=True)
        await _PAUSE.call_async(client, keys, [int(paused)])
        return Changed({"done": True})

    async def _weights(
        self, name: str, weights: Mapping[str, float | None], by: Charge | None
    ) -> Changed:
        await CodeQueue(self._reader.target, name).set_weights(weights, by=by)
        return Changed({"done": True})

    async def _jobs(self, change: str, ids: Sequence[str]) -> Changed:
        refused = await asyncio.to_thread(change_jobs, self._reader.target, change, ids)
        return Changed({"done": len({*ids}) - len(refused), "refused": refused})

    async def _requeue_job(self, id: str) -> Changed:
        refused = await asyncio.to_thread(change_jobs, self._reader.target, "requeue", [id])
        return _done(not refused, "there is no failed job of that id")

    async def _requeue_group(self, task: str | None, instance: str | int, number: int) -> Changed:
        buffers = [one for one in await self._reader.open_buffers() if task in (None, one.task)]
        if not buffers:
            missing = f"no task {task!r}" if task else "no task"
            return Changed(refusal=f"there is {missing} in this run", absent=True)
        for buffer in buffers:
            if await buffer.catalog.requeue(instance, number):
                return Changed({"done": True})
        return Changed(refusal=f"in round {number} it is neither in quarantine nor kept")

    async def _reap(self, run: str, strays_now: bool) -> Changed:
        async with self._reaper() as reaper:
            return _reaped(await reaper.look_at(run, strays_now=strays_now))

    async def _end_sandboxes(self, run: str, names: Sequence[str], why: str) -> Changed:
        async with self._reaper() as reaper:
            found = await reaper.end(run, names, why)
        if not found:
            return Changed(refusal=f"run {run!r} has no sandbox {_some(names)!r}", absent=True)
        return _reaped(found)

    @asynccontextmanager
    async def _reaper(self) -> AsyncIterator[Reaper]:
        reaper = Reaper(self._reader.target)
        try:
            yield reaper
        finally:
            await reaper.close()


def change_at_terminal(
    url: str, command: str, change: Callable[[Changes], Awaitable[Changed]]
) -> Changed:
    """Make one change, as the user of this process."""

    async def changed() -> Changed:
        async with FleetReader(url) as reader:
            return await change(Changes(reader, Author.at_terminal(command)))

    return run_in_order(changed())


def _said(what: str, values: Mapping[str, Any]) -> str:
    return f"{what}: " + ", ".join(f"{name} {json.dumps(v)}" for name, v in values.items())


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _reaped(found: Reaped) -> Changed:
    done = {"ended": found.ended, "strays": found.strays, "failed": found.failed}
    if not found.failed:
        return Changed({"done": True, **done})
    name, why = next(iter(found.failed.items()))
    return Changed(done, f"{len(found.failed)} not gone yet, tried again: {name}: {why}")


def _done(done: bool, otherwise: str) -> Changed:
    return Changed({"done": True}) if done else Changed(refusal=otherwise)

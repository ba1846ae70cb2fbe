"""The reader looks at everything at once: Redis, queues, workers, gates, groups, sandboxes, jobs.

    async with FleetReader(url, run="default") as reader:
        fleet = await reader.read()

It changes nothing but what time has changed, and costs a few round trips however
many jobs, groups and workers there are.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Any, Self

import redis

from buffer import RolloutBuffer
from buffer.link import Link
from buffer.task import listed_tasks
from ground.redis.connect import connect_async, target_of
from ground.redis.url import RedisTarget
from limiter import Gate, GateError, GateStatus, UnknownGate, existing_gate
from limiter.commands import INDEX
from limiter.look import statuses
from penstock.fleet import buffers, sandboxes, work
from penstock.fleet.health import judge, trouble_of
from penstock.fleet.history import seen_key
from penstock.fleet.lines import Waiter, line_of
from penstock.fleet.model import Fleet, Group, Queue, Sandbox, Server, Task, Worker
from penstock.fleet.one_job import Stored, job_in_full, number, stored_job
from penstock.fleet.why_it_grows import judged
from worker.lifecycle.registry.registry import INDEX as SANDBOX_RUNS

SHOWN_WORKERS = 50
_FAR = 10_000  # jobs, among which one is looked for


def _names(members: Iterable[bytes]) -> list[str]:
    """The names, as text. Bytes that another program wrote among them must not end the look."""
    return [name.decode(errors="replace") for name in members]


class FleetReader:
    """A reader looks at the fleet of one Redis, from one event loop."""

    def __init__(self, target: RedisTarget | str, run: str = "default") -> None:
        self.target = target_of(target)
        self.run = run
        self.client: Any = connect_async(self.target)
        self.link = Link(self.target, patience=0.0)
        self._registries = sandboxes.Registries(self.target)

    async def read(self, workers: int = SHOWN_WORKERS) -> Fleet:
        """Everything. At most this many workers are listed, those in trouble first."""
        fleet, _ = await self.look(workers)
        return fleet

    async def look(self, workers: int = SHOWN_WORKERS) -> tuple[Fleet, list[Worker]]:
        """The look as above, and every worker as `workers` gives them."""
        now = await self.now()
        found = await work.read_workers(self.client, now)
        queues = await work.read_queues(self.client, found, now)
        gates, broken = await self.gates()
        suspended = bool(await self.client.exists("rq:suspended"))
        tasks, groups, quarantine = await self._buffers(now)
        runs = await self.client.smembers(SANDBOX_RUNS)
        registered = await self._registries.look(_names(runs))
        seen = number(await self.client.get(seen_key(self.run)))
        failed = await work.read_ended(self.client, queues, "failed")
        fleet = Fleet(
            at=now, run=self.run, server=await self._server(), suspended=suspended,
            queues=judged(queues, found, gates, suspended=suspended),
            workers=tuple(await work.with_their_jobs(self.client, found[:workers])),
            worker_states=dict(Counter(worker.state for worker in found)),
            gates=gates, broken_gates=broken, tasks=tasks, groups=groups, quarantine=quarantine,
            recent=tuple(await work.read_ended(self.client, queues, "finished")),
            failed=tuple(await work.with_errors(self.client, failed)),
            done=sum(worker.finished + worker.failed for worker in found),
            registries=sandboxes.registries(registered),
            sandboxes=sandboxes.sandboxes(registered),
            monitor=max(0.0, now - seen) if seen else None,
        )  # fmt: skip
        return judge(fleet, found), found

    async def queue(self, name: str) -> Queue | None:
        """Read a queue, and why it grows; None if nobody has used it."""
        now = await self.now()
        found = await work.read_workers(self.client, now)
        queues = await work.read_queues(self.client, found, now)
        suspended = bool(await self.client.exists("rq:suspended"))
        named = [queue for queue in queues if queue.name == name]
        gates, _ = await self.gates()
        return next(iter(judged(named, found, gates, suspended=suspended)), None)

    async def job(self, id: str) -> dict[str, Any] | None:
        """Read a job in full; None if Redis knows nothing of it."""
        stored = await stored_job(self.client, id)
        return await self.in_full(stored) if stored else None

    async def in_full(self, stored: Stored) -> dict[str, Any]:
        """A job that was read, in full. Of one that waits, `place` and `waits` say where and
        why, and what lets it in."""
        found = await job_in_full(self.client, stored)
        if found["status"] == "queued":
            found["place"] = await self._place(found)
            queue = await self.queue(found["origin"])
            known = [queue.reason, queue.remedy] if queue else []
            why = "; ".join(filter(None, known))
            turn = f"{queue.depth:,} jobs wait, and each has its turn" if queue else ""
            found["waits"] = why or turn
        return found

    async def _place(self, job: dict[str, Any]) -> str:
        """The place of a job in its queue, or in its share, which takes turns with others."""
        share = f"~{job['share']}" if job["share"] else ""
        key = f"rq:queue:{job['origin']}{share}"
        at = await self.client.lpos(key, job["id"], maxlen=_FAR)
        if at is None:
            return "not near the head of its line"
        return f"number {at + 1:,} of {await self.client.llen(key):,}" + (
            " of its share" * bool(share)
        )

    async def workers(self) -> list[Worker]:
        """Every worker, those in trouble first; without the job that each has run longest."""
        return await work.read_workers(self.client, await self.now())

    async def sandboxes(self, run: str = "") -> list[Sandbox]:
        """Session sandboxes of one run or of all, those that fail to end first; each that is not
        ready says why."""
        runs = set(_names(await self.client.smembers(SANDBOX_RUNS)))
        found = await self._registries.listed(sorted(runs & {run} if run else runs))
        waiting = any(box.state == "WAITING" for box in found)
        return sandboxes.with_reasons(found, await self.starting_lines() if waiting else {})

    async def starting_lines(self) -> dict[str, list[Waiter]]:
        """The waiters at each gate that sandboxes start under; gates without any are left out."""
        names = _names(await self.client.smembers(INDEX))
        stand, _ = await self._stand(sandboxes.starting_gates(names))
        busy = [gate for gate in stand if gate.waiting]
        now = await self.now()
        lines = {gate.name: await line_of(self.client, gate, now, ()) for gate in busy}
        return {name: line for name, line in lines.items() if line}  # all may be in by now

    async def gates(self) -> tuple[tuple[GateStatus, ...], dict[str, str]]:
        """Every gate as it stands, by name; and those that cannot be read, each with the reason."""
        return await self._stand(_names(await self.client.smembers(INDEX)))

    async def _stand(self, names: list[str]) -> tuple[tuple[GateStatus, ...], dict[str, str]]:
        found = await statuses(self.client, self.target, sorted(names))
        stand = tuple(gate for gate in found.values() if isinstance(gate, GateStatus))
        return stand, {name: str(why) for name, why in found.items() if isinstance(why, GateError)}

    async def gate_status(self, name: str) -> GateStatus | None:
        """The gate of that name as it stands; None if it is not there."""
        found = (await statuses(self.client, self.target, [name])).get(name)
        if isinstance(found, GateError):
            raise found
        return found

    async def gate(self, name: str) -> Gate | None:
        """Open the gate of that name, to change it on its own terms; None if it is not there."""
        try:
            return await asyncio.to_thread(existing_gate, self.target, name)
        except UnknownGate:
            return None

    async def open_buffers(self) -> list[RolloutBuffer]:
        """The buffers of all tasks of the run."""
        names = await listed_tasks(self.link, self.run)
        return buffers.open_buffers(self.link, self.run, names)

    async def aclose(self) -> None:
        self._registries.close()
        await self.link.aclose()
        await self.client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def now(self) -> float:
        """The time by the server's clock."""
        seconds, micros = await self.client.time()
        return float(seconds + micros / 1e6)

    async def _buffers(
        self, now: float
    ) -> tuple[tuple[Task, ...], tuple[Group, ...], tuple[Group, ...]]:
        tasks, groups, quarantine = [], [], []
        for buffer in await self.open_buffers():
            tasks.append(await buffers.read_task(buffer, now))
            groups += await buffers.read_groups(buffer, ("leased", "ready", "open"))
            if tasks[-1].groups["quarantined"]:
                quarantine += await buffers.read_groups(buffer, ("quarantined",))
        return tuple(tasks), tuple(groups), tuple(quarantine)

    async def _server(self) -> Server:
        try:
            facts = await self.client.info()
        except redis.exceptions.ResponseError:  # fakeredis has no INFO
            facts = {}
        return Server(
            where=str(self.target),
            version=str(facts.get("valkey_version") or facts.get("redis_version", "")),
            used_memory=int(facts.get("used_memory", 0)),
            max_memory=int(facts.get("maxmemory", 0)),
            clients=int(facts.get("connected_clients", 0)),
            max_clients=int(facts.get("maxclients", 0)),
            commands_per_second=int(facts.get("instantaneous_ops_per_sec", 0)),
            trouble=trouble_of(facts),
        )

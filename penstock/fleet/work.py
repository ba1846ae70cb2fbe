"""Queues, workers and jobs, as RQ and our worker keep them: read in a few pipelines."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from ground import chunks, tagged
from penstock.fleet.model import Job, Queue, Worker

SHOWN_JOBS = 30
# Stock RQ's idle worker has a heartbeat every 405 s.
SILENT_RQ = 435.0
_WORKER = (
    "state", "queues", "current_job", "last_heartbeat", "birth", "successful_job_count",
    "failed_job_count", "hostname", "pid", "penstock_gate",
    "penstock_unreachable", "penstock_masked",
)  # fmt: skip
_JOB = (
    "status", "description", "worker_name", "enqueued_at", "started_at", "ended_at",
    "penstock_attempts",
)  # fmt: skip
_Row = list[bytes | None]


async def read_queues(client: Any, workers: Sequence[Worker], now: float) -> list[Queue]:
    """Every queue that was used here, or is listened to. Verdicts come later."""
    names = sorted(
        await _used_queues(client) | {name for worker in workers for name in worker.queues}
    )
    pipe = client.pipeline(transaction=False)
    for name in names:
        pipe.llen(f"rq:queue:{name}")
        pipe.lindex(f"rq:queue:{name}", 0)
        pipe.zcard(f"rq:wip:{name}")
        pipe.zcard(f"rq:deferred:{name}")
        pipe.zcard(f"rq:scheduled:{name}")
        pipe.hgetall(tagged("work", name))
    rows = chunks(await pipe.execute(), 6)
    heads = [row[1].decode() if row[1] else "" for row in rows]
    since = await _fields(client, heads, ("enqueued_at",))
    return [
        Queue(
            name=name, depth=row[0], oldest=max(0.0, now - (_moment(head[0]) or now)),
            running=row[2], deferred=row[3], scheduled=row[4], workers=0,
            counters=_counters(row[5]),
        )
        for name, row, head in zip(names, rows, since, strict=True)
    ]  # fmt: skip


async def read_workers(client: Any, now: float) -> list[Worker]:
    """Those that live, and the silent ones that nobody has replaced; these come first."""
    members = await client.smembers("rq:workers")
    keys = sorted(member.decode() for member in members)
    pipe = client.pipeline(transaction=False)
    for key in keys:
        pipe.hmget(key, *_WORKER)
        pipe.scard(f"{key}:executions")
    rows = chunks(await pipe.execute(raise_on_error=False), 2)
    live = [
        (key.removeprefix("rq:worker:"), row, held if isinstance(held, int) else 0)
        for key, (row, held) in zip(keys, rows, strict=True)
        if isinstance(row, list) and row[4]  # else its hash has expired
    ]
    queues = {name for _, row, _ in live for name in _names(row[1])}
    beats = await _heartbeats(client, sorted(queues))
    found = [_worker(name, row, held, beats, now) for name, row, held in live]
    found = _less_replaced(found, now)
    order = {"dead": 0, "busy": 1, "suspended": 2, "idle": 3}
    return sorted(found, key=lambda worker: (order[worker.state], worker.name))


async def with_their_jobs(client: Any, workers: Sequence[Worker]) -> list[Worker]:
    """The same workers, each with the job that it has run longest."""
    pipe = client.pipeline(transaction=False)
    for worker in workers:
        pipe.smembers(f"rq:worker:{worker.name}:executions")
    held = await pipe.execute(raise_on_error=False)
    first = [_longest(members) or (worker.job, 0.0)
             for worker, members in zip(workers, held, strict=True)]  # fmt: skip
    started = await _fields(client, [job for job, _ in first], ("started_at",))
    return [
        replace(worker, job=job, job_since=since or _moment(row[0]) or 0.0)
        for worker, (job, since), row in zip(workers, first, started, strict=True)
    ]


async def read_ended(client: Any, queues: Iterable[Queue], registry: str) -> list[Job]:
    """The jobs that ended last, of all queues; `registry` is `finished` or `failed`."""
    named = [queue.name for queue in queues]
    pipe = client.pipeline(transaction=False)
    for name in named:
        pipe.zrevrange(f"rq:{registry}:{name}", 0, SHOWN_JOBS - 1)
    lists = await pipe.execute()
    ids = [(name, id.decode()) for name, ids in zip(named, lists, strict=True) for id in ids]
    rows = await _fields(client, [id for _, id in ids], _JOB)
    jobs = [_job(id, name, row) for (name, id), row in zip(ids, rows, strict=True) if row[0]]
    return sorted(jobs, key=lambda job: -job.ended)[:SHOWN_JOBS]


def _less_replaced(workers: list[Worker], now: float) -> list[Worker]:
    """Less the silent ones that a restart left behind: a living worker that was born after the last
    heartbeat of a silent one, and serves all its queues, stands for that one."""
    living = sorted((one for one in workers if one.state != "dead"), key=lambda one: -one.born)
    silent = sorted((one for one in workers if one.state == "dead"), key=lambda one: one.silent)
    left = list(living)
    for lost in silent:
        for heir in living:
            if heir.born > now - lost.silent and set(lost.queues) <= set(heir.queues):
                living.remove(heir)
                break
        else:
            left.append(lost)
    return left


def _worker(name: str, row: _Row, held: int, beats: dict[str, float], now: float) -> Worker:
    state, queues, job, heard, birth, done, failed, host, pid, gate, away, masked = row
    silent = max(0.0, now - (_moment(heard) or now))
    ours = gate is not None
    dead = beats.get(name, 0.0) < now if ours else silent > SILENT_RQ
    running = held or int(bool(job))
    known = _text(state) if _text(state) in ("busy", "suspended") else "busy" if running else "idle"
    return Worker(
        name=name, state="dead" if dead else known,  # type: ignore[arg-type]
        queues=_names(queues), gate=_text(gate),
        running=running, job=_text(job), job_since=0.0, silent=silent,
        born=_moment(birth) or 0.0, finished=int(done or 0), failed=int(failed or 0),
        masked=int(masked or 0),
        host=_text(host), pid=int(pid or 0),
        unreachable=tuple(_text(away).split()),
    )  # fmt: skip


async def _used_queues(client: Any) -> set[str]:
    return {key.decode().removeprefix("rq:queue:") for key in await client.smembers("rq:queues")}


def _names(queues: bytes | None) -> tuple[str, ...]:
    return tuple(filter(None, _text(queues).split(",")))


async def _heartbeats(client: Any, queues: Sequence[str]) -> dict[str, float]:
    """Until when each of our workers is known to live."""
    pipe = client.pipeline(transaction=False)
    for name in queues:
        pipe.zrange(tagged("work", name, "workers"), 0, -1, withscores=True)
    until: dict[str, float] = {}
    for rows in await pipe.execute():
        for worker, score in rows:
            until[worker.decode()] = max(until.get(worker.decode(), 0.0), score / 1e6)
    return until


def _longest(members: Any) -> tuple[str, float] | None:
    """Our executions are numbered by the microsecond of the claim, at the earliest."""
    pairs = [member.decode().partition(":") for member in members] if members else []
    ours = [(int(number) / 1e6, job) for job, _, number in pairs if number.isdigit()]
    if ours:
        since, job = min(ours)
        return job, since
    return (pairs[0][0], 0.0) if pairs else None


def _job(id: str, queue: str, row: _Row) -> Job:
    status, description, worker, enqueued, started, ended, attempts = row
    queued, began, end = _moment(enqueued), _moment(started), _moment(ended)
    return Job(
        id=id, queue=queue, status=_text(status), description=_text(description),
        worker=_text(worker), ended=end or 0.0,
        waited=max(0.0, began - queued) if began and queued else None,
        took=max(0.0, end - began) if end and began else None, attempts=int(attempts or 1),
    )  # fmt: skip


async def _fields(client: Any, ids: Sequence[str], names: Sequence[str]) -> list[_Row]:
    pipe = client.pipeline(transaction=False)
    for id in ids:
        pipe.hmget(f"rq:job:{id or '-'}", *names)
    rows: list[_Row] = await pipe.execute()
    return rows


def _counters(flat: dict[bytes, bytes]) -> dict[str, int]:
    return {name.decode(): int(value) for name, value in flat.items() if name != b"fence"}


def _moment(text: bytes | None) -> float | None:
    """RQ writes `2026-08-02T10:11:12.345678Z`."""
    try:
        return datetime.fromisoformat(_text(text)).timestamp() if text else None
    except ValueError:
        return None


def _text(value: bytes | None) -> str:
    return value.decode(errors="replace") if value else ""

"""Queues, workers and jobs, as RQ and our worker keep them: read in a few pipelines."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple

from ground.breaker import read_state
from ground.keys import tagged
from ground.lua import chunks
from penstock.fleet.model import Job, Latency, Masked, Queue, Worker
from penstock.fleet.one_job import attempts_of, error_text, number
from worker.outcomes import LATENCY_STEPS, PROGRAM_OUTCOMES

SHOWN_JOBS = 30
# Stock RQ's idle worker has a heartbeat every 405 s. With another --worker-ttl it comes 75 s
# before the worker's record expires: it is late once that has less than 45 s left.
SILENT_RQ, LEFT_RQ = 435.0, 45.0
OVERDUE = 20.0  # seconds; RQ's scheduler looks every second
LOOKED_AT = 1000  # jobs that ended, to find the last of them
_DESCRIBED = 1000  # characters: people may put whole programs there
UNHAPPY = tuple(outcome for outcome in PROGRAM_OUTCOMES if outcome != "finished")
_WORKER = (
    "state", "queues", "current_job", "last_heartbeat", "birth", "successful_job_count",
    "failed_job_count", "hostname", "pid", "penstock_gate",
    "penstock_unreachable", "penstock_jobs_at_once", "penstock_refused", "penstock_release",
    "penstock_ahead", "penstock_pace", "shutdown_requested_date",
    "penstock_forgotten",
    *(f"penstock_{outcome}" for outcome in UNHAPPY),
)  # fmt: skip
_HEARD, _GATE = _WORKER.index("last_heartbeat"), _WORKER.index("penstock_gate")
_JOB = (
    "status", "description", "worker_name", "enqueued_at", "started_at", "ended_at",
    "penstock_attempts", "penstock_outcome",
)  # fmt: skip
_NO_COUNTER = (
    "fence", "paused", "paused_why", "breaker", "waited_us", "took_us", "programs_shared",
)  # fmt: skip
RECENT = 64  # programs, of which it is known how many had no outcome; counts.lua has the same
_Row = list[bytes | None]


async def read_queues(client: Any, workers: Sequence[Worker], now: float) -> list[Queue]:
    """Every queue that was used here, or is listened to. Verdicts come later."""
    heard = {name for worker in workers for name in worker.queues}
    used = await _used_queues(client) | heard
    lines = await _lines(client, sorted(used), now)
    # A queue of RQ's may be named as a share is: its jobs and its workers say so.
    queue_of = {name: name.partition("~")[0] for name in used}
    queue_of |= {
        name: name
        for name, queue in queue_of.items()
        if queue not in used or name in heard or lines[name].origin == name
    }
    names = sorted({*queue_of.values()})
    waiting = dict.fromkeys(names, (0, 0.0))
    for name, line in lines.items():
        jobs, oldest = waiting[queue_of[name]]
        waiting[queue_of[name]] = jobs + line.jobs, max(oldest, line.oldest)
    pipe = client.pipeline(transaction=False)
    for name in names:
        pipe.zcard(f"rq:wip:{name}")
        pipe.zcard(f"rq:deferred:{name}")
        pipe.zcard(f"rq:scheduled:{name}")
        pipe.zcount(f"rq:scheduled:{name}", "-inf", now - OVERDUE)
        pipe.hgetall(tagged("work", name))
        pipe.hgetall(tagged("work", name, "masked"))
    rows = chunks(await pipe.execute(), 6)
    return [
        _with_masked(
            Queue(
            name=name, depth=waiting[name][0], oldest=waiting[name][1],
            running=row[0], deferred=row[1], scheduled=row[2], overdue=row[3], workers=0,
            **_counted(row[4]),
            ), row[5], now,
        )
        for name, row in zip(names, rows, strict=True)
    ]  # fmt: skip


async def read_workers(client: Any, now: float) -> list[Worker]:
    """The workers that live, and the silent ones that nobody has replaced; these come first."""
    members = await client.smembers("rq:workers")
    keys = sorted(map(_text, members))
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
    silent = [
        name
        for name, row, _ in live
        if row[_GATE] is None and now - (_moment(row[_HEARD]) or now) > SILENT_RQ
    ]
    beats = await _heartbeats(client, sorted(queues)) | await _records(client, silent, now)
    found = [_worker(name, row, held, beats, now) for name, row, held in live]
    found = _less_replaced(found, now)
    order = {"dead": 0, "busy": 1, "suspended": 2, "idle": 3}
    return sorted(found, key=lambda worker: (order[worker.state], worker.name))


async def with_their_jobs(client: Any, workers: Sequence[Worker]) -> list[Worker]:
    """These workers, each with the job that it has run longest."""
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
    """The jobs that ended last, of all queues; `registry` is `finished` or `failed`. RQ also lists
    those as failed that their callers stopped: they are left out."""
    ended = await ended_last(client, [queue.name for queue in queues], registry)
    ids = [job for job, status in ended.items() if status == registry][:SHOWN_JOBS]
    jobs = [job for job in await read_jobs(client, ids) if job]
    return sorted(jobs, key=lambda job: -job.ended)


async def ended_last(
    client: Any, queues: Sequence[str], registry: str
) -> dict[tuple[str, str], str]:
    """The queue and id of up to 1,000 jobs in a registry of these queues, with their states: those
    that ended last first. RQ orders them by when they expire, and each is kept for its own time."""
    most = max(SHOWN_JOBS, LOOKED_AT // max(1, len(queues)))
    pipe = client.pipeline(transaction=False)
    for name in queues:
        pipe.zrevrange(f"rq:{registry}:{name}", 0, most - 1)
    lists = zip(queues, await pipe.execute(), strict=True)
    jobs = [(name, _text(id)) for name, ids in lists for id in ids]
    rows = await _fields(client, [id for _, id in jobs], ("ended_at", "started_at", "status"))
    found = [
        (ended or started or b"", job, _text(status))  # RQ notes no end of one that it gives up
        for job, (ended, started, status) in zip(jobs, rows, strict=True)
    ]
    return {job: status for _, job, status in sorted(found, reverse=True)}


async def with_errors(client: Any, jobs: Sequence[Job]) -> list[Job]:
    """These failed jobs, each with the last line of its traceback, the latest first. RQ notes no
    end of one that it gives up: it ended when its result was recorded."""
    pipe = client.pipeline(transaction=False)
    for job in jobs:
        pipe.xrevrange(f"rq:results:{job.id}", count=1)
    results = await pipe.execute(raise_on_error=False)
    found = [
        replace(job, error=_last_line(rows), ended=job.ended or _recorded(rows))
        for job, rows in zip(jobs, results, strict=True)
    ]
    return sorted(found, key=lambda job: -job.ended)


def _last_line(rows: Any) -> str:
    """The last line of a failed job's latest result."""
    if not isinstance(rows, list) or not rows:
        return ""
    lines = error_text(rows[0][1].get(b"exc_string")).strip().splitlines()
    return lines[-1][:_DESCRIBED] if lines else ""


def _recorded(rows: Any) -> float:
    """The moment at which a job's latest result was recorded; 0 if it has none."""
    if not isinstance(rows, list) or not rows:
        return 0.0
    return int(rows[0][0].partition(b"-")[0]) / 1000


async def read_jobs(client: Any, ids: Sequence[tuple[str, str]]) -> list[Job | None]:
    """Each job of a queue and an id; None if Redis knows nothing of it."""
    rows = await _fields(client, [id for _, id in ids], _JOB)
    return [
        _job(id, queue, row) if any(row) else None
        for (queue, id), row in zip(ids, rows, strict=True)
    ]


def _less_replaced(workers: list[Worker], now: float) -> list[Worker]:
    """The workers without the silent ones that a restart left behind. A living worker stands for a
    silent one if it is younger than that one's last heartbeat, and serves all its queues."""
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
    state, queues, job, heard, birth, done, failed, host, pid, gate, away, room, *more = row
    refused, release, ahead, pace, ending, forgotten, *unhappy = more
    programs = {what: _whole(n) for what, n in zip(UNHAPPY, unhappy, strict=True) if n}
    silent = max(0.0, now - (_moment(heard) or now))
    gone = number(forgotten)
    ours = gate is not None
    dead = beats.get(name, 0.0) < now and (ours or silent > SILENT_RQ)
    running = held or int(bool(job))
    known = _text(state) if _text(state) in ("busy", "suspended") else "busy" if running else "idle"
    return Worker(
        name=name, state="dead" if dead else known,  # type: ignore[arg-type]
        queues=_names(queues), gate=_text(gate), concurrent=ours,
        running=running, room=_whole(room), job=_text(job), job_since=0.0, silent=silent,
        born=_moment(birth) or 0.0, finished=_whole(done), failed=_whole(failed),
        masked=programs.get("masked", 0), programs=programs,
        host=_text(host), pid=_whole(pid),
        unreachable=tuple(_text(away).split()), refused=_text(refused), release=_text(release),
        ahead=number(ahead), pace=_pace(_text(pace)), late=_late(_text(pace)),
        forgotten=max(0.001, now - gone) if gone else 0.0, ending=bool(ending),
    )  # fmt: skip


async def _used_queues(client: Any) -> set[str]:
    return {_text(key).removeprefix("rq:queue:") for key in await client.smembers("rq:queues")}


class _Line(NamedTuple):
    """The jobs that wait in one list, how long the first has, and the queue that it was sent to."""

    jobs: int
    oldest: float
    origin: str


async def _lines(client: Any, names: Sequence[str], now: float) -> dict[str, _Line]:
    """The lists of these queues, and of their shares, which are named `<queue>~<share>`."""
    pipe = client.pipeline(transaction=False)
    for name in names:
        pipe.llen(f"rq:queue:{name}")
        pipe.lindex(f"rq:queue:{name}", 0)
    rows = chunks(await pipe.execute(), 2)
    heads = await _fields(client, [_text(head) for _, head in rows], ("enqueued_at", "origin"))
    return {
        name: _Line(jobs, max(0.0, now - (_moment(since) or now)), _text(origin))
        for name, (jobs, _), (since, origin) in zip(names, rows, heads, strict=True)
    }


def _names(queues: bytes | None) -> tuple[str, ...]:
    return tuple(filter(None, _text(queues).split(",")))


async def _heartbeats(client: Any, queues: Sequence[str]) -> dict[str, float]:
    """The moment until which each of our workers is known to live."""
    pipe = client.pipeline(transaction=False)
    for name in queues:
        pipe.zrange(tagged("work", name, "workers"), 0, -1, withscores=True)
    until: dict[str, float] = {}
    for rows in await pipe.execute():
        for worker, score in rows:
            until[_text(worker)] = max(until.get(_text(worker), 0.0), score / 1e6)
    return until


async def _records(client: Any, silent: Sequence[str], now: float) -> dict[str, float]:
    """The moment until which each of these stock workers is not late, by the end of its record."""
    pipe = client.pipeline(transaction=False)
    for name in silent:
        pipe.pttl(f"rq:worker:{name}")
    lefts = await pipe.execute()
    return {name: now + left / 1e3 - LEFT_RQ for name, left in zip(silent, lefts, strict=True)}


def _longest(members: Any) -> tuple[str, float] | None:
    """Our executions are numbered by the microsecond of the claim, at the earliest."""
    known = members if isinstance(members, set | list) else ()  # else Redis refused
    pairs = [_text(member).partition(":") for member in known]
    claims = [(int(at) / 1e6, job) for job, _, at in pairs if at.isdecimal() and len(at) < 20]
    if claims:
        since, job = min(claims)
        return job, since
    return (pairs[0][0], 0.0) if pairs else None


def _job(id: str, queue: str, row: _Row) -> Job:
    status, description, worker, enqueued, started, ended, attempts, outcome = row
    queued, began, end = _moment(enqueued), _moment(started), _moment(ended)
    return Job(
        id=id, queue=queue, status=_text(status), description=_text(description)[:_DESCRIBED],
        worker=_text(worker), ended=end or 0.0,
        waited=max(0.0, began - queued) if began and queued else None,
        took=max(0.0, end - began) if end and began else None,
        attempts=attempts_of(_text(attempts), started), outcome=_text(outcome),
        enqueued=queued or 0.0, started=began or 0.0,
    )  # fmt: skip


async def _fields(client: Any, ids: Sequence[str], names: Sequence[str]) -> list[_Row]:
    pipe = client.pipeline(transaction=False)
    for id in ids:
        pipe.hmget(f"rq:job:{id or '-'}", *names)
    rows: list[_Row] = await pipe.execute()
    return rows


def _counted(flat: dict[bytes, bytes]) -> dict[str, Any]:
    """The counts of a queue's workers, from its hash `penstock:work:{queue}`."""
    fields = {_text(name): _whole(value) for name, value in flat.items()}
    counters = {
        name: count for name, count in fields.items() if ":" not in name and name not in _NO_COUNTER
    }
    return {
        "counters": counters,
        "programs": _programs(fields),
        "shared": fields.get("programs_shared", 0),
        "waited": _latency("waited", fields),
        "took": _latency("took", fields),
        "paused": b"paused" in flat,
        "breaker": read_state(_text(flat.get(b"paused"))).value,
        "paused_why": _text(flat.get(b"paused_why")),
    }


def _with_masked(queue: Queue, noted: dict[bytes, bytes], now: float) -> Queue:
    """The queue with what its workers noted of the programs that had no outcome lately."""
    marks = [_whole(mark) for mark in noted.get(b"marks", b"").split()]
    if not marks:
        return queue
    finished = queue.counters.get("finished", 0)
    lately = Masked(
        many=sum(mark > finished - RECENT for mark in marks), of=min(RECENT, finished),
        since=max(0, finished - marks[-1]), ago=max(0.0, now - _whole(noted.get(b"at")) / 1e6),
        why=_text(noted.get(b"why")),
    )  # fmt: skip
    return replace(queue, masked=lately)


def _programs(fields: dict[str, int]) -> dict[str, int]:
    known = {name: fields.get(f"programs:{name}", 0) for name in PROGRAM_OUTCOMES}
    unknown = fields.get("finished", 0) - fields.get("functions", 0) - sum(known.values())
    return {**known, "unknown": max(0, unknown)}


def _latency(what: str, fields: dict[str, int]) -> Latency:
    counts = tuple(fields.get(f"{what}:{step}", 0) for step in LATENCY_STEPS)
    return Latency(counts, fields.get(f"{what}_us", 0) / 1e6)


def _pace(said: str) -> tuple[int, float]:
    jobs, seconds, *_ = [*said.encode().split(), b"", b""]
    return int(number(jobs)), number(seconds)


def _late(said: str) -> int:
    """The late timeouts in a pace; 0 of a worker of an older release, which does not say."""
    return int(number(b"".join(said.encode().split()[2:3])))


def _moment(text: bytes | None) -> float | None:
    """RQ writes `2026-08-02T10:11:12.345678Z`."""
    try:
        return datetime.fromisoformat(_text(text)).timestamp() if text else None
    except ValueError:
        return None


def _whole(value: bytes | None) -> int:
    """Read a whole number; 0 for what is none: a newer version may keep more in a record than we
    know."""
    try:
        return int(value or 0)
    except ValueError:
        return 0


def _text(value: bytes | None) -> str:
    return value.decode(errors="replace") if value else ""

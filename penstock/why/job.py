"""A job has its reward for these reasons: its verdict, what that stands on, and the way it went."""

from collections.abc import Iterator
from typing import Any

from ground import PenstockError
from ground.keys import tagged
from jail.judge.models import JudgeRequest, JudgeResult
from jail.models import CodeRequest, CodeResult
from penstock.fleet import FleetReader
from penstock.fleet.one_job import Stored, first_line, stored_job
from penstock.why.model import Explained, Fact, Look, cut, many, seconds
from penstock.why.verdict import Reading, Request, Result, of_result
from worker.queue.dropped_jobs import REASONS
from worker.queue.order import FUNCTION, JUDGE

_KINDS: dict[str, tuple[type[Request], type[Result]]] = {
    FUNCTION: (CodeRequest, CodeResult),
    JUDGE: (JudgeRequest, JudgeResult),
}
KEPT = (
    "Redis keeps a job for PENSTOCK_RESULT_TTL seconds after its end (3600 by default), and one "
    "that failed for a day"
)
_DROPPED = 1000  # the stream has no more
_OVER = ("finished", "failed", "canceled", "stopped")
_UNWANTED = {
    "cancelled": "its caller cancelled it while it ran",
    "missing": "its caller is missing",
    "orphaned": "the process that wanted it is gone",
}


async def explain_job(reader: FleetReader, id: str) -> tuple[dict[str, Any], Explained] | None:
    """The job in full, and why; None if Redis knows nothing of it."""
    stored = await stored_job(reader.client, id)
    if stored is None:
        return None
    found = await reader.in_full(stored)
    request, unreadable = request_of(stored)
    said = _said(stored, found, request)
    facts = [
        *said.facts, *_program(request, found, unreadable), *_way(stored, found, request),
        *await _dropped(reader, id, found["origin"]),
    ]  # fmt: skip
    jobs = (id,) if request is not None else ()
    return found, Explained("job", id, "", said.sentence, said.look, tuple(facts), jobs)


def request_of(stored: Stored) -> tuple[Request | None, str]:
    """The request that the job was to run or to judge; or why that cannot be read."""
    try:
        function, arguments = stored.called()
        if function not in _KINDS:
            return None, f"it calls {function}, which is no program of a sandbox"
        if not arguments:
            return None, f"it calls {function} without a request"
        return _KINDS[function][0].read(arguments[0]), ""
    except PenstockError as refusal:
        return None, str(refusal)
    except ValueError:
        return None, "what it calls is not RQ's JSON, and is not opened"


def result_of(stored: Stored) -> Result | None:
    """The result of the job; None if there is none, or Redis has forgotten it. Raises
    `PenstockError`."""
    try:
        function, _ = stored.called()
        value = stored.value()
    except ValueError:
        return None
    if value is None or function not in _KINDS:
        return None
    return _KINDS[function][1].read(value)


def _said(stored: Stored, found: dict[str, Any], request: Request | None) -> Reading:
    status = found["status"]
    if status == "queued":
        waits = found.get("waits") or "its turn comes when a worker has room"
        where = f"it waits in queue {found['origin']!r}, {found['place']}"
        return _plain(f"it has no reward yet, {where}: {waits}", "warn")
    if status not in _OVER:
        at = f" on worker {found['worker_name']}" if found["worker_name"] else ""
        return _plain(f"it has no reward yet, it is {status}{at}", "")
    if status == "failed":
        why = found["error"].strip().splitlines()[-1:] or ["its worker does not say why"]
        said = f"it has no reward, its job failed, no fault of the program: {cut(why[0])}"
        return Reading(said, "bad", (Fact("failed", cut(why[0]), "bad"),))
    if status != "finished":
        return _plain(f"it has no reward, it was {status}", "warn")
    try:
        result = result_of(stored)
    except PenstockError as unreadable:
        return _plain(f"its result cannot be read here: {unreadable}", "warn")
    if result is not None:
        return of_result(request, result)
    if request is None:
        return _plain("it has finished, and was no program of a sandbox", "")
    return _plain("it has finished, and its result has expired", "warn")


def _plain(sentence: str, look: Look) -> Reading:
    return Reading(sentence, look, ())


def _program(
    request: Request | None, found: dict[str, Any], unreadable: str
) -> Iterator[Fact]:  # fmt: skip
    if request is None:
        yield Fact("program", unreadable)
        return
    size = many(len(request.code.encode()), "byte")
    said = f"{request.language}, {size}: {cut(first_line(request.code))}"
    yield Fact("program", said)
    if isinstance(request, JudgeRequest):
        where = "with the job" if request.suite is None else "in Redis, as a suite"
        yield Fact("cases", f"{request.count:,}, {where}")
    if request.labels:
        yield Fact("labels", cut(", ".join(f"{k}={v}" for k, v in request.labels.items())))


def _way(stored: Stored, found: dict[str, Any], request: Request | None) -> Iterator[Fact]:
    """Attempts, the permit and the worker: how it came to its end."""
    spent = {part["what"]: part["seconds"] for part in found["timeline"]}
    result = _answer(stored) if request is not None else {}
    queue = found["origin"]
    at = f" for a worker with a permit of gate {found['gate']}" if found["gate"] else ""
    waited = f"{queue}, waited {seconds(spent.get('queued', 0.0))}{at}"
    yield Fact("queue", waited, "", "queue", queue)
    if found["share"]:
        yield Fact("share", found["share"])
    if found["gate"]:
        more = seconds(spent.get("permit", 0.0))
        waited = f"gate {found['gate']}, waited {more} more after a worker took it"
        yield Fact("permit", waited, "", "gate", found["gate"])
    elif found["worker_name"]:
        waited = f"waited {seconds(spent.get('permit', 0.0))} for one"
        gone = f"{waited}; its worker has left, which alone could say at which gate"
        yield Fact("permit", "none: its worker takes none" if found["ungated"] else gone)
    tries = result.get("attempts", 1)
    claimed = f"claimed {_times(found['attempts'])}" if found["attempts"] else "not claimed yet"
    attempts = [claimed]
    attempts += [f"the sandbox was asked {_times(tries)}"] if result else []
    attempts += [f"{seconds(spent['backoff'])} between them"] if spent.get("backoff") else []
    if found["deaths"]:
        attempts.append(f"{many(found['deaths'], 'worker')} died while it ran")
    unhappy = found["attempts"] > 1 or found["deaths"] or tries != 1
    yield Fact("attempts", ", ".join(attempts), "warn" if unhappy else "")
    if found["worker_name"]:
        release = f", release {found['release']}" if found["release"] else ""
        level = f", isolation {result['isolation']}" if result.get("isolation") else ""
        yield Fact("worker", f"{found['worker_name']}{release}{level}", "", "worker",
                   found["worker_name"])  # fmt: skip
    for run in found["executions"][1:]:
        ended = "finished" if run["ok"] else "failed"
        yield Fact("earlier", f"{ended} on worker {run['worker']}", "", "worker", run["worker"])
    if unwanted := stored.fields.get(b"penstock_unwanted", b"").decode(errors="replace"):
        yield Fact("caller", _UNWANTED.get(unwanted, unwanted), "warn")
    for what in ("enqueued_at", "started_at", "ended_at"):
        if found[what]:
            yield Fact(what.partition("_")[0], found[what])


def _answer(stored: Stored) -> dict[str, Any]:
    """The whole of what the job returned; empty if it is no program's result."""
    try:
        value = stored.value()
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


async def _dropped(reader: FleetReader, id: str, queue: str) -> list[Fact]:
    """The facts on what was dropped or refused of a job, as far as the queue still says."""
    rows = await reader.client.xrevrange(tagged("work", queue, "dropped"), count=_DROPPED)
    whys = [
        row.get(b"why", b"").decode(errors="replace")
        for _, row in rows
        if row.get(b"job") == id.encode()
    ]
    return [Fact("refused", REASONS.get(why, why), "warn") for why in whys]

"""The monitor shows more beside the stream: lists a page at a time, and one thing in full."""

from dataclasses import asdict, replace
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import WithJsonSchema
from starlette.responses import Response

from penstock.changes import Audit
from penstock.fleet import Sandbox, Worker
from penstock.fleet.groups import GROUP_STATES, WHY, GroupFilter, groups_of
from penstock.fleet.history import SPANS
from penstock.fleet.jobs import JOB_STATES, JobFilter, jobs_of, jobs_of_worker
from penstock.fleet.lines import line_of, line_says, steps
from penstock.fleet.search import find
from penstock.fleet.work import with_their_jobs
from penstock.monitor.answers import Answer, refused
from penstock.monitor.asked import Count, Looked, OneOf, Perhaps, Real, Whole
from penstock.why import NothingFound, explain
from penstock.why.job import explain_job
from worker.lifecycle.registry.records import STATES
from worker.outcomes import PROGRAM_OUTCOMES

Span = Annotated[str, OneOf(SPANS)]
JobState = Annotated[str, OneOf(JOB_STATES)]
Outcome = Annotated[str, OneOf(("", *PROGRAM_OUTCOMES))]
SandboxState = Annotated[str, OneOf(("", "failing", *STATES))]
GroupState = Annotated[str, OneOf(("", *GROUP_STATES))]
Why = Annotated[str, OneOf(("", *WHY))]
Most = Annotated[str, WithJsonSchema({"type": "integer"})]

shows = APIRouter(prefix="/api", tags=["monitor"], default_response_class=Answer)


@shows.get("/fleet")
async def fleet(
    request: Request,
    view: Looked,
    workers: Annotated[str, WithJsonSchema({"type": "integer"})] = "50",
) -> Response:
    """Look at the fleet once; `?workers=1000` lists up to 1,000 workers."""
    most = min(int(workers), 10_000) if workers.isdecimal() and len(workers) < 10 else 50
    found = await view.reader.read(workers=most)
    return Answer({**found.as_dict(), "may_act": request.app.state.may_act})


@shows.get("/history")
async def history(view: Looked, span: Span = "hour") -> Response:
    """The points of a `span`: `hour` or `day`, each a mean of its time."""
    return Answer({"span": span, "points": await view.watch.history.span(span)})


@shows.get("/find")
async def find_any(view: Looked, q: str = "") -> Response:
    """Find what has the id or the name `q`, then what has a name with `q` in it."""
    wanted = q.strip()[:200]
    found = await find(view.reader, view.watch.fleet, wanted) if wanted else []
    return Answer({"found": [asdict(one) for one in found]})


@shows.get("/jobs")
async def jobs(
    view: Looked, queue: str = "", state: JobState = "waiting",
    outcome: Outcome = "", worker: str = "", find: str = "",
    start: Whole = 0, count: Count = 50,
) -> Response:  # fmt: skip
    """Jobs of a `queue` in one `state`, perhaps of one `outcome` or `worker`, or with `find`.

    `find` is a part of the id or the description; the page begins at `start`.
    """
    fitting = JobFilter(outcome, worker, find[:200])
    page = await jobs_of(view.reader.client, queue, state, fitting, start=start, count=count)
    return Answer(asdict(page))


@shows.get("/jobs/{id}")
async def job(view: Looked, id: str) -> Response:
    """A job with its program, its output, why it has its reward, and where its time went."""
    found = await explain_job(view.reader, id)
    if found is None:
        return refused(404, "Redis has forgotten this job")
    job, why = found
    return Answer({**job, "why": asdict(why)})


@shows.get("/why/{id:path}")
async def why(view: Looked, id: str) -> Response:
    """Explain why whatever has this id has its reward, or waits: as `penstock why` says it."""
    try:
        found = await explain(view.reader, id)
    except NothingFound as nothing:
        return refused(404, str(nothing))
    return Answer({"id": id, "found": [asdict(one) for one in found]})


@shows.get("/workers")
async def workers(
    view: Looked, state: str = "", queue: str = "", find: str = "",
    start: Whole = 0, count: Count = 50,
) -> Response:  # fmt: skip
    """Workers, those in trouble first: of one `state`, of one `queue`, with `find` in them."""
    found = [
        one
        for one in await view.reader.workers()
        if state in ("", one.state) and (not queue or queue in one.queues) and _has(one, find)
    ]
    listed = await with_their_jobs(view.reader.client, found[start : start + count])
    return _page("workers", [asdict(one) for one in listed], start, len(found))


@shows.get("/workers/{name:path}")
async def worker(view: Looked, name: str) -> Response:
    """A worker, the jobs that it runs now, and the latest that it ended."""
    found = [one for one in await view.reader.workers() if one.name == name]
    if not found:
        return refused(404, "this worker has left, or was never here")
    (one,) = await with_their_jobs(view.reader.client, found)
    running, ended = await jobs_of_worker(view.reader.client, one)
    return Answer({
        "worker": asdict(one),
        "running": [asdict(job) for job in running],
        "ended": [asdict(job) for job in ended],
    })  # fmt: skip


@shows.get("/gates/{name:path}")
async def gate(view: Looked, name: str) -> Response:
    """A gate, the first hundred of its holders and of its line, why they wait, and its limit."""
    status, client = await view.reader.gate_status(name), view.reader.client
    if status is None:
        return refused(404, f"there is no gate {name!r}")
    workers = await view.reader.workers() if status.waiting else []
    line = await line_of(client, status, await view.reader.now(), workers)
    return Answer({
        "gate": asdict(replace(status, leases=())),
        "holders": [asdict(lease) for lease in status.leases],
        "line": [asdict(one) for one in line],
        "why": line_says(status, workers),
        "steps": [asdict(step) for step in await steps(client, name)],
    })  # fmt: skip


@shows.get("/sandboxes")
async def sandboxes(
    view: Looked, run: str = "", state: SandboxState = "", find: str = "",
    start: Whole = 0, count: Count = 50,
) -> Response:  # fmt: skip
    """Session sandboxes of a `run`, else of all; in one `state`, with `find` in them."""
    every = await view.reader.sandboxes(run)
    found = [box for box in every if _is_in(box, state) and _names(box, find)]
    return _page(
        "sandboxes", [asdict(box) for box in found[start : start + count]], start, len(found)
    )


@shows.get("/groups")
async def groups(
    view: Looked, task: str = "", state: GroupState = "", version: Perhaps = None,
    why: Why = "", least: Real = None, most: Real = None,
    start: Whole = 0, count: Count = 50,
) -> Response:  # fmt: skip
    """Groups of the run by `task`, `state`, `version`, `why` they ended, and mean reward.

    The mean reward is from `least` to `most`; the page begins at `start`.
    """
    wanted = GroupFilter(version=version, least=least, most=most, why=why)
    buffers = await view.reader.open_buffers()
    named = [one for one in buffers if task in ("", one.task)]
    page = await groups_of(named, state or "ready", wanted, start=start, count=count)
    return Answer({**asdict(page), "tasks": [one.task for one in buffers]})


@shows.get("/groups/{task}")
async def group(view: Looked, task: str, instance_id: str = "", round: Whole = 0) -> Response:
    """A group's state and its items: `?instance_id=…&round=0`."""
    for buffer in await view.reader.open_buffers():
        if buffer.task == task:
            state = await buffer.catalog.state(instance_id, round)
            if not state:
                return refused(404, f"nothing is kept of group {instance_id!r}, round {round}")
            items = await buffer.catalog.items(instance_id, round)
            return Answer({"state": state, "items": items[:64], "in_all": len(items)})
    return refused(404, "there is no such task in this run")


@shows.get("/audit")
async def audit(view: Looked) -> Response:
    """The latest changes by the monitor and by commands, and who made each."""
    noted = await Audit(view.reader.client).latest()
    return Answer({"changes": [asdict(one) for one in noted]})


def _page(what: str, shown: list[dict[str, Any]], start: int, total: int) -> Response:
    after = start + len(shown)
    return Answer({what: shown, "total": total, "next": after if after < total else None})


def _is_in(box: Sandbox, state: str) -> bool:
    return not state or (box.failing if state == "failing" else box.state == state)


def _names(box: Sandbox, find: str) -> bool:
    return find.lower() in (f"{box.name} {box.id} {box.session} {box.owner} {box.provider}".lower())


def _has(worker: Worker, find: str) -> bool:
    return find.lower() in (
        f"{worker.name} {worker.host} {' '.join(worker.queues)} {worker.gate}".lower()
    )

"""What the monitor shows beside the stream: lists a page at a time, and one thing in full."""

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from penstock.changes import Audit
from penstock.fleet import Sandbox, Worker
from penstock.fleet.finding import find
from penstock.fleet.groups import WHY, GroupFilter, groups_of
from penstock.fleet.history import SPANS
from penstock.fleet.jobs import JOB_STATES, JobFilter, jobs_of, jobs_of_worker
from penstock.fleet.lines import steps, waiters
from penstock.fleet.one_job import job_in_full
from penstock.fleet.work import with_their_jobs
from penstock.monitor.answers import Answer, Handler, number, real, refused
from penstock.monitor.views import View
from worker.outcomes import PROGRAM_OUTCOMES

_MOST = 200  # rows of one page


class Shown:
    """The handlers of GET. Each says what is wrong with a query."""

    def __init__(self, view: Callable[[Request], View], *, may_act: bool) -> None:
        self._view = view
        self._may_act = may_act

    def handlers(self) -> dict[str, Handler]:
        """Each path with what answers it."""
        return {
            "/api/fleet": self._fleet,
            "/api/history": self._history,
            "/api/find": self._find,
            "/api/jobs": self._jobs,
            "/api/jobs/{id}": self._job,
            "/api/workers": self._workers,
            "/api/workers/{name:path}": self._worker,
            "/api/gates/{name:path}": self._gate,
            "/api/sandboxes": self._sandboxes,
            "/api/groups": self._groups,
            "/api/groups/{task}": self._group,
            "/api/audit": self._audit,
        }

    async def _fleet(self, request: Request) -> Response:
        """One look at the fleet; `?workers=1000` lists up to 1,000 workers."""
        wanted = request.query_params.get("workers", "50")
        most = min(int(wanted), 10_000) if wanted.isdecimal() and len(wanted) < 10 else 50
        fleet = await self._view(request).reader.read(workers=most)
        return Answer({**fleet.as_dict(), "may_act": self._may_act})

    async def _history(self, request: Request) -> Response:
        """The points of a `span`: `hour` or `day`, each a mean of its time."""
        span = request.query_params.get("span", "hour")
        if span not in SPANS:
            raise ValueError(f"`span` must be one of {', '.join(SPANS)}")
        points = await self._view(request).watch.history.span(span)
        return Answer({"span": span, "points": points})

    async def _find(self, request: Request) -> Response:
        """What has the id or the name `q`, then what has a name with `q` in it."""
        wanted = request.query_params.get("q", "").strip()[:200]
        view = self._view(request)
        found = await find(view.reader, view.watch.fleet, wanted) if wanted else []
        return Answer({"found": [asdict(one) for one in found]})

    async def _jobs(self, request: Request) -> Response:
        """Jobs of a `queue` in one `state`, perhaps of one `outcome` or `worker`, or with `find`.

        `find` is a part of the id or the description; the page begins at `start`.
        """
        asked = request.query_params
        state, outcome = asked.get("state", "waiting"), asked.get("outcome", "")
        if state not in JOB_STATES:
            raise ValueError(f"`state` must be one of {', '.join(JOB_STATES)}")
        if outcome and outcome not in PROGRAM_OUTCOMES:
            raise ValueError(f"`outcome` must be one of {', '.join(PROGRAM_OUTCOMES)}")
        fitting = JobFilter(outcome, asked.get("worker", ""), asked.get("find", "")[:200])
        page = await jobs_of(
            self._view(request).reader.client, asked.get("queue", ""), state, fitting,
            start=number(request, "start", 0), count=number(request, "count", 50, _MOST),
        )  # fmt: skip
        return Answer(asdict(page))

    async def _job(self, request: Request) -> Response:
        """A job with its program, its output, how it failed, and where its time went."""
        found = await job_in_full(self._view(request).reader.client, request.path_params["id"])
        return Answer(found) if found else refused(404, "Redis has forgotten this job")

    async def _workers(self, request: Request) -> Response:
        """Workers, those in trouble first: of one `state`, of one `queue`, with `find` in them."""
        asked, reader = request.query_params, self._view(request).reader
        found = [one for one in await reader.workers() if _fits(one, asked)]
        start = number(request, "start", 0)
        shown = found[start : start + number(request, "count", 50, _MOST)]
        listed = await with_their_jobs(reader.client, shown)
        after = start + len(listed)
        return Answer({
            "workers": [asdict(worker) for worker in listed], "total": len(found),
            "next": after if after < len(found) else None,
        })  # fmt: skip

    async def _worker(self, request: Request) -> Response:
        """A worker, the jobs that it runs now, and the latest that it ended."""
        reader, name = self._view(request).reader, request.path_params["name"]
        found = [one for one in await reader.workers() if one.name == name]
        if not found:
            return refused(404, "this worker has left, or was never here")
        (worker,) = await with_their_jobs(reader.client, found)
        running, ended = await jobs_of_worker(reader.client, worker)
        return Answer({
            "worker": asdict(worker),
            "running": [asdict(job) for job in running],
            "ended": [asdict(job) for job in ended],
        })  # fmt: skip

    async def _gate(self, request: Request) -> Response:
        """A gate, the first hundred of its holders and of its line, and how its limit moved."""
        view, name = self._view(request), request.path_params["name"]
        gate = await view.reader.gate(name)
        if gate is None:
            return refused(404, f"there is no gate {name!r}")
        status, client = await gate.status(), view.reader.client
        return Answer({
            "gate": asdict(replace(status, leases=())),
            "holders": [asdict(lease) for lease in status.leases],
            "line": [asdict(one) for one in await waiters(client, name, await view.reader.now())],
            "steps": [asdict(step) for step in await steps(client, name)],
        })  # fmt: skip

    async def _sandboxes(self, request: Request) -> Response:
        """Session sandboxes of a `run`, else of all; in one `state`, with `find` in them."""
        asked = request.query_params
        every = await self._view(request).reader.sandboxes(asked.get("run", ""))
        found = [box for box in every if _is_like(box, asked)]
        start = number(request, "start", 0)
        after = start + number(request, "count", 50, _MOST)
        return Answer({
            "sandboxes": [asdict(box) for box in found[start:after]], "total": len(found),
            "next": after if after < len(found) else None,
        })  # fmt: skip

    async def _groups(self, request: Request) -> Response:
        """Groups of the run by `task`, `state`, `version`, `why` they ended, and mean reward.

        The mean reward is from `least` to `most`; the page begins at `start`.
        """
        asked, reader = request.query_params, self._view(request).reader
        if (why := asked.get("why", "")) not in ("", *WHY):
            raise ValueError(f"`why` must be one of {', '.join(WHY)}")
        wanted = GroupFilter(
            version=number(request, "version", 0) if asked.get("version") else None,
            least=real(request, "least"), most=real(request, "most"), why=why,
        )  # fmt: skip
        buffers = await reader.open_buffers()
        named = [one for one in buffers if asked.get("task", "") in ("", one.task)]
        page = await groups_of(
            named, asked.get("state") or "ready", wanted,
            start=number(request, "start", 0), count=number(request, "count", 50, _MOST),
        )  # fmt: skip
        return Answer({**asdict(page), "tasks": [one.task for one in buffers]})

    async def _group(self, request: Request) -> Response:
        """A group's state and its items: `?instance_id=…&round=0`."""
        instance, wanted = request.query_params.get("instance_id", ""), number(request, "round", 0)
        for buffer in await self._view(request).reader.open_buffers():
            if buffer.task == request.path_params["task"]:
                state = await buffer.catalog.state(instance, wanted)
                if not state:
                    return refused(404, f"nothing is kept of group {instance!r}, round {wanted}")
                items = await buffer.catalog.items(instance, wanted)
                return Answer({"state": state, "items": items[:64], "in_all": len(items)})
        return refused(404, "there is no such task in this run")

    async def _audit(self, request: Request) -> Response:
        """The latest changes by the monitor and by commands, and who made each."""
        noted = await Audit(self._view(request).reader.client).latest()
        return Answer({"changes": [asdict(one) for one in noted]})


def _is_like(box: Sandbox, asked: Any) -> bool:
    text = f"{box.name} {box.id} {box.session} {box.owner} {box.provider}".lower()
    wanted = asked.get("state", "")
    state = box.failing if wanted == "failing" else box.state == wanted
    return (not wanted or state) and asked.get("find", "").lower() in text


def _fits(worker: Worker, asked: Any) -> bool:
    text = f"{worker.name} {worker.host} {' '.join(worker.queues)} {worker.gate}".lower()
    return (
        asked.get("state", "") in ("", worker.state)
        and (not asked.get("queue") or asked["queue"] in worker.queues)
        and asked.get("find", "").lower() in text
    )

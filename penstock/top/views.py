"""A view makes the screen of a place: the overview, and the lists. Each costs a bounded number of
commands, however many jobs, groups and workers there are."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from penstock.changes import Audit
from penstock.fleet import Fleet, Job
from penstock.fleet.groups import GroupFilter, groups_of
from penstock.fleet.history import History, lately
from penstock.fleet.jobs import JobFilter, jobs_of
from penstock.fleet.search import find
from penstock.fleet.work import with_their_jobs
from penstock.top import rows
from penstock.top.details import DETAILS, Seen
from penstock.top.model import Column, Notes, Order, Place, Row, Screen, Table, name, text

JOB_STATES = ("failed", "finished", "running", "waiting", "deferred", "scheduled", "canceled")
GROUP_STATES = ("ready", "open", "leased", "kept", "quarantined")
PAGE = 200  # rows of one page of a list
_MOST_QUEUES = 20
_FAILED_SHOWN = 5
_LOOKS = {"unused": "warn"}
_WHOLE = 8  # lines of an alarm: it ends with a command, which must not be cut


async def view(place: Place, seen: Seen, order: Order) -> Screen:
    """The screen of a place, as it is now."""
    shown = _LISTS.get(place.kind)
    return await (shown(place, seen, order) if shown else DETAILS[place.kind](place, seen))


async def overview(place: Place, seen: Seen, order: Order) -> Screen:
    """Whether all is well, what to do, and the figures of everything."""
    return overview_of(seen.fleet, seen.history)


def overview_of(fleet: Fleet, history: History) -> Screen:
    """The overview of a look; `history` has its point."""
    first = rows.alarms(fleet)[:5]
    if not first:
        first = (Row((fleet.sentence,), Place("queues"), _LOOKS.get(fleet.level, fleet.level)),)
    failed = fleet.failed[:_FAILED_SHOWN]
    tables = [
        rows.jobs(failed, fleet.at, ": 3", len(fleet.failed)),
        rows.queues(fleet.queues, ": 2"),
        rows.gates(fleet.gates, ": 5"),
        rows.tasks(fleet.tasks),
        rows.versions(fleet.tasks),
        rows.registries(fleet.registries),
        rows.workers(fleet.workers, fleet.at, ": 4", sum(fleet.worker_states.values())),
    ]
    pulse = Row((_pulse(fleet, history),), Place("jobs", state="finished"), "dim")
    shown = (table for table in tables if table.rows)
    return Screen(
        "overview", (Notes(first, most=_WHOLE), Notes((pulse,), most=1), *shown), bounded=True
    )


def _pulse(fleet: Fleet, history: History) -> str:
    last = history.points[-1]
    said = f"{last.done_per_second:g} jobs/s, {last.depth:,} wait, {last.running:,} run"
    if last.took_median is not None:
        said += f", median {last.took_median * 1000:.0f} ms"
    ended = lately(list(history.points), fleet.at)
    words = [f"{count:.0f} {what}" for what, count in ended.items() if round(count)]
    return said + (f"; last minute: {', '.join(words)}" if words else "")


async def _queues(place: Place, seen: Seen, order: Order) -> Screen:
    return _listing("queues", rows.queues(seen.fleet.queues, by_outcome=True))


async def _gates(place: Place, seen: Seen, order: Order) -> Screen:
    return _listing("gates", rows.gates(seen.fleet.gates))


async def _jobs(place: Place, seen: Seen, order: Order) -> Screen:
    """The jobs of one queue, else of those that have the most to do: the same page of each. The
    next begins where the first of them ended, so that none is passed over."""
    named = [place.where] if place.where else _busiest(seen.fleet)
    state = place.state or JOB_STATES[0]
    fitting = JobFilter(place.only, find=order.find)
    client = seen.reader.client
    pages = await asyncio.gather(
        *(jobs_of(client, one, state, fitting, start=place.start, count=PAGE) for one in named)
    )
    found = [job for page in pages for job in page.jobs]
    found.sort(key=lambda job: _newest(job, state))
    total, after = sum(page.total for page in pages), [page.next for page in pages if page.next]
    some = "" if fitting.is_any else f"{len(found):,} of "
    of = f"queue {place.where}" if place.where else "all queues"
    if len(named) < len(seen.fleet.queues) and not place.where:
        of = f"the {len(named)} busiest queues"
    return _listing(
        f"{state} jobs of {of}{_only(place.only)}: {some}{total:,}{_from(place)}",
        rows.jobs(found, seen.fleet.at), JOB_STATES, min(after, default=None),
    )  # fmt: skip


def _busiest(fleet: Fleet) -> list[str]:
    def jobs(at: int) -> int:
        queue = fleet.queues[at]
        return queue.depth + queue.running + sum(queue.counters.values())

    order = sorted(range(len(fleet.queues)), key=lambda at: -jobs(at))
    return [fleet.queues[at].name for at in order[:_MOST_QUEUES]]


def _newest(job: Job, state: str) -> float:
    return job.enqueued if state == "waiting" else -(job.ended or job.started or job.enqueued)


async def _workers(place: Place, seen: Seen, order: Order) -> Screen:
    find = order.find.lower()
    fitting = [one for one in seen.workers if find in _words(one.name, one.state, *one.queues)]
    page = fitting[place.start : place.start + PAGE]
    listed = await with_their_jobs(seen.reader.client, page)
    after = place.start + len(page)
    return _listing(
        f"workers: {len(seen.workers):,}{_from(place)}", rows.workers(listed, seen.fleet.at),
        after=after if after < len(fitting) else None,
    )  # fmt: skip


def _words(*words: str) -> str:
    return " ".join(words).lower()


async def _groups(place: Place, seen: Seen, order: Order) -> Screen:
    """The groups of a task; those that timed out are among the kept."""
    state = "kept" if place.only else place.state or GROUP_STATES[0]
    buffers = await seen.reader.open_buffers()
    named = [one for one in buffers if place.where in ("", one.task)]
    fitting = GroupFilter(why=place.only, find=order.find)
    page = await groups_of(named, state, fitting, start=place.start, count=PAGE)
    of = f"task {place.where}" if place.where else "all tasks"
    what = "groups that timed out" if place.only else f"{state} groups"
    return _listing(
        f"{what}, {of}: {len(page.groups) if place.only else page.total:,}{_from(place)}",
        rows.groups(page.groups, seen.fleet.at), GROUP_STATES, page.next,
    )  # fmt: skip


async def _sandboxes(place: Place, seen: Seen, order: Order) -> Screen:
    found = await seen.reader.sandboxes(place.where)
    table = rows.sandboxes(found, seen.fleet.at)
    shown = [one for one in seen.fleet.registries if place.where in ("", one.run)]
    of = f"run {place.where}" if place.where else "all runs"
    return Screen(
        f"session sandboxes of {of}: {len(found):,}",
        (rows.registries(shown), table), lists=table,
    )  # fmt: skip


async def _log(place: Place, seen: Seen, order: Order) -> Screen:
    noted = await Audit(seen.reader.client).latest()
    columns = (Column("WHEN"), name("who"), name("from"), text("what"), name("target"),
               text("outcome"))  # fmt: skip
    found = tuple(
        Row((_clock(one.at), one.who, one.address, one.what, one.target, one.outcome))
        for one in noted
    )
    return _listing("changes, the latest first", Table(columns, found))


async def _found(place: Place, seen: Seen, order: Order) -> Screen:
    found = await find(seen.reader, seen.fleet, place.name)
    table = Table(
        (text("WHAT"), name("name"), name("of")),
        tuple(Row((one.kind, one.name, one.where), place_of(one.kind, one.name, one.where))
              for one in found),
    )  # fmt: skip
    return _listing(f"found for {place.name!r}: {len(found)}", table)


def place_of(kind: str, named: str, where: str) -> Place:
    """The place that shows what was found."""
    return Place("groups", where=named) if kind == "task" else Place(kind, named, where)


def _listing(
    title: str, table: Table, states: Sequence[str] = (), after: int | None = None
) -> Screen:
    return Screen(title, (table,), lists=table, states=tuple(states), next=after)


def _only(word: str) -> str:
    return f" whose program ended as {word}" if word else ""


def _from(place: Place) -> str:
    return f", from {place.start + 1:,}" if place.start else ""


def _clock(at: float) -> str:
    return time.strftime("%d %b %H:%M:%S", time.localtime(at))


_LISTS: dict[str, Callable[[Place, Seen, Order], Awaitable[Screen]]] = {
    "overview": overview,
    "queues": _queues,
    "jobs": _jobs,
    "workers": _workers,
    "gates": _gates,
    "groups": _groups,
    "sandboxes": _sandboxes,
    "log": _log,
    "found": _found,
}

"""The screens of one thing in full: a queue, a job, a worker, a gate, a group or a sandbox."""

import json
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.fleet import Fleet, FleetReader, Queue, Worker
from penstock.fleet.gate_texts import state_of
from penstock.fleet.history import History
from penstock.fleet.jobs import jobs_of, jobs_of_worker
from penstock.fleet.lines import line_of, line_says, steps
from penstock.fleet.model import Latency
from penstock.fleet.work import with_their_jobs
from penstock.top import rows
from penstock.top.model import (
    Age,
    Block,
    Column,
    Notes,
    Place,
    Row,
    Screen,
    Table,
    Text,
    figure,
    name,
    text,
)
from penstock.why import Explained, NothingFound, explain
from penstock.why.item import explain_group
from penstock.why.job import explain_job
from worker.queue.shares import Shares, shares_of

_SHOWN_JOBS = 50
_SHOWN_ITEMS = 64
_MOST = 20_000  # characters of one text


@dataclass(frozen=True)
class Seen:
    """A look with every worker, and those before it: every view stands on it."""

    reader: FleetReader
    fleet: Fleet
    workers: Sequence[Worker]
    history: History


async def queue(place: Place, seen: Seen) -> Screen:
    """Show why a queue does not move, how its programs ended, what runs and what waits."""
    one = next((one for one in seen.fleet.queues if one.name == place.name), None)
    if one is None:
        return _absent(place, "Nothing has used this queue yet.")
    client, now, blocks = seen.reader.client, seen.fleet.at, list[Block]()
    shares = _shares(await shares_of(client, one.name, _SHOWN_JOBS))
    if shares.rows:
        blocks.append(shares)
    for state in ("running", "waiting", "failed"):
        page = await jobs_of(client, one.name, state, count=_SHOWN_JOBS)
        table = rows.jobs(page.jobs, now, "", page.total)
        if table.rows:
            blocks.append(_headed(table, f"{state.upper()} JOB"))
    return Screen(
        f"queue {one.name}",
        (Notes((Row((_sentence(one),), style=rows.look_of(one) or "well"),), most=4),
         _facts(_queue_facts(one)), _outcomes(one), *blocks),
        about=one,
    )  # fmt: skip


def _sentence(queue: Queue) -> str:
    waiting = f"; {queue.depth:,} wait" if queue.depth else ""
    if queue.reason:
        remedy = f"; {queue.remedy}" if queue.remedy else ""
        return f"{queue.reason[:1].upper()}{queue.reason[1:]}{waiting}{remedy}."
    plain = {"idle": "Nothing waits and nothing runs.", "working": "It is worked on"}
    return plain.get(queue.verdict, queue.verdict) + waiting


def _queue_facts(queue: Queue) -> list[tuple[str, Any]]:
    return [
        ("wait", queue.depth), ("oldest waits for", Age(queue.oldest) if queue.depth else None),
        ("run", queue.running), ("workers", queue.workers),
        ("finished", queue.counters.get("finished", 0)),
        ("failed", queue.counters.get("failed", 0)),
        ("mean wait", _mean(queue.waited)), ("mean run", _mean(queue.took)),
    ]  # fmt: skip


def _outcomes(queue: Queue) -> Table:
    """Each opens the jobs whose programs ended so."""
    programs = tuple(
        Row((outcome, count),
            Place("jobs", where=queue.name, state="finished", only=outcome)
            if outcome != "unknown" else None,
            "warn" if outcome != "finished" and count else "")
        for outcome, count in queue.programs.items() if count or outcome == "finished"
    )  # fmt: skip
    return Table((name("HOW ITS PROGRAMS ENDED"), Column("programs")), programs)


def _shares(found: Shares) -> Table:
    """A table of a queue's shares, in the order of their turns. It is empty if no job ever had a
    share."""
    named = found.shares if any(share.name for share in found.shares) else ()
    by_share = tuple(Row((one.name or "(none)", one.waiting, one.weight)) for one in named)
    return Table((name("SHARE"), Column("wait"), Column("weight")), by_share)


def _mean(latency: Latency) -> Age | None:
    count = sum(latency.counts)
    return Age(latency.seconds / count) if count else None


async def job(place: Place, seen: Seen) -> Screen:
    """How it failed, where its time went, why it has its reward, and its program."""
    explained = await explain_job(seen.reader, place.name)
    if explained is None:
        return _absent(place, "Redis has forgotten this job.")
    found, why = explained
    gate, worker = found["gate"], found["worker_name"]
    first = [
        ("status", " as ".join(filter(None, (found["status"], found["outcome"])))),
        ("its place", found.get("place")), ("why it waits", found.get("waits")),
        ("time", _times(found["timeline"])),
        ("worker", worker, Place("worker", worker)), ("gate", gate, Place("gate", gate)),
        ("queue", found["origin"], Place("queue", found["origin"])),
    ]  # fmt: skip
    blocks = (_facts(first), *_error(found), *_why(why), *_runs(found), *_texts(found))
    return Screen(f"job {place.name}", blocks, about=place)


async def explained(place: Place, seen: Seen) -> Screen:
    """An item or a session: why it has its reward."""
    try:
        found = await explain(seen.reader, place.name)
    except NothingFound as nothing:
        return _absent(place, f"{nothing}.")
    blocks = [block for one in found for block in _why(one)]
    return Screen(f"{place.kind} {place.name}", tuple(blocks), about=place)


def _why(one: Explained) -> Iterable[Block]:
    """The sentence, and the facts behind it; some can be opened."""
    yield Notes((Row((f"Why: {one.sentence}",), style=one.look or "well"),), most=4)
    yield Table(
        (name("WHY"), text("")),
        tuple(
            Row((fact.what, fact.said),
                Place(fact.kind, fact.name, fact.where) if fact.kind else None,
                fact.look if fact.look != "well" else "")
            for fact in one.facts
        ),
    )  # fmt: skip


def _times(parts: list[dict[str, Any]]) -> str:
    """The parts of a job's time, in order."""
    return ", ".join(
        f"{figure(Age(one['seconds']))} {_PARTS.get(one['what'], one['what'])}"
        for one in parts
        if one["seconds"] >= _SHORTEST
    )


_SHORTEST = 0.0005
_PARTS = {
    "queued": "in the queue", "permit": "for a permit", "start": "to start and record",
    "run": "run", "backoff": "between tries", "working": "at work",
}  # fmt: skip


def _runs(found: dict[str, Any]) -> list[Block]:
    """The executions of a job, if there was more than one."""
    runs = found["executions"]
    listed = tuple(
        Row((one["worker"], "finished" if one["ok"] else "failed",
             Age(max(0.0, one["ended"] - one["started"])) if one["started"] else None),
            Place("worker", one["worker"]))
        for one in runs
    )  # fmt: skip
    table = Table((name("RUNS, THE LATEST FIRST"), text("ended"), Column("took")), listed)
    return [table] if len(runs) > 1 else []


def _error(found: dict[str, Any]) -> list[Text]:
    return [_text("TRACEBACK", found["error"], "bad")] if found["error"] else []


def _texts(found: dict[str, Any]) -> Iterable[Text]:
    """The texts of a job: what it printed, its program, its result and its arguments."""
    result, call = found["result"], found["call"]
    printed = dict[str, str]()
    if isinstance(result, dict):
        printed = {what: result[what] for what in _PRINTED if isinstance(result.get(what), str)}
        result = {what: value for what, value in result.items() if what not in printed}
    yield from (
        _text(what.upper().replace("_", " "), said) for what, said in printed.items() if said
    )
    if "code" in call:
        yield _text("PROGRAM", call["code"])
    if result is not None:
        yield _text("RESULT", _json(result))
    yield _text("CALL", _json({what: one for what, one in call.items() if what != "code" and one}))


_PRINTED = ("error_reason", "stdout", "stderr", "compile_stdout", "compile_stderr")


async def worker(place: Place, seen: Seen) -> Screen:
    """Show what a worker runs now, and what it ended."""
    found = [one for one in seen.workers if one.name == place.name]
    if not found:
        return _absent(place, "This worker has left, or was never here.")
    client, now = seen.reader.client, seen.fleet.at
    (one,) = await with_their_jobs(client, found)
    running, ended = await jobs_of_worker(client, one)
    bad = ", ".join(f"{count} {what}" for what, count in one.programs.items() if count)
    facts = [
        ("state", one.state), ("host", f"{one.host}:{one.pid}"),
        ("gate", one.gate, Place("gate", one.gate)),
        ("last heartbeat", Age(one.silent)), ("age", Age(now - one.born) if one.born else None),
        ("run", f"{one.running} of {one.room}" if one.room else one.running),
        ("finished", one.finished), ("bad programs", bad),
        ("failed", one.failed), ("cannot reach", " ".join(one.unreachable)),
        *(("queue", queue, Place("queue", queue)) for queue in one.queues[:_SHOWN_JOBS]),
    ]  # fmt: skip
    tables = [
        _headed(rows.jobs(running, now), "RUNNING JOB"),
        _headed(rows.jobs(ended, now), "ENDED JOB"),
    ]
    return Screen(f"worker {one.name}", (_facts(facts), *(one for one in tables if one.rows)))


async def gate(place: Place, seen: Seen) -> Screen:
    """The screen of a gate: who holds its permits, who waits, and how its limit moved."""
    status = await seen.reader.gate_status(place.name)
    if status is None:
        return _absent(place, "There is no such gate.")
    now = await seen.reader.now()
    holders = tuple(
        Row((lease.id, lease.process, Age(lease.held), Age(max(0.0, lease.expires_in))),
            job_of(lease.id))
        for lease in status.leases
    )  # fmt: skip
    line = tuple(
        Row((one.id, one.process, one.lane, Age(one.waited), one.waits))
        for one in await line_of(seen.reader.client, status, now, seen.workers)
    )
    moved = tuple(
        Row((Age(now - one.at), one.before, one.after, one.why))
        for one in await steps(seen.reader.client, place.name)
    )
    facts = [
        ("state", state_of(status)), ("limit", status.limit), ("rate", status.rate),
        ("burst", status.burst), ("in flight", status.in_flight), ("cost", status.cost),
        ("wait", status.waiting), ("granted", status.granted), ("given back", status.released),
        ("leases that expired", status.expired),
        ("gave up waiting", status.timeouts + status.cancelled),
    ]  # fmt: skip
    tables = [
        Table((name("HOLDER"), name("process"), Column("held"), Column("lease ends in")), holders,
              total=status.in_flight),
        Table((name("IN LINE"), name("process"), Column("lane"), Column("has waited"), text("why")),
              line, total=status.waiting),
        Table((Column("LIMIT MOVED"), Column("from"), Column("to"), text("why")), moved),
    ]  # fmt: skip
    shown = (one for one in tables if one.rows)
    why = line_says(status, seen.workers)
    notes = (Notes((Row((f"{why}.",), style="warn"),), most=4),) if why else ()
    return Screen(f"gate {place.name}", (*notes, _facts(facts), *shown), about=status)


async def group(place: Place, seen: Seen) -> Screen:
    """The screen of a group: its items."""
    instance, _, number = place.name.rpartition(":")
    for buffer in await seen.reader.open_buffers():
        if buffer.task == place.where:
            items = await buffer.catalog.items(instance, int(number))
            shown = items[:_SHOWN_ITEMS]
            said = f"{len(items)} items" if items else "It has no items: it may be gone."
            why = await explain_group(seen.reader, buffer, instance, int(number))
            texts = (_text(f"ITEM {at}", _json(item)) for at, item in enumerate(shown, 1))
            facts = _facts([("task", place.where), ("round", int(number)), ("items", said)])
            blocks = (facts, *(_why(why) if why else ()), *texts)
            return Screen(f"group {instance}", blocks, about=place)
    return _absent(place, "There is no such task in this run.")


async def sandbox(place: Place, seen: Seen) -> Screen:
    """The screen of a sandbox: whose it is, and why it does not end."""
    for box in await seen.reader.sandboxes(place.where):
        if box.name == place.name:
            now = await seen.reader.now()
            facts = [
                ("state", box.state), ("run", box.run), ("provider", box.provider),
                ("its id there", box.id), ("session", box.session), ("owner", box.owner),
                ("age", Age(now - box.since)), ("tries to end it", box.tries or None),
                ("why it waits", box.waits), ("trouble", box.trouble),
            ]  # fmt: skip
            return Screen(f"sandbox {box.name}", (_facts(facts),), about=box)
    return _absent(place, "This sandbox has ended, or is not among the 2,000 of its run.")


def _facts(found: Iterable[tuple[Any, ...]]) -> Table:
    """Two columns; those that can be opened are rows with an address."""
    return Table(
        (name(""), text("")),
        tuple(
            Row((what, value), where[0] if where else None)
            for what, value, *where in found if value not in (None, "")
        ),
    )  # fmt: skip


def _headed(table: Table, heading: str) -> Table:
    return replace(table, columns=(replace(table.columns[0], heading=heading), *table.columns[1:]))


def _text(heading: str, said: str, style: str = "") -> Text:
    cut = f"\n[{len(said) - _MOST:,} more characters]" if len(said) > _MOST else ""
    return Text(heading, said[:_MOST].rstrip("\n") + cut, style)


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False, default=str)


def _absent(place: Place, sentence: str) -> Screen:
    return Screen(f"{place.kind} {place.name}", (Notes((Row((sentence,), style="warn"),)),))


DETAILS: dict[str, Callable[[Place, Seen], Awaitable[Screen]]] = {
    "queue": queue,
    "job": job,
    "worker": worker,
    "gate": gate,
    "group": group,
    "item": explained,
    "sandbox": sandbox,
    "session": explained,
}


def job_of(permit: str) -> Place | None:
    """A worker's permit is called after its job and execution; others have names of their own."""
    named = re.fullmatch(r"(.+):[0-9]{10,}", permit)
    return Place("job", named[1]) if named else None

"""A row of a queue, a gate, a job, a worker, a group or a sandbox is the same in every table."""

from collections.abc import Iterable, Mapping

from limiter import GateStatus
from penstock.fleet import Fleet, Group, Job, Queue, Registry, Sandbox, Task, Worker
from penstock.fleet.buffers import bias
from penstock.fleet.gate_texts import in_flight_of, limit_of, shares_of, state_of
from penstock.top.model import Age, Column, Place, Row, Table, name, text
from worker.outcomes import PROGRAM_OUTCOMES

_STOPPED = ("suspended", "paused", "held back")
_FINISHED, *_BAD, _DATA, _MASKED = PROGRAM_OUTCOMES
_QUEUE = (name("QUEUE"), Column("wait"), Column("run"), Column("workers"), Column("oldest"))
_ENDS = (Column("masked"), Column("failed"), text("  "))
GATES = (
    name("GATE"), Column("in flight"), Column("limit"), Column("waiting"), Column("oldest"),
    Column("granted"), text("  "),
)  # fmt: skip
JOBS = (
    name("JOB"), name("queue"), text("ended as"), name("worker"), Column("waited"),
    Column("took"), Column("ago"), Column("tries"), text("what it is"),
)  # fmt: skip
WORKERS = (
    name("WORKER"), text("state"), Column("run"), Column("done"), Column("bad"),
    Column("masked"), Column("failed"), Column("since"), name("job"), name("queues"),
)  # fmt: skip
GROUPS = (
    name("GROUP"), name("task"), Column("round"), text("state"), text("ended by"),
    Column("items"), Column("reward"), Column("version"), Column("age"), text("reason"),
)  # fmt: skip
SANDBOXES = (
    name("SANDBOX"), name("run"), text("state"), Column("age"), name("session"),
    name("owner"), text("why it waits, or does not end"),
)  # fmt: skip


def queues(found: Iterable[Queue], whole: str = "", *, by_outcome: bool = False) -> Table:
    """The rows of queues, with the programs that did not end well in one figure or in one for each
    outcome."""
    outcomes = tuple(Column(word) for word in (*_BAD, _DATA)) if by_outcome else (Column("bad"),)
    rows = tuple(_queue(one, by_outcome=by_outcome) for one in found)
    return Table((*_QUEUE, *outcomes, *_ENDS), rows, whole)


def _queue(queue: Queue, *, by_outcome: bool) -> Row:
    bad = [queue.programs.get(word, 0) for word in _BAD]
    counts = [*bad, queue.programs.get(_DATA, 0)] if by_outcome else [sum(bad)]
    masked, failed = queue.programs.get(_MASKED, 0), queue.counters.get("failed", 0)
    return Row(
        (queue.name, queue.depth, queue.running, queue.workers,
         Age(queue.oldest) if queue.depth else None, *counts, masked, failed, queue.verdict),
        Place("queue", queue.name), look_of(queue), queue,
    )  # fmt: skip


def look_of(queue: Queue) -> str:
    """How a queue's line looks."""
    if queue.verdict == "no workers":
        return "bad"
    return "warn" if queue.paused or (queue.verdict in _STOPPED and queue.depth) else ""


def gates(found: Iterable[GateStatus], whole: str = "") -> Table:
    return Table(GATES, tuple(_gate(one) for one in found), whole)


def _gate(gate: GateStatus) -> Row:
    state = state_of(gate)
    stopped = gate.paused or (gate.waiting and not state.startswith("open"))
    shares = shares_of(gate)
    return Row(
        (gate.name, in_flight_of(gate) if gate.cost > gate.in_flight else gate.in_flight,
         gate.limit if limit_of(gate) == str(gate.limit) else limit_of(gate),
         f"{gate.waiting}{shares}" if shares else gate.waiting,
         Age(gate.oldest_wait) if gate.waiting else None, gate.granted, state),
        Place("gate", gate.name), "warn" if stopped else "", gate,
    )  # fmt: skip


def jobs(found: Iterable[Job], now: float, whole: str = "", total: int = 0) -> Table:
    return Table(JOBS, tuple(_job(one, now) for one in found), whole, total)


def _job(job: Job, now: float) -> Row:
    since = job.ended or job.started or job.enqueued
    ended = job.outcome if job.status == "finished" and job.outcome else job.status
    waited = job.waited if job.started else now - job.enqueued if job.enqueued else None
    took = job.took if job.ended else now - job.started if job.started else None
    style = "bad" if ended == "failed" else "warn" if ended in (*_BAD, _MASKED) else ""
    return Row(
        (job.id, job.queue, ended, job.worker, _age(waited), _age(took),
         _age(now - since if since else None), job.attempts, job.program or job.description),
        Place("job", job.id), style,
    )  # fmt: skip


def workers(found: Iterable[Worker], now: float, whole: str = "", total: int = 0) -> Table:
    return Table(WORKERS, tuple(_worker(one, now) for one in found), whole, total)


def _worker(worker: Worker, now: float) -> Row:
    dead = worker.state == "dead"
    since = now - worker.job_since if worker.job and worker.job_since else None
    return Row(
        (worker.name, worker.state, worker.running, worker.finished,
         sum(worker.programs.get(word, 0) for word in _BAD), worker.masked, worker.failed,
         Age(worker.silent) if dead else _age(since), worker.job, ",".join(worker.queues)),
        Place("worker", worker.name), {"dead": "bad", "suspended": "warn"}.get(worker.state, ""),
    )  # fmt: skip


def groups(found: Iterable[Group], now: float, total: int = 0) -> Table:
    return Table(GROUPS, tuple(_group(one, now) for one in found), "", total)


def _group(group: Group, now: float) -> Row:
    return Row(
        (str(group.instance_id), group.task, group.round, group.state, group.why, group.items,
         None if group.reward is None else float(group.reward), group.version,
         _age(now - group.since if group.since else None), group.reason),
        Place("group", f"{group.instance_id}:{group.round}", group.task),
        "bad" if group.state == "quarantined" else "warn" if group.why == "timeout" else "",
    )  # fmt: skip


def tasks(found: Iterable[Task]) -> Table:
    states = ("open", "ready", "leased", "delivered", "quarantined")
    columns = (name("GROUPS"), Column("open"), Column("ready"), Column("leased"), Column("done"),
               Column("timed out"), Column("quarantined"), Column("reward"))  # fmt: skip
    rows = tuple(
        Row((one.name, *(one.groups.get(state, 0) for state in states[:4]),
             one.counters.get("expired", 0), one.groups.get("quarantined", 0), one.mean_reward),
            Place("groups", where=one.name, state="ready"),
            "bad" if one.groups.get("quarantined") else "")
        for one in found
    )  # fmt: skip
    return Table(columns, rows)


def versions(found: Iterable[Task]) -> Table:
    columns = (name("VERSIONS"), Column("now"), Column("taken"), text("under way by age"),
               text("ready by age"), Column("slots"), Column("asks"), text("dropped"),
               text("waits for"), text("why asks wait"))  # fmt: skip
    rows = []
    for task in found:
        if now := task.versions:
            most = next((f", most: {one} {n}" for one, n in now.dropped.items()), "")
            dropped = f"{now.dropped_share:.0%}{most}" if now.dropped_by else ""
            holders = ", ".join(one.instance_id or one.slot for one in now.waits_for)
            rows.append(Row(
                (task.name, now.version, now.taken, _by_age(now.outstanding), _by_age(now.ready),
                 now.slots, now.waiting, dropped, holders, now.held_by),
                Place("groups", where=task.name, state="open"),
                "warn" if bias(task.generation_seconds) else "",
            ))  # fmt: skip
    return Table(columns, tuple(rows))


def _by_age(counts: Mapping[int, int]) -> str:
    """The counts by age, `2: 5, 0: 8`, the oldest first."""
    return ", ".join(f"{age}: {n}" for age, n in sorted(counts.items(), reverse=True) if n)


def registries(found: Iterable[Registry]) -> Table:
    columns = (name("SANDBOXES"), Column("starting"), Column("ready"), Column("ending"),
               Column("failing"), Column("opened"), Column("reaped"), text("  "))  # fmt: skip
    return Table(columns, tuple(_registry(one) for one in found))


def _registry(one: Registry) -> Row:
    new = sum(one.states.get(state, 0) for state in ("WAITING", "CREATING", "STARTING"))
    ready, ending = one.states.get("READY", 0), one.states.get("TERMINATING", 0)
    return Row(
        (one.run, new, ready, ending, one.failing, one.counters.get("opened", 0),
         one.counters.get("reaped", 0), "" if one.reaper else "no reaper"),
        Place("sandboxes", where=one.run),
        "bad" if one.failing else "warn" if one.states and not one.reaper else "", one,
    )  # fmt: skip


def sandboxes(found: Iterable[Sandbox], now: float) -> Table:
    rows = tuple(
        Row((box.name, box.run, box.state, _age(now - box.since), box.session, box.owner,
             box.trouble or box.waits), Place("sandbox", box.name, box.run),
            "bad" if box.failing else "", box)
        for box in found
    )  # fmt: skip
    return Table(SANDBOXES, rows)


def alarms(fleet: Fleet) -> tuple[Row, ...]:
    """The worst first, each with where to look."""
    return tuple(
        Row((f"! {one.said}",), _where(one.kind, one.name), one.level) for one in fleet.alarms
    )


def _where(kind: str, named: str) -> Place | None:
    match kind:
        case "redis" | "monitor":
            return None
        case "task":
            return Place("groups", where=named, state="quarantined")
        case "run":
            return Place("sandboxes", where=named)
        case "worker" if not named:
            return Place("workers")
    return Place(kind, named)


def _age(seconds: float | None) -> Age | None:
    return None if seconds is None else Age(max(0.0, seconds))

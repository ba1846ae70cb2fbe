"""A verdict says why a queue grows: nobody works on it, a gate holds it back, or there is much to
do."""

import re
import shlex
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from limiter import GateStatus, LeaseStatus
from penstock.fleet.model import Queue, Verdict, Worker
from worker.errors import start_a_worker


class Standing(NamedTuple):
    """The standing of a queue: what happens to it, why nothing does, and what lets its jobs in."""

    verdict: Verdict
    reason: str = ""
    remedy: str = ""
    cause: str = ""


class HeldBack(NamedTuple):
    """How a gate holds work back, what lets it in, and the judge's name for it."""

    reason: str
    remedy: str
    cause: str = "held_back"


def judged(
    queues: Iterable[Queue],
    workers: Sequence[Worker],
    gates: Sequence[GateStatus],
    *,
    suspended: bool,
) -> tuple[Queue, ...]:
    """The queues, each with how many work on it, and what happens to it."""
    by_name = {gate.name: gate for gate in gates}
    return tuple(_judged(queue, workers, by_name, suspended=suspended) for queue in queues)


def _judged(
    queue: Queue, workers: Sequence[Worker], gates: dict[str, GateStatus], *, suspended: bool
) -> Queue:
    mine = [one for one in workers if queue.name in one.queues and one.state != "dead"]
    stands = _standing(queue, mine, gates, workers, suspended=suspended)
    return replace(queue, workers=len(mine), **stands._asdict(), ungated=ungated(queue.name, mine))


def ungated(queue: str, workers: Iterable[Worker]) -> str:
    """How some workers of a queue pass the gate of the others by; empty if none does."""
    named = Counter(
        worker.gate
        for worker in workers
        if queue in worker.queues and worker.concurrent and worker.state != "dead"
    )
    free = named.pop("", 0)
    if not free or not named:
        return ""
    gated = [f"{many} {_takes(many)} permits of {name!r}" for name, many in sorted(named.items())]
    return (
        f"workers of queue {queue!r} differ: {', '.join(gated)}, {free} {_takes(free)} none, so no "
        f"limit holds; start all with --gate {shlex.quote(min(named))}"
    )


def gate_of(queue: str, workers: Iterable[Worker], gates: Container[str]) -> str:
    """The gate for one more worker of a queue: the one that the others have, or those that died
    had. Else the one of its name, if there is one."""
    theirs = {worker.gate for worker in workers if queue in worker.queues} - {""}
    return min(theirs, default=queue if queue in gates else "")


def _takes(many: int) -> str:
    return "takes" if many == 1 else "take"


def _standing(
    queue: Queue,
    workers: list[Worker],
    gates: dict[str, GateStatus],
    everyone: Sequence[Worker],
    *,
    suspended: bool,
) -> Standing:
    resume = f"`penstock queues resume {shlex.quote(queue.name)}` ends"
    if not workers:
        paused = queue.paused and queue.breaker == "closed"
        if queue.depth:
            reason = f"no worker listens on queue {queue.name!r}" + ", which is paused" * paused
            start = f"start one: {start_a_worker(queue.name, gate_of(queue.name, everyone, gates))}"
            remedy = start + f"; and {resume} the pause" * paused
            return Standing("no workers", reason, remedy, "no_worker")
        if paused:
            reason = f"queue {queue.name!r} is paused, and no worker listens"
            return Standing("paused", reason, f"{resume} the pause", "queue_paused")
        return Standing("idle", "no worker listens")
    if suspended:
        reason = "all workers are suspended"
        return Standing("suspended", reason, "`rq resume` ends that", "suspended")
    if queue.breaker != "closed":
        reason = f"queue {queue.name!r} is paused by its breaker: {_tripped(queue)}"
        return Standing("paused", reason, REPAIR, "breaker_open")
    holds = _holds(workers, gates, everyone)
    if queue.paused:
        also = [held for held in holds if held.cause == "gate_paused"]
        reason = ", ".join([f"queue {queue.name!r} is paused", *(held.reason for held in also)])
        remedy = "; ".join([f"{resume} that", *(held.remedy for held in also)])
        return Standing("paused", reason, remedy, "queue_paused")
    if not queue.depth:
        return Standing("working" if queue.running else "idle")
    if holds:
        reason = f"queue {queue.name!r} is held back: {'; '.join(held.reason for held in holds)}"
        remedy = "; ".join(dict.fromkeys(held.remedy for held in holds))
        return Standing("held back", reason, remedy, holds[0].cause)
    if all(worker.ending for worker in workers):
        many = f"all {len(workers)} workers" if len(workers) > 1 else "the only worker"
        reason = f"{many} of queue {queue.name!r} takes no new job, and ends when its jobs have"
        return Standing(
            "workers are full", reason.replace("takes", "take") if len(workers) > 1 else reason,
            f"start one: {start_a_worker(queue.name, gate_of(queue.name, workers, gates))}",
            "workers_ending",
        )  # fmt: skip
    if all(worker.state == "busy" for worker in workers):
        all_busy = f"all {len(workers)} workers are busy"
        busy = all_busy if len(workers) > 1 else "the only worker is busy"
        return Standing("workers are full", busy, "start more, or raise their --concurrency")
    return Standing("working")


def _holds(
    workers: Sequence[Worker], gates: dict[str, GateStatus], everyone: Sequence[Worker]
) -> list[HeldBack]:
    """How the gates of these workers hold them back; empty if one of them could take a job."""
    named = sorted({worker.gate for worker in workers})
    holds = [
        held
        for name in named
        if name in gates and (held := holding(gates[name], dead_permits(gates[name], everyone)))
    ]
    return holds if len(holds) == len(named) else []


def dead_permits(gate: GateStatus, workers: Sequence[Worker]) -> list[LeaseStatus]:
    """The permits of a gate whose workers are gone. A worker's permit is called after its job and
    its execution."""
    living = {one.name for one in workers if one.state != "dead"}
    return [
        lease
        for lease in gate.leases
        if re.fullmatch(r".+:[0-9]{10,}", lease.id) and lease.process not in living
    ]


REPAIR = "repair the sandbox that its workers name; it then closes by itself"


def _tripped(one: Queue | GateStatus) -> str:
    """The count of a breaker, and what happens next."""
    return f"{one.paused_why or 'too many programs had no outcome'}; it tries a few by itself"


def holding(gate: GateStatus, of_the_dead: Sequence[LeaseStatus] = ()) -> HeldBack | None:
    """How a gate holds work back now, and what lets it in; None if it does not."""
    name, named = shlex.quote(gate.name), f"gate {gate.name!r}"
    change = f"wait, or raise it: penstock limits set {name}"
    holders = f"see who holds them: penstock limits permits {name}; then {change}"
    if gate.breaker != "closed":
        return HeldBack(f"{named} is paused by a breaker: {_tripped(gate)}", REPAIR, "breaker_open")
    if gate.paused:
        resume = f"`penstock limits resume {name}` ends that"
        return HeldBack(f"{named} is paused", resume, "gate_paused")
    if gate.adaptive is not None and gate.adaptive.held > 0:
        return HeldBack(
            f"{named} is held for {gate.adaptive.held:.0f} s, as its service asked", "wait"
        )
    if gate.limit is not None and gate.cost >= gate.limit:
        what = "permits in flight" if gate.cost == gate.in_flight else "in use"
        text = f"{named} is full, {gate.cost} of {gate.limit} {what}"
        if of_the_dead:
            last = max(lease.expires_in for lease in of_the_dead)
            return HeldBack(
                f"{text}, {len(of_the_dead)} of them held by dead workers for up to {last:.0f} s",
                f"wait, or penstock limits revoke {name} {of_the_dead[0].id}",
                "gate_held_by_the_dead",
            )
        return HeldBack(text, f"{holders} --gate-limit N")
    for amount, stands in gate.amounts.items():
        if stands.tokens < 1 and gate.waiting:
            text = f"{named} grants {stands.rate:g} {amount} a second"
            return HeldBack(text, f"{change} --amount {amount}=N")
    if gate.tokens is not None and gate.tokens < 1 and gate.waiting:
        return HeldBack(f"{named} grants {gate.rate:g} a second", f"{change} --rate N")
    return None

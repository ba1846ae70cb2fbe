"""A row or a screen offers changes, each by a key. Each is asked about before it is made, and is
made by the same code as from the monitor's page."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from limiter import GateStatus
from penstock.changes import Changed, Changes
from penstock.fleet import Queue, Registry
from penstock.top.model import Place

Make = Callable[[Changes, str], Awaitable[Changed]]


@dataclass(frozen=True)
class Offer:
    """`y` makes it. One with an `answer` wants a line, which begins as that; Enter makes it."""

    key: str
    label: str
    question: str
    make: Make
    answer: str | None = None


def offers(place: Place | None, about: Any, marked: Sequence[str] = ()) -> list[Offer]:
    """The offers for a row's place and what it is about; for all marked jobs, if there are any."""
    if marked:
        return _of_jobs(list(marked), f"{len(marked)} marked jobs")
    match about:
        case Queue():
            return [_pause("queue", about.name, about.paused)]
        case GateStatus():
            return _of_gate(about)
        case Registry():
            return [_reap(about.run)]
    match place:
        case Place(kind="job", name=name):
            return _of_jobs([name], f"job {name}")
        case Place(kind="group", name=name, where=task):
            return [_requeue(task, name)]
        case Place(kind="sandbox", name=name, where=run):
            return [_end(run, name)]
    return []


def _of_jobs(ids: list[str], called: str) -> list[Offer]:
    def change(verb: str) -> Make:
        return lambda changes, _: changes.jobs(verb, ids)

    return [
        Offer("r", "retry", f"Run {called} again?", change("retry")),
        Offer("x", "cancel", f"Cancel {called}? A running one is stopped.", change("cancel")),
        Offer("D", "delete", f"Delete {called}, with program and result?", change("delete")),
    ]


def _pause(kind: str, name: str, paused: bool) -> Offer:
    verb = "resume" if paused else "pause"

    def make(changes: Changes, _: str) -> Awaitable[Changed]:
        changed = changes.queue if kind == "queue" else changes.gate
        return changed(name, paused=not paused)

    return Offer("p", verb, f"{verb.title()} {kind} {name}?", make)


def _of_gate(gate: GateStatus) -> list[Offer]:
    def limit(key: str, label: str, proposed: int) -> Offer:
        question = f"Limit of gate {gate.name}, now {gate.limit}:"
        return Offer(key, label, question, lambda changes, typed: _limit(changes, gate, typed),
                     str(proposed))  # fmt: skip

    found = [_pause("gate", gate.name, gate.paused)]
    if gate.limit is not None:
        found += [
            limit("+", "raise limit", gate.limit * 2),
            limit("-", "lower limit", max(1, gate.limit // 2)),
        ]
    return found


def _limit(changes: Changes, gate: GateStatus, typed: str) -> Awaitable[Changed]:
    if not typed.strip().isdecimal():
        raise ValueError("a limit is a whole number from 1")
    return changes.gate(gate.name, limit=int(typed))


def _requeue(task: str, named: str) -> Offer:
    instance, _, number = named.rpartition(":")
    return Offer(
        "r", "requeue", f"Make group {named} of task {task} ready again?",
        lambda changes, _: changes.requeue_group(task, instance, int(number)),
    )  # fmt: skip


def _end(run: str, name: str) -> Offer:
    return Offer(
        "x", "end", f"End sandbox {name}, even if it is in use?",
        lambda changes, _: changes.end_sandboxes(run, [name], "ended from top"),
    )  # fmt: skip


def _reap(run: str) -> Offer:
    return Offer(
        "x", "reap", f"End the sandboxes of run {run} whose owners are dead?",
        lambda changes, _: changes.reap(run),
    )  # fmt: skip

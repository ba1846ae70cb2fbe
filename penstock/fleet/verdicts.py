"""Why a queue grows: nobody works on it, a gate holds it back, or there is simply much to do."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from limiter import GateStatus
from penstock.fleet.model import Fleet, Queue, Registry, Verdict, Worker
from worker.errors import start_a_worker

BIASED = 1.5  # dropped groups may take so many times as long as delivered ones


def judged(
    queues: Iterable[Queue],
    workers: Sequence[Worker],
    gates: Sequence[GateStatus],
    *,
    suspended: bool,
) -> tuple[Queue, ...]:
    """The queues, each with how many work on it, and what becomes of it."""
    by_name = {gate.name: gate for gate in gates}
    return tuple(_judged(queue, workers, by_name, suspended=suspended) for queue in queues)


def _judged(
    queue: Queue, workers: Sequence[Worker], gates: dict[str, GateStatus], *, suspended: bool
) -> Queue:
    mine = [one for one in workers if queue.name in one.queues and one.state != "dead"]
    verdict, reason = _verdict(queue, mine, gates, suspended=suspended)
    return replace(queue, workers=len(mine), verdict=verdict, reason=reason)


def _verdict(
    queue: Queue, workers: list[Worker], gates: dict[str, GateStatus], *, suspended: bool
) -> tuple[Verdict, str]:
    if not workers:
        if queue.depth:
            return "no workers", f"no worker listens on queue {queue.name!r}"
        return "idle", "no worker listens"
    if suspended:
        return "suspended", "all workers are suspended; `rq resume` ends that"
    if not queue.depth:
        return ("working", "") if queue.running else ("idle", "")
    named = {worker.gate for worker in workers if worker.gate}
    holds = [held for name in sorted(named) if name in gates and (held := holding(gates[name]))]
    if holds and len(holds) == len(named) and all(worker.gate for worker in workers):
        return "held back", f"queue {queue.name!r} is held back: {'; '.join(holds)}"
    if all(worker.state == "busy" for worker in workers):
        return "workers are full", f"all {len(workers)} workers are busy"
    return "working", ""


def holding(gate: GateStatus) -> str:
    """How a gate holds work back now; empty where it does not."""
    if gate.paused:
        return f"gate {gate.name!r} is paused"
    if gate.limit is not None and gate.in_flight >= gate.limit:
        return f"gate {gate.name!r} is full, {gate.in_flight} of {gate.limit} permits in flight"
    if gate.tokens is not None and gate.tokens < 1 and gate.waiting:
        return f"gate {gate.name!r} grants {gate.rate:g} a second"
    return ""


def notes(fleet: Fleet) -> tuple[str, ...]:
    """What a person should know first."""
    queues = [note for queue in fleet.queues if (note := _note(queue))]
    sandboxes = [note for registry in fleet.registries for note in _of_sandboxes(registry, fleet)]
    return (*queues, *_of_gates(fleet, queues), *_of_workers(fleet), *_of_tasks(fleet), *sandboxes)


def _of_gates(fleet: Fleet, of_queues: list[str]) -> list[str]:
    """The paused ones; those that a queue's note names already are not told twice."""
    told = " ".join(of_queues)
    return [
        f"gate {gate.name!r} is paused, and {gate.waiting} wait at it"
        for gate in fleet.gates
        if gate.paused and gate.waiting and repr(gate.name) not in told
    ]


def _of_workers(fleet: Fleet) -> list[str]:
    """The silent ones, and the sandboxes that those at work cannot reach."""
    said = []
    if dead := fleet.worker_states.get("dead", 0):
        names = ", ".join(worker.name for worker in fleet.workers if worker.state == "dead")
        said.append(f"{_many(dead, 'worker is', 'workers are')} silent: {names[:80]}")
    # A worker that runs nothing has no way to know that a sandbox is back.
    at_work = [worker for worker in fleet.workers if worker.state != "dead" and worker.running]
    for url, many in Counter(url for worker in at_work for url in worker.unreachable).items():
        said.append(f"{_many(many, 'worker', 'workers')} cannot reach the sandbox {url}")
    return said


def _of_tasks(fleet: Fleet) -> list[str]:
    quarantined = [
        f"task {task.name!r}: {_many(lost, 'group', 'groups')} in quarantine"
        for task in fleet.tasks
        if (lost := task.groups.get("quarantined", 0))
    ]
    failed = [
        f"task {task.name!r}: its rollout failed, and brings no more; the server's log says why"
        for task in fleet.tasks
        if task.rollout == "failed"
    ]
    biased = [
        f"task {task.name!r}: {said}"
        for task in fleet.tasks
        if (said := bias(task.generation_seconds))
    ]
    return quarantined + failed + biased


def bias(seconds: dict[str, float]) -> str:
    """How slow problems are trained on too little: what is discarded or made again took longer
    than what is delivered. Empty where it did not."""
    delivered, dropped = seconds["delivered"], seconds["dropped"]
    if not delivered or dropped <= BIASED * delivered:
        return ""
    return (
        f"discarded groups took {dropped:.3g} s on average, and delivered ones "
        f"{delivered:.3g} s: slow problems are trained on less than their share"
    )


def _of_sandboxes(registry: Registry, fleet: Fleet) -> list[str]:
    """What nobody ends: because it cannot be, or because nobody is there to."""
    said, run = [], registry.run
    if registry.failing:
        why = next((box.trouble for box in fleet.sandboxes if box.failing and box.run == run), "")
        many = _many(registry.failing, "sandbox", "sandboxes")
        said.append(f"run {run!r}: {many} could not be ended, and will be tried again: {why[:120]}")
    if registry.states and not registry.reaper:
        many = _many(sum(registry.states.values()), "sandbox", "sandboxes")
        said.append(f"run {run!r}: {many}, and no reaper watches them; start one: penstock reap")
    return said


def _note(queue: Queue) -> str:
    wait = _many(queue.depth, "job waits", "jobs wait")
    if queue.verdict == "no workers":
        return f"{queue.reason}, and {wait}; start one: {start_a_worker(queue.name)}"
    return f"{queue.reason}; {wait}" if queue.verdict in ("suspended", "held back") else ""


def _many(count: int, one: str, more: str) -> str:
    return f"{count} {one if count == 1 else more}"

"""Why a queue grows: nobody works on it, a gate holds it back, or there is simply much to do."""

import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from limiter import GateStatus
from penstock.fleet.model import Alarm, Fleet, Queue, Registry, Verdict, Worker
from worker.errors import start_a_worker

_STOPPED = ("suspended", "paused", "held back")
BIASED = 1.5  # dropped groups may take so many times as long as delivered ones


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
    verdict, reason = _verdict(queue, mine, gates, suspended=suspended)
    return replace(
        queue, workers=len(mine), verdict=verdict, reason=reason, ungated=ungated(queue.name, mine)
    )


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


def _takes(many: int) -> str:
    return "takes" if many == 1 else "take"


def _verdict(
    queue: Queue, workers: list[Worker], gates: dict[str, GateStatus], *, suspended: bool
) -> tuple[Verdict, str]:
    if not workers:
        if queue.depth:
            return "no workers", f"no worker listens on queue {queue.name!r}"
        return "idle", "no worker listens"
    if suspended:
        return "suspended", "all workers are suspended; `rq resume` ends that"
    if queue.paused:
        resume = f"penstock queues resume {shlex.quote(queue.name)}"
        return "paused", f"queue {queue.name!r} is paused; `{resume}` ends that"
    if not queue.depth:
        return ("working", "") if queue.running else ("idle", "")
    named = {worker.gate for worker in workers if worker.gate}
    holds = [held for name in sorted(named) if name in gates and (held := holding(gates[name]))]
    if holds and len(holds) == len(named) and all(worker.gate for worker in workers):
        return "held back", f"queue {queue.name!r} is held back: {'; '.join(holds)}"
    if all(worker.state == "busy" for worker in workers):
        return "workers are full", f"all {len(workers)} workers are busy"
    return "working", ""


def limit_of(gate: GateStatus) -> str:
    """The gate's limit; of a gate that finds it, with the bound above."""
    bounds = gate.adaptive
    if gate.limit is None:
        return ""
    adapts = bounds is not None and bounds.adapts == "limit"
    return f"{gate.limit}/{bounds.max:g}" if bounds and adapts else f"{gate.limit}"


def rate_of(gate: GateStatus) -> str:
    """The gate's rate, and what else it earns per second."""
    bounds = gate.adaptive
    shown = "" if gate.rate is None else f"{gate.rate:.4g}"
    if bounds and bounds.adapts == "rate":
        shown += f"/{bounds.max:g}"
    others = [f"{amount.rate:.4g} {name}" for name, amount in gate.amounts.items()]
    return ", ".join([shown, *others] if shown else others)


def in_flight_of(gate: GateStatus) -> str:
    """The gate's permits in flight, and what they cost if that is more than one each."""
    return f"{gate.in_flight}" + (f" ({gate.cost})" if gate.cost > gate.in_flight else "")


def shares_of(gate: GateStatus) -> str:
    """A text behind the waiters: how many shares wait, if there are several."""
    shares = gate.shares.waiting if gate.shares else 0
    return f" ({shares} shares)" if shares > 1 else ""


def state_of(gate: GateStatus) -> str:
    """Open, full, held or paused; of a gate that adapts with its latest change."""
    full = gate.limit is not None and gate.cost >= gate.limit
    bounds = gate.adaptive
    held = bounds is not None and bounds.held > 0
    state = "paused" if gate.paused else "held" if held else "full" if full else "open"
    if bounds is None or bounds.latest is None:
        return state
    latest = bounds.latest
    return f"{state} {'v' if latest.after < latest.before else '^'} {latest.ago:.0f}s {latest.why}"


def holding(gate: GateStatus) -> str:
    """How a gate holds work back now; empty if it does not."""
    if gate.paused:
        return f"gate {gate.name!r} is paused"
    if gate.adaptive is not None and gate.adaptive.held > 0:
        return f"gate {gate.name!r} is held for {gate.adaptive.held:.0f} s, as its service asked"
    if gate.limit is not None and gate.cost >= gate.limit:
        what = "permits in flight" if gate.cost == gate.in_flight else "in use"
        return f"gate {gate.name!r} is full, {gate.cost} of {gate.limit} {what}"
    for name, amount in gate.amounts.items():
        if amount.tokens < 1 and gate.waiting:
            return f"gate {gate.name!r} grants {amount.rate:g} {name} a second"
    if gate.tokens is not None and gate.tokens < 1 and gate.waiting:
        return f"gate {gate.name!r} grants {gate.rate:g} a second"
    return ""


def alarms(fleet: Fleet) -> tuple[Alarm, ...]:
    """What a person should know first."""
    queues = [note for queue in fleet.queues if (note := _note(queue))]
    queues += [Alarm("warn", one.ungated, "queue", one.name) for one in fleet.queues if one.ungated]
    sandboxes = [note for registry in fleet.registries for note in _of_sandboxes(registry, fleet)]
    return (*queues, *_of_gates(fleet, queues), *_of_workers(fleet), *_of_tasks(fleet), *sandboxes)


def _of_gates(fleet: Fleet, of_queues: list[Alarm]) -> list[Alarm]:
    """The paused ones; those that a queue's note names already are not told twice."""
    told = " ".join(alarm.text for alarm in of_queues)
    return [
        Alarm(
            "warn", f"gate {gate.name!r} is paused, and {gate.waiting} wait at it",
            "gate", gate.name,
        )
        for gate in fleet.gates
        if gate.paused and gate.waiting and repr(gate.name) not in told
    ]  # fmt: skip


def _of_workers(fleet: Fleet) -> list[Alarm]:
    """The silent ones, and the sandboxes that those at work cannot reach."""
    said = []
    if dead := fleet.worker_states.get("dead", 0):
        named = [worker.name for worker in fleet.workers if worker.state == "dead"]
        text = f"{_many(dead, 'worker is', 'workers are')} silent: {', '.join(named)[:80]}"
        said.append(Alarm("bad", text, "worker", named[0] if dead == 1 and named else ""))
    # A worker that runs nothing has no way to know that a sandbox is back.
    at_work = [worker for worker in fleet.workers if worker.state != "dead" and worker.running]
    for url, many in Counter(url for worker in at_work for url in worker.unreachable).items():
        text = f"{_many(many, 'worker', 'workers')} cannot reach the sandbox {url}"
        said.append(Alarm("bad", text, "worker", ""))
    return said


def _of_tasks(fleet: Fleet) -> list[Alarm]:
    quarantined = [
        Alarm("warn", f"task {task.name!r}: {_many(lost, 'group', 'groups')} in quarantine",
              "task", task.name)
        for task in fleet.tasks
        if (lost := task.groups.get("quarantined", 0))
    ]  # fmt: skip
    failed = [
        Alarm(
            "bad",
            f"task {task.name!r}: its rollout failed, and brings no more; the server's log says"
            " why", "task", task.name,
        )
        for task in fleet.tasks
        if task.rollout == "failed"
    ]  # fmt: skip
    biased = [
        Alarm("warn", f"task {task.name!r}: {said}", "task", task.name)
        for task in fleet.tasks
        if (said := bias(task.generation_seconds))
    ]
    return quarantined + failed + biased


def bias(seconds: dict[str, float]) -> str:
    """How slow problems are trained on too little: what is discarded or made again took longer
    than what is delivered. Empty if it did not."""
    delivered, dropped = seconds["delivered"], seconds["dropped"]
    if not delivered or dropped <= BIASED * delivered:
        return ""
    return (
        f"discarded groups took {dropped:.3g} s on average, and delivered ones "
        f"{delivered:.3g} s: slow problems are trained on less than their share"
    )


def _of_sandboxes(registry: Registry, fleet: Fleet) -> list[Alarm]:
    """What nobody ends: because it cannot be, or because nobody is there to."""
    said, run = [], registry.run
    if registry.failing:
        why = next((box.trouble for box in fleet.sandboxes if box.failing and box.run == run), "")
        many = _many(registry.failing, "sandbox", "sandboxes")
        text = f"run {run!r}: {many} could not be ended, and will be tried again: {why[:120]}"
        said.append(Alarm("bad", text, "run", run))
    if registry.states and not registry.reaper:
        many = _many(sum(registry.states.values()), "sandbox", "sandboxes")
        text = f"run {run!r}: {many}, and no reaper watches them; start one: penstock reap"
        said.append(Alarm("warn", text, "run", run))
    return said


def _note(queue: Queue) -> Alarm | None:
    wait = _many(queue.depth, "job waits", "jobs wait")
    if queue.verdict == "no workers":
        text = f"{queue.reason}, and {wait}; start one: {start_a_worker(queue.name)}"
        return Alarm("bad", text, "queue", queue.name)
    if queue.verdict in _STOPPED and queue.depth:
        return Alarm("warn", f"{queue.reason}; {wait}", "queue", queue.name)
    return None


def _many(count: int, one: str, more: str) -> str:
    return f"{count:,} {one if count == 1 else more}"

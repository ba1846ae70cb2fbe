"""The fleet's figures for Prometheus, read from Redis when somebody scrapes."""

import math
from collections.abc import Mapping
from dataclasses import replace

from prometheus_client import Metric

from buffer import metrics
from ground.http import Sheet
from ground.settings import HttpSettings
from limiter import GateStatus
from penstock.fleet.model import Fleet, Queue, Registry
from penstock.fleet.reader import FleetReader
from worker.lifecycle.registry.records import COUNTERS, STATES
from worker.outcomes import LATENCY_STEPS

_KINDS = ("gate", "queue", "run", "task")
_MOST_PROBLEMS = 100  # the worst, of all that are named
WORKER_STATES = ("idle", "busy", "suspended", "dead")
_STEP_TOTALS = {
    "throttled": "Refusals that holders reported.",
    "overloaded": "Timeouts and failures of the service that holders reported.",
    "cuts": "Times that a gate cut its limit.",
    "raises": "Times that a gate raised its limit.",
    "held_seconds": "Seconds for which a gate granted nothing, as its service asked.",
}
_GATE_TOTALS = {
    "granted": "Permits granted.",
    "released": "Permits given back.",
    "expired": "Permits whose lease ended without a renewal, or that were revoked.",
    "timeouts": "Waiters that gave up at their deadline.",
    "cancelled": "Waiters that were cancelled.",
    "dropped": "Waiters whose process died.",
    "readmitted": "Permits that re-registered after Redis had lost them.",
    "lost": "Permits that Redis lost and that had no room when they came back; or revoked ones.",
}
_JOB_OUTCOMES = (
    "claimed", "finished", "masked", "failed", "stopped", "retried", "returned", "requeued",
    "dropped", "put_off",
)  # fmt: skip


async def figures(reader: FleetReader) -> list[Metric]:
    """Everything that is counted in Redis, of all rooms; of a bounded number of names."""
    fleet, buffers = await reader.read(workers=0), await reader.open_buffers()
    chosen = HttpSettings.load()
    names = {
        "gate": [one.name for one in fleet.gates], "queue": [one.name for one in fleet.queues],
        "run": [one.run for one in fleet.registries], "task": [one.task for one in buffers],
    }  # fmt: skip
    shown = {kind: set(chosen.have_figures(of_kind)) for kind, of_kind in names.items()}
    left_out = {kind: len(of_kind) - len(shown[kind]) for kind, of_kind in names.items()}
    bounded = replace(
        fleet,
        gates=tuple(one for one in fleet.gates if one.name in shown["gate"]),
        queues=tuple(one for one in fleet.queues if one.name in shown["queue"]),
        registries=tuple(one for one in fleet.registries if one.run in shown["run"]),
    )
    of_buffers = await metrics.families([one for one in buffers if one.task in shown["task"]])
    return [*families(bounded, left_out), *of_buffers]


def families(fleet: Fleet, left_out: Mapping[str, int] | None = None) -> list[Metric]:
    """The families of one look, less the buffer's, which that package has itself."""
    rest = _rest(fleet)
    for kind in _KINDS:
        rest.gauge("penstock_names_left_out",
                   "Names without figures of their own: see PENSTOCK_METRICS_NAMES.",
                   (left_out or {}).get(kind, 0), kind=kind)  # fmt: skip
    sheets = _problems(fleet), _gates(fleet), _queues(fleet), _sandboxes(fleet), rest
    return [family for sheet in sheets for family in sheet.families()]


def _problems(fleet: Fleet) -> Sheet:
    """The verdict, which alerts follow: of each problem where it is, and never the id of a job."""
    sheet = Sheet("verdict", "level", "kind", "name")
    for labels in dict.fromkeys(
        (one.verdict, one.level, one.kind, "" if one.kind == "job" else one.name)
        for one in fleet.alarms[:_MOST_PROBLEMS]
    ):
        sheet.gauge("penstock_problem", "1 for each thing that `penstock status` names.",
                    1, *labels)  # fmt: skip
    return sheet


def _gates(fleet: Fleet) -> Sheet:
    sheet = Sheet("gate")
    for gate in fleet.gates:
        _enter_gate(sheet, gate)
    return sheet


def _enter_gate(sheet: Sheet, gate: GateStatus) -> None:
    for name, help, value in (
        ("limit", "Permits that may be in flight at once.", gate.limit),
        ("in_flight", "Permits in flight.", gate.in_flight),
        ("cost", "What the permits in flight take of the limit.", gate.cost),
        ("waiting", "Waiters in line.", gate.waiting),
        ("oldest_wait_seconds", "How long the head of the line has waited.", gate.oldest_wait),
        ("rate", "Grants per second that are allowed.", gate.rate),
        ("burst", "Grants that may come at once after a quiet time.", gate.burst),
        ("tokens", "Grants that the rate allows now.", gate.tokens),
        ("paused", "1 if the gate is paused.", int(gate.paused)),
        (
            "breaker_open",
            "1 if a queue's breaker has paused the gate.",
            int(gate.breaker != "closed"),
        ),
    ):
        if value is not None:
            sheet.gauge(f"penstock_gate_{name}", help, value, gate.name)
    for amount, stands in gate.amounts.items():
        for name, help, value in (
            ("amount_rate", "What a gate earns of an amount per second.", stands.rate),
            ("amount_tokens", "What a gate has of an amount now; below 0 it is owed.",
             stands.tokens),
        ):  # fmt: skip
            sheet.gauge(f"penstock_gate_{name}", help, value, gate.name, amount=amount)
    for share in gate.shares.shares if gate.shares else ():
        for name, help, value in (
            ("share_waiting", "Waiters of a share.", share.waiting),
            ("share_weight", "Permits of a share for one of a share with weight 1.", share.weight),
        ):
            sheet.gauge(f"penstock_gate_{name}", help, value, gate.name, share=share.name)
    for name, help in _GATE_TOTALS.items():
        sheet.count(f"penstock_gate_{name}_total", help, getattr(gate, name), gate.name)
    if (steps := gate.adaptive) is not None:
        for name, help, value in (
            ("min", "The lowest limit that an adaptive gate may choose.", steps.min),
            ("max", "The highest limit that an adaptive gate may choose.", steps.max),
            (
                "ceiling",
                "The limit at which an adaptive gate was refused last.",
                steps.ceiling or math.nan,
            ),
            ("adapts", "1 if the gate adapts now, 0 if it is pinned.", int(bool(steps.adapts))),
        ):
            sheet.gauge(f"penstock_gate_{name}", help, value, gate.name)
        for name, help in _STEP_TOTALS.items():
            sheet.count(f"penstock_gate_{name}_total", help, getattr(steps, name), gate.name)


def _queues(fleet: Fleet) -> Sheet:
    sheet = Sheet("queue")
    for queue in fleet.queues:
        _enter_queue(sheet, queue)
    return sheet


def _enter_queue(sheet: Sheet, queue: Queue) -> None:
    for name, help, value in (
        ("depth", "Jobs that wait.", queue.depth),
        ("started", "Jobs that run.", queue.running),
        ("deferred", "Jobs that wait for other jobs.", queue.deferred),
        ("scheduled", "Scheduled jobs that are not due yet.", queue.scheduled),
        ("workers", "Living workers that listen to the queue.", queue.workers),
        ("oldest_seconds", "How long the first job in line has waited.", queue.oldest),
        ("unattended", "1 if jobs wait and no worker listens.",
         int(queue.verdict == "no workers")),
        ("held_back", "1 if jobs wait and a gate holds them back.",
         int(queue.verdict == "held back")),
        ("breaker_open", "1 if the queue's breaker has paused it.",
         int(queue.breaker != "closed")),
    ):  # fmt: skip
        sheet.gauge(f"penstock_queue_{name}", help, value, queue.name)
    for outcome in _JOB_OUTCOMES:
        sheet.count("penstock_queue_jobs_total",
                    "Jobs of concurrent workers, by outcome; masked ones are finished too.",
                    queue.counters.get(outcome, 0), queue.name, outcome=outcome)  # fmt: skip
    for outcome, programs in queue.programs.items():
        sheet.count("penstock_queue_programs_total",
                    "Programs of concurrent workers by how they ended; unknown ones are of older "
                    "workers.",
                    programs, queue.name, outcome=outcome)  # fmt: skip
    sheet.count("penstock_queue_programs_shared_total",
                "Programs whose assertions ran in their own process, which can fool them.",
                queue.shared, queue.name)  # fmt: skip
    for name, help, latency in (
        ("wait", "How long finished jobs had waited for a worker.", queue.waited),
        ("run", "How long finished jobs ran, from their claim to their recorded end.", queue.took),
    ):
        counted = zip(LATENCY_STEPS, latency.counts, strict=True)
        sheet.histogram(f"penstock_queue_{name}_seconds", help, counted, queue.name,
                        total=latency.seconds)  # fmt: skip


def _sandboxes(fleet: Fleet) -> Sheet:
    """Sandboxes of the monitor's own run are counted from the start: a counter's first increase
    needs a 0 before it."""
    sheet = Sheet("run")
    own = Registry(fleet.run, {}, 0, dict.fromkeys(COUNTERS, 0), "")
    for one in {own.run: own, **{one.run: one for one in fleet.registries}}.values():
        for state in STATES:
            sheet.gauge("penstock_sandboxes",
                        "Session sandboxes by state. WAITING: without a STARTING permit yet.",
                        one.states.get(state, 0), one.run, state=state)  # fmt: skip
        sheet.gauge("penstock_sandboxes_failing",
                    "Session sandboxes that could not be ended.",
                    one.failing, one.run)  # fmt: skip
        sheet.gauge("penstock_sandboxes_unwatched",
                    "1 if there are session sandboxes and no reaper.",
                    int(bool(one.states) and not one.reaper), one.run)  # fmt: skip
        for outcome, total in one.counters.items():
            sheet.count("penstock_sandboxes_total", "Session sandboxes by outcome.",
                        total, one.run, outcome=outcome)  # fmt: skip
    return sheet


def _rest(fleet: Fleet) -> Sheet:
    sheet = Sheet()
    for state in WORKER_STATES:
        sheet.gauge("penstock_workers",
                    "Workers by state. A dead one has no heartbeat and no successor.",
                    fleet.worker_states.get(state, 0), state=state)  # fmt: skip
    sheet.gauge("penstock_unused", "1 if nothing has used this Redis yet.",
                int(fleet.level == "unused"))  # fmt: skip
    sheet.gauge("penstock_workers_suspended", "1 while `rq suspend` holds all workers.",
                int(fleet.suspended))  # fmt: skip
    server = fleet.server
    for name, help, value in (
        ("used_memory_bytes", "Memory that Redis uses.", server.used_memory),
        ("max_memory_bytes", "Memory that Redis may use; 0 is no limit.", server.max_memory),
        ("clients", "Connections to Redis.", server.clients),
        (
            "commands_per_second",
            "Commands per second, as Redis counts them.",
            server.commands_per_second,
        ),
    ):
        sheet.gauge(f"penstock_redis_{name}", help, value)
    return sheet

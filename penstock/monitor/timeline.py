"""Where a job's time went, from its enqueueing to its end."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

_PARTS = (("permit", "permit_seconds"), ("run", "running_seconds"), ("backoff", "backoff_seconds"))


@dataclass(frozen=True)
class Part:
    """Seconds of one kind: queued, permit, start, run, backoff, or for a job at work `working`."""

    what: str
    seconds: float


@dataclass(frozen=True)
class Execution:
    """One recorded end of the job."""

    worker: str
    started: float
    ended: float
    ok: bool


def timeline(fields: dict[str, str], result: Any, now: float) -> list[Part]:
    """The parts in order. What a result does not account for is `start`: starting the sandbox,
    and recording the end."""
    queued, began = moment(fields.get("enqueued_at")), moment(fields.get("started_at"))
    ended = moment(fields.get("ended_at"))
    if queued is None:
        return []
    if began is None or fields.get("status") == "queued":
        return [Part("queued", max(0.0, (ended or now) - queued))]
    parts = [Part("queued", max(0.0, began - queued))]
    if ended is None or ended < began:
        return [*parts, Part("working", max(0.0, now - began))]
    took = max(0.0, ended - began)
    spent = {what: _seconds(result, name) for what, name in _PARTS}
    if not any(spent.values()):
        return [*parts, Part("run", took)]
    rest = max(0.0, took - sum(spent.values()))
    order = [("permit", spent["permit"]), ("start", rest),
             ("run", spent["run"]), ("backoff", spent["backoff"])]  # fmt: skip
    return [*parts, *(Part(what, seconds) for what, seconds in order if seconds)]


def executions(entries: list[tuple[bytes, dict[bytes, bytes]]]) -> list[Execution]:
    """Of a stream of results, the latest first."""
    return [
        Execution(
            worker=row.get(b"worker_name", b"").decode(errors="replace"),
            started=_number(row.get(b"execution_started_at")),
            ended=_number(row.get(b"execution_ended_at")) or int(id.partition(b"-")[0]) / 1000,
            ok=row.get(b"type") == b"1",
        )
        for id, row in entries
    ]


def moment(text: str | None) -> float | None:
    """RQ writes `2026-08-02T10:11:12.345678Z`."""
    try:
        return datetime.fromisoformat(text).timestamp() if text else None
    except ValueError:
        return None


def _seconds(result: Any, name: str) -> float:
    value = result.get(name) if isinstance(result, dict) else None
    return float(value) if isinstance(value, int | float) and value > 0 else 0.0


def _number(text: bytes | None) -> float:
    try:
        return float(text or 0)
    except ValueError:
        return 0.0

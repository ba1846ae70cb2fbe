"""One sentence: whether all is well, and if not, what to do first."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from penstock.fleet.history import Point
from penstock.fleet.model import Fleet

LATELY = 900.0
"""Seconds for which a failed job is news."""
_MINUTE = 60.0
_SHOWN = 30


@dataclass(frozen=True)
class Summary:
    """`job` is the job to open first, `alarm` the index of the alarm that the sentence says."""

    level: Literal["well", "warn", "bad"]
    sentence: str
    job: str = ""
    alarm: int | None = None


def summary(fleet: Fleet, points: Sequence[Point]) -> Summary:
    """The summary of a look and the points before it."""
    failed = [job for job in fleet.failed if job.ended >= fleet.at - LATELY]
    if fleet.alarms:
        return _of_alarms(fleet)
    if failed:
        many = f"{len(failed)} job{'s' * (len(failed) != 1)}"
        return Summary(
            "warn", f"{many if len(failed) < _SHOWN else f'At least {many}'} failed in the last 15 "
            "minutes. Open the latest for its traceback, then retry them.", failed[0].id,
        )  # fmt: skip
    if masked := lately(points, fleet.at).get("masked", 0.0):
        return Summary(
            "warn", f"{max(1, round(masked)):,} programs were masked in the last minute: the "
            "sandbox failed, not the programs. Look at the workers' log.",
        )  # fmt: skip
    if not fleet.used:
        return Summary("well", "Nothing has used this Redis yet: `penstock up` starts all of it.")
    return Summary(
        "well", f"All is well{_paused(fleet)}: {_at_work(fleet)}, and no job failed in 15 minutes."
    )


def _of_alarms(fleet: Fleet) -> Summary:
    """The first that is bad, else the first."""
    first = next((n for n, alarm in enumerate(fleet.alarms) if alarm.level == "bad"), 0)
    alarm = fleet.alarms[first]
    return Summary(alarm.level, f"{alarm.text[:1].upper()}{alarm.text[1:]}.", alarm=first)


def _paused(fleet: Fleet) -> str:
    """Somebody did that, so it is no alarm while nothing waits there."""
    named = [repr(queue.name) for queue in fleet.queues if queue.paused]
    if not named:
        return ""
    queues, verb = ("queue", "is") if len(named) == 1 else ("queues", "are")
    return f", but {queues} {', '.join(named)[:80]} {verb} paused"


def _at_work(fleet: Fleet) -> str:
    workers = sum(count for state, count in fleet.worker_states.items() if state != "dead")
    running = sum(queue.running for queue in fleet.queues)
    waiting = sum(queue.depth for queue in fleet.queues)
    jobs = f"{running:,} job{'s' * (running != 1)}"
    verb = "runs" if workers == 1 else "run"
    return f"{workers:,} worker{'s' * (workers != 1)} {verb} {jobs}, {waiting:,} wait"


def lately(points: Sequence[Point], now: float) -> dict[str, float]:
    """How many programs and jobs ended how in the last minute."""
    found: dict[str, float] = {}
    recent = [point for point in points if point.at >= now - _MINUTE - 1]
    for before, point in pairwise(recent):
        for outcome, rate in point.programs.items():
            found[outcome] = found.get(outcome, 0.0) + rate * (point.at - before.at)
    return found

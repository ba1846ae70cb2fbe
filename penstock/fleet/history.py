"""How a fleet's figures went, look by look: what charts and rates are made of."""

import statistics
from collections import Counter, deque
from dataclasses import asdict, dataclass
from typing import Any

from penstock.fleet.model import Fleet

KEPT = 900


@dataclass(frozen=True)
class Point:
    """The figures of one look."""

    at: float
    depth: int
    running: int
    done_per_second: float
    wait_median: float | None
    took_median: float | None
    gates: dict[str, tuple[int, int | None, int]]
    """Permits in flight, the limit, waiters."""
    workers: dict[str, int]
    groups: dict[str, int]
    sandboxes: dict[str, int]
    """By state, and those that fail to end."""
    mean_reward: float | None
    rewards: tuple[int, ...]
    """Since the run began, by `buffer.catalog.REWARD_STEPS`."""


class History:
    """The newest points, a quarter of an hour of them at one a second."""

    def __init__(self) -> None:
        self.points: deque[Point] = deque(maxlen=KEPT)
        self._last: Fleet | None = None

    def add(self, fleet: Fleet) -> Point:
        before, self._last = self._last, fleet
        point = Point(
            at=round(fleet.at, 2),
            depth=sum(queue.depth for queue in fleet.queues),
            running=sum(queue.running for queue in fleet.queues),
            done_per_second=_rate(before, fleet),
            wait_median=_median([job.waited for job in fleet.recent]),
            took_median=_median([job.took for job in fleet.recent]),
            gates={gate.name: (gate.in_flight, gate.limit, gate.waiting) for gate in fleet.gates},
            workers=fleet.worker_states,
            groups={
                state: sum(task.groups.get(state, 0) for task in fleet.tasks)
                for state in ("open", "ready", "leased", "delivered", "quarantined")
            },
            sandboxes=_sandboxes(fleet),
            mean_reward=_mean_reward(fleet),
            rewards=tuple(
                map(sum, zip(*(task.reward_counts for task in fleet.tasks), strict=True))
            ),
        )
        self.points.append(point)
        return point

    def as_list(self) -> list[dict[str, Any]]:
        return [asdict(point) for point in self.points]


def _rate(before: Fleet | None, now: Fleet) -> float:
    """Of two counts that each miss something: workers that left, and stock workers."""
    if before is None or now.at <= before.at:
        return 0.0
    most = max(now.done - before.done, _counted(now) - _counted(before), 0)
    return round(most / (now.at - before.at), 2)


def _counted(fleet: Fleet) -> int:
    kinds = ("finished", "failed")
    return sum(queue.counters.get(kind, 0) for queue in fleet.queues for kind in kinds)


def _median(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(statistics.median(known), 4) if known else None


def _sandboxes(fleet: Fleet) -> dict[str, int]:
    counts = sum((Counter(one.states) for one in fleet.registries), Counter[str]())
    return {**counts, "failing": sum(one.failing for one in fleet.registries)}


def _mean_reward(fleet: Fleet) -> float | None:
    known = [
        (task.rewards, task.mean_reward) for task in fleet.tasks if task.mean_reward is not None
    ]
    total = sum(count for count, _ in known)
    return round(sum(count * mean for count, mean in known) / total, 4) if total else None

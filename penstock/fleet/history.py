"""How a fleet's figures went, look by look: what charts and rates are made of."""

import json
import logging
import statistics
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from redis.exceptions import RedisError

from ground.keys import tagged
from penstock.fleet.model import Fleet, Queue

log = logging.getLogger("penstock.monitor")

KEPT = 900
# Coarser points, for longer: the seconds that one stands for, and for how long it is kept.
SPANS = {"hour": (10, 3600), "day": (120, 86_400)}
_GATES = 100  # in one point, by name
LATELY = 60.0
"""Seconds for which an ended job counts in the medians."""


@dataclass(frozen=True)
class Point:
    """The figures of one look."""

    at: float
    depth: int
    running: int
    done_per_second: float
    wait_median: float | None
    """Of the newest jobs that ended in the last minute; None if there are none."""
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
    programs: dict[str, float]
    """Ends per second: by how programs ended, and `functions` and `failed` jobs."""


class History:
    """The newest points, a quarter of an hour of them at one a second."""

    def __init__(self) -> None:
        self.points: deque[Point] = deque(maxlen=KEPT)
        self._last: Fleet | None = None

    def add(self, fleet: Fleet) -> Point:
        before, self._last = self._last, fleet
        lately = [job for job in fleet.recent if job.ended >= fleet.at - LATELY]
        point = Point(
            at=round(fleet.at, 2),
            depth=sum(queue.depth for queue in fleet.queues),
            running=sum(queue.running for queue in fleet.queues),
            done_per_second=_rate(before, fleet),
            wait_median=_median([job.waited for job in lately]),
            took_median=_median([job.took for job in lately]),
            gates={
                gate.name: (gate.cost, gate.limit, gate.waiting) for gate in fleet.gates[:_GATES]
            },
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
            programs=_ends(before, fleet),
        )
        self.points.append(point)
        return point

    def as_list(self) -> list[dict[str, Any]]:
        return [asdict(point) for point in self.points]


class StoredHistory(History):
    """A history that a run's monitors share, and that outlives them: a stream in Redis.

    A point's id there is its second, so that two monitors store one point a second.
    """

    def __init__(self, client: Any, run: str) -> None:
        super().__init__()
        self._client = client
        self._run = run
        self._key = tagged("monitor", run, "history")
        self._refused = ""

    async def recall(self, now: float) -> None:
        """Read what was stored in the time that is kept."""
        since = f"{int(now - KEPT) * 1000}"
        self.points.extend(_of_this_version(await self._client.xrange(self._key, since)))

    async def store(self, point: Point) -> None:
        """Store a point. A Redis that takes no writes is still looked at; that is said once."""
        pipe = self._client.pipeline(transaction=False)
        fields = {"point": json.dumps(asdict(point), separators=(",", ":"))}
        pipe.xadd(self._key, fields, f"{int(point.at) * 1000}-0", maxlen=KEPT, approximate=False)
        pipe.expire(self._key, KEPT)
        pipe.set(seen_key(self._run), point.at, ex=KEPT)
        stored, *_ = await pipe.execute(raise_on_error=False)
        refused = str(stored) if isinstance(stored, RedisError) else ""
        if "equal or smaller" in refused:  # another monitor has stored this second
            return
        if refused and not self._refused:
            log.warning("the charts cannot be stored, and a restart will empty them: %s", refused)
        self._refused = refused
        if not refused:
            await self._store_spans(point)

    async def leave(self) -> None:
        """A monitor ends in order: nobody misses it."""
        await self._client.delete(seen_key(self._run))

    async def span(self, name: str) -> list[dict[str, Any]]:
        """The points of `hour` or `day`, each a mean."""
        rows = await self._client.xrange(self._key_of(name))
        return [asdict(point) for point in _of_this_version(rows)]

    async def _store_spans(self, newest: Point) -> None:
        """Store the mean of each step of a span that is over; one monitor does it, as with
        points."""
        before = self.points[-2].at if len(self.points) > 1 else newest.at
        pipe = self._client.pipeline(transaction=False)
        for name, (step, kept) in SPANS.items():
            ended = int(newest.at // step) * step
            if before >= ended:
                continue
            of_step = [point for point in self.points if ended - step <= point.at < ended]
            if of_step:
                text = json.dumps(mean(of_step, ended), separators=(",", ":"))
                pipe.xadd(
                    self._key_of(name), {"point": text}, f"{ended * 1000}-0",
                    maxlen=kept // step, approximate=False,
                )  # fmt: skip
                pipe.expire(self._key_of(name), kept)
        await pipe.execute(raise_on_error=False)  # another monitor has stored it

    def _key_of(self, span: str) -> str:
        return tagged("monitor", self._run, f"history:{span}")


def lately(points: Sequence[Point], now: float) -> dict[str, float]:
    """How many programs and jobs ended how in the last minute."""
    found: dict[str, float] = {}
    recent = [point for point in points if point.at >= now - LATELY - 1]
    for before, point in pairwise(recent):
        for outcome, rate in point.programs.items():
            found[outcome] = found.get(outcome, 0.0) + rate * (point.at - before.at)
    return found


def seen_key(run: str) -> str:
    """When a monitor of the run looked last. Its silence is seen by this."""
    return tagged("monitor", run, "seen")


def _of_this_version(rows: Iterable[Any]) -> Iterator[Point]:
    """The entries of a stream that have exactly the figures of a point."""
    for _, fields in rows:
        try:
            yield Point(**json.loads(fields[b"point"]))
        except (KeyError, ValueError, TypeError):
            continue


def mean(points: Sequence[Point], at: float) -> dict[str, Any]:
    """The mean of many points as one, as JSON: totals are the last ones, all else is a mean."""
    rows = [asdict(point) for point in points]
    totals = {"at": at, "rewards": points[-1].rewards}
    means = {name: _mean([row[name] for row in rows]) for name in rows[-1] if name not in totals}
    return means | totals


def _mean(values: list[Any]) -> Any:
    """The mean of numbers, or of the numbers in dicts and tuples; what is None is left out."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    if isinstance(known[0], dict):
        names = dict.fromkeys(name for value in known for name in value)
        # A number that is absent is 0; a gate that is absent was not there yet.
        rows = {name: [value.get(name) for value in known] for name in names}
        return {
            name: _mean([0 if one is None and _is_number(row) else one for one in row])
            for name, row in rows.items()
        }
    if isinstance(known[0], tuple | list):
        whole = [value for value in known if isinstance(value, tuple | list)]
        return [_mean([*part]) for part in zip(*whole, strict=True)]
    return round(sum(known) / len(known), 4)


def _is_number(values: list[Any]) -> bool:
    return all(value is None or isinstance(value, int | float) for value in values)


def _ends(before: Fleet | None, now: Fleet) -> dict[str, float]:
    """Per second since the look before, of queues that both have."""
    if before is None or now.at <= before.at:
        return {}
    earlier = {queue.name: _ended(queue) for queue in before.queues}
    ends = Counter[str]()
    for queue in now.queues:
        if queue.name in earlier:
            ends.update({
                name: max(0, count - earlier[queue.name].get(name, 0))
                for name, count in _ended(queue).items()
            })  # fmt: skip
    return {name: round(count / (now.at - before.at), 3) for name, count in ends.items() if count}


def _ended(queue: Queue) -> dict[str, int]:
    counted = {name: queue.counters.get(name, 0) for name in ("functions", "failed")}
    return {**queue.programs, **counted}


def _rate(before: Fleet | None, now: Fleet) -> float:
    """The rate by two counts that each miss something: workers that left, and stock workers."""
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

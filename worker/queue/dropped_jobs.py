"""The jobs of a queue that were taken off without a run, and results that were refused: the
latest, each with why. The scripts of `worker/concurrent/lua` write them."""

from collections.abc import Iterable
from dataclasses import dataclass

from ground import connect
from ground.keys import tagged
from ground.redis.connect import AnyRedis, target_of

REASONS = {
    "id": "RQ refuses its id: it may have letters, digits, - and _; enqueue it with another",
    "gone": "its hash is not there: its ttl was over, or it was deleted",
    "over": "it had ended or was cancelled",
    "running": "it is running already",
    "cancelled": "its caller cancelled it",
    "orphaned": "the process that wanted it is gone",
    "refused": "this result of it: another worker had it, or it was deleted",
}


@dataclass(frozen=True)
class Dropped:
    """A job that was dropped or refused. `at`: seconds since 1970, by the server's clock."""

    job: str
    why: str
    worker: str
    at: float


def dropped_of(redis: AnyRedis, queue: str, most: int = 100) -> list[Dropped]:
    """The latest first."""
    with connect(target_of(redis)) as client:
        rows: Iterable[tuple[bytes, dict[bytes, bytes]]] = client.xrevrange(
            tagged("work", queue, "dropped"), count=most
        )
    return [_read(entry, fields) for entry, fields in rows]


def _read(entry: bytes, fields: dict[bytes, bytes]) -> Dropped:
    job, why, worker = (
        fields.get(name, b"").decode(errors="backslashreplace")
        for name in (b"job", b"why", b"worker")
    )
    return Dropped(job, why, worker, int(entry.partition(b"-")[0]) / 1000)

"""Waiting, in tests, until a gate is in a certain state."""

import asyncio
import threading
import time
from typing import Any

from ground.keys import tagged
from tests.harness.servers import until

PATIENCE = 100.0


async def settled(gate: Any, *, in_flight: int | None = None, waiting: int | None = None) -> None:
    """Until the gate has so many in flight and in line."""
    async with asyncio.timeout(PATIENCE):
        while not _matches(await gate.status(), in_flight, waiting):  # noqa: ASYNC110
            await asyncio.sleep(0.002)


def settled_sync(gate: Any, *, in_flight: int | None = None, waiting: int | None = None) -> None:
    deadline = time.monotonic() + PATIENCE
    while not _matches(status := gate.sync.status(), in_flight, waiting):
        assert time.monotonic() < deadline, status
        time.sleep(0.002)


async def in_line(gate: Any, number: int, **acquire: Any) -> "asyncio.Task[Any]":
    """A task that waits, once it is the number-th in line."""
    task = asyncio.create_task(gate.acquire(**acquire))
    await settled(gate, waiting=number)
    return task


async def served(task: "asyncio.Task[Any]") -> Any:
    """The permit, when the task has it."""
    async with asyncio.timeout(PATIENCE):
        return await task


async def served_in_turn(
    permit: Any, first: "asyncio.Task[Any]", second: "asyncio.Task[Any]"
) -> None:
    """Given back, the permit is the first one's in line, and only then the second one's."""
    permit.release()
    granted = await served(first)
    assert not second.done()
    assert granted.fence > permit.fence
    granted.release()
    (await served(second)).release()


def renewed(redis: Any, name: str = "g") -> None:
    """Block this thread until another one has renewed the gate's permits, twice."""
    for _ in range(2):
        before = _leases(redis, name)
        until(lambda before=before: _leases(redis, name) != before, "a renewal", PATIENCE)


def _leases(redis: Any, name: str) -> list[tuple[bytes, float]]:
    return list(redis.zrange(tagged("gate", name, "leases"), 0, -1, withscores=True))


def _matches(status: Any, in_flight: int | None, waiting: int | None) -> bool:
    return in_flight in (None, status.in_flight) and waiting in (None, status.waiting)


class Observer:
    """Counts who is inside, without asking the gate; for coroutines and threads."""

    def __init__(self) -> None:
        self.peak = 0
        self._inside = 0
        self._guard = threading.Lock()

    def __enter__(self) -> None:
        with self._guard:
            self._inside += 1
            self.peak = max(self.peak, self._inside)

    def __exit__(self, *failure: object) -> None:
        with self._guard:
            self._inside -= 1

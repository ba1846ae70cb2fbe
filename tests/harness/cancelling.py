"""Cancelled at every await, one after the other: a task may be cancelled wherever it waits.

    async for step in cancelled_at_every_await(lambda: way(gate)):
        ...                             # the balance: what it took is given back

The awaits are those that the code has: a way is begun again for each, until it has no further one.
The first is no await: its task is cancelled before it has run at all, and so it has no `finally`.
"""

import asyncio
import types
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WITHIN = 100.0
_ROOT = Path(__file__).parents[2]
_OURS = tuple(
    str(_ROOT / room) for room in ("ground", "limiter", "jail", "worker", "buffer", "tests")
)
Way = Callable[[], Coroutine[Any, Any, Any]]


async def cancelled_at_every_await(way: Way) -> AsyncIterator[str]:
    """Yields where it was cancelled, after each time; the last time it comes to its end."""
    step, where = 0, "before its first step"
    while where:
        where = await cancelled_at(way, step)
        yield where or "not at all"
        step += 1


async def cancelled_at(way: Way, step: int) -> str:
    """Where it was; empty if it has fewer awaits."""
    where = ""

    def note(at: int, place: str) -> None:
        nonlocal where
        if at == step:
            where = place
            task.cancel()

    if step == 0:
        where, task = "before its first step", asyncio.create_task(way())
        task.cancel()
    else:
        task = asyncio.create_task(stepping(way(), note))
    await asyncio.wait([task], timeout=WITHIN)
    assert task.done(), f"cancelled {where}, it does not end"
    if not where:
        task.result()
    return where


@types.coroutine
def stepping(
    way: Coroutine[Any, Any, Any], reached: Callable[[int, str], object]
) -> Generator[Any, Any, Any]:
    """Runs it; each time that it begins to wait, calls `reached` with the number of that time,
    from 1 on, and the place."""
    step, value, error = 0, None, None
    while True:
        try:
            waits_for = way.throw(error) if error is not None else way.send(value)
        except StopIteration as done:
            return done.value
        step += 1
        reached(step, place_of(way))
        value = error = None
        try:
            value = yield waits_for
        except BaseException as thrown:  # noqa: BLE001 - it is thrown on
            error = thrown


def place_of(way: Any) -> str:
    """The lines of our own coroutines that wait, from without to within."""
    places = []
    while way is not None:
        code, frame = getattr(way, "cr_code", None), getattr(way, "cr_frame", None)
        if code is not None and frame is not None and code.co_filename.startswith(_OURS):
            places.append(f"{code.co_qualname}, line {frame.f_lineno}")
        way = getattr(way, "cr_await", None)
    return " > ".join(places) or "in none of our own"


@dataclass
class Strikes:
    """For tasks that the product begins by itself: strikes when the first one of a coroutine
    function waits for the n-th time; 0 is before its first step."""

    of: str  # as `Shift._run`
    step: int
    strike: Callable[[], object]
    where: str = ""  # it struck there
    places: list[str] = field(default_factory=list)
    begun: bool = False

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.set_task_factory(self._make)

    def _make(self, loop: Any, coroutine: Any, **options: Any) -> Any:
        if self.begun or getattr(coroutine, "__qualname__", "") != self.of:
            return asyncio.Task(coroutine, loop=loop, **options)
        self.begun = True
        if self.step == 0:
            self.where = "before its first step"
            loop.call_soon(self.strike)  # what is scheduled first, runs first
        else:
            coroutine = stepping(coroutine, self._reached)
        return asyncio.Task(coroutine, loop=loop, **options)

    def _reached(self, step: int, place: str) -> None:
        self.places.append(place)
        if step == self.step:
            self.where = place
            self.strike()

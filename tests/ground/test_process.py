"""The loop of the process, and its end."""

import asyncio
import gc
import weakref
from concurrent.futures import CancelledError

import pytest

from ground import process


async def nothing() -> None:
    return


@pytest.mark.parametrize("fails", [False, True])
def test_a_last_work_that_asks_for_the_loop_gets_the_one_that_ends(fails: bool) -> None:
    last = process.process_loop()

    async def farewell() -> None:
        await process.on_process_loop(nothing())
        assert process.process_loop() is last
        if fails:
            raise OSError("it does not hang up")

    if fails:
        with pytest.raises(OSError, match="hang up"):
            process.stop(farewell)
    else:
        process.stop(farewell)
    assert last.is_closed()
    assert process._process_loop._running is None


async def waits(begun: asyncio.Event, ended: list[str]) -> None:
    begun.set()
    try:
        await asyncio.Event().wait()
    finally:
        ended.append("cancelled")
        running.append(asyncio.ensure_future(ends_last(ended)))


async def ends_last(ended: list[str]) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0)
        ended.append("and what it began")


running: list[asyncio.Task[None]] = []


def test_what_still_runs_on_the_loop_is_cancelled_and_awaited() -> None:
    begun, ended = asyncio.Event(), list[str]()
    waiting = asyncio.run_coroutine_threadsafe(waits(begun, ended), process.process_loop())
    process.from_thread(begun.wait())
    process.stop(nothing)
    assert ended == ["cancelled", "and what it began"]
    with pytest.raises(CancelledError):
        waiting.result(100)


class Equal:
    """All of them are equal, and none can be a key."""

    def __init__(self, heard: list[str]) -> None:
        self.heard = heard
        process.in_forked_child(self.one)
        process.in_forked_child(self.other)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Equal)

    __hash__ = None  # type: ignore[assignment]

    def one(self) -> None:
        self.heard.append("one")

    def other(self) -> None:
        self.heard.append("other")


def test_a_forked_child_calls_every_method_of_every_object_that_lives(monkeypatch) -> None:
    monkeypatch.setattr(process, "_forgetting", {})
    heard: list[str] = []
    first, second, gone = Equal(heard), Equal(heard), Equal(heard)
    del gone
    process._forget_parent()
    assert heard == ["one", "other"] * 2
    del first, second
    assert process._forgetting == {}


def test_an_object_that_outlives_the_list_for_forked_children_is_called_back_by_nobody(
    monkeypatch,
) -> None:
    """As at an interpreter's end, when its modules are emptied: a cycle would stay until later,
    and print `Exception ignored in` there."""
    gc.disable()
    try:
        with monkeypatch.context() as running:
            running.setattr(process, "_forgetting", type(process._forgetting)())
            lives_on = process.LoopThread("lives on")
            assert weakref.getweakrefcount(lives_on) == 1
        assert weakref.getweakrefcount(lives_on) == 0
    finally:
        gc.enable()

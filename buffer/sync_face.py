"""The buffer for code without an event loop: the same calls, run on a loop of our own."""

import asyncio
import os
import threading
from collections import Counter
from collections.abc import Coroutine, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from buffer.batch import Batch
from buffer.catalog import GroupInfo
from buffer.default_functions import Item
from buffer.settings import TaskConfig
from buffer.writer import Outcome

if TYPE_CHECKING:
    from buffer.rollout_buffer import RolloutBuffer

T = TypeVar("T")


class _Loop:
    """One background event loop a process; a forked child gets its own."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        with self._guard:
            if self._loop is None or self._pid != os.getpid():
                self._loop, self._pid = asyncio.new_event_loop(), os.getpid()
                threading.Thread(
                    target=self._loop.run_forever, name="penstock-buffer", daemon=True
                ).start()
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()


_loop = _Loop()
os.register_at_fork(after_in_child=_loop.__init__)  # type: ignore[misc]


class SyncRolloutBuffer:
    """What `buffer.sync` gives: methods as on `RolloutBuffer`, which block the calling thread."""

    def __init__(self, buffer: "RolloutBuffer") -> None:
        self._buffer = buffer

    def config(self) -> TaskConfig:
        return _loop.run(self._buffer.config())

    def configure(self, config: TaskConfig) -> None:
        _loop.run(self._buffer.configure(config))

    def write(self, item: Item) -> Outcome:
        return _loop.run(self._buffer.write(item))

    def write_many(self, items: Iterable[Item]) -> list[Outcome]:
        return _loop.run(self._buffer.write_many(items))

    def take(
        self, groups: int | None = None, *, wait: float = 0.0, lease: float | None = None
    ) -> Batch | None:
        return _loop.run(self._buffer.take(groups, wait=wait, lease=lease))

    def ack(self, batch: Batch | str) -> None:
        _loop.run(self._buffer.ack(batch))

    def release(self, batch: Batch | str) -> bool:
        return _loop.run(self._buffer.release(batch))

    def extend(self, batch: Batch | str, seconds: float) -> None:
        _loop.run(self._buffer.extend(batch, seconds))

    def fetch(self, receipt: str) -> Batch:
        return _loop.run(self._buffer.fetch(receipt))

    def available(self) -> int:
        return _loop.run(self._buffer.available())

    def wait_for(self, groups: int, seconds: float) -> None:
        _loop.run(self._buffer.wait_for(groups, seconds))

    def unreported(self) -> list[Any]:
        return _loop.run(self._buffer.unreported())

    def stats(self) -> dict[str, int]:
        return _loop.run(self._buffer.stats())

    def rewards(self) -> tuple[int, ...]:
        return _loop.run(self._buffer.rewards())

    def groups(self, state: str = "ready", limit: int = 100) -> list[GroupInfo]:
        return _loop.run(self._buffer.groups(state, limit))

    def items(self, instance_id: str | int, round_number: int = 0) -> list[Item]:
        return _loop.run(self._buffer.items(instance_id, round_number))

    def quarantined(self, limit: int | None = None) -> list[GroupInfo]:
        return _loop.run(self._buffer.quarantined(limit))

    def requeue(self, instance_id: str | int, round_number: int = 0) -> bool:
        return _loop.run(self._buffer.requeue(instance_id, round_number))

    def sweep(self) -> float:
        return _loop.run(self._buffer.sweep())

    def reset(self) -> None:
        _loop.run(self._buffer.reset())

    def resume(self, skip: Iterable[str | int]) -> int:
        return _loop.run(self._buffer.resume(skip))

    def finished_rounds(self, skip: Iterable[str | int] = ()) -> Counter[str]:
        return _loop.run(self._buffer.finished_rounds(skip))

    def close(self) -> None:
        _loop.run(self._buffer.aclose())

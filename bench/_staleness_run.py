"""One simulated training on the real buffer: virtual time, true scripts.

A fifth of the prompts take ten times as long, log-normally. Generation just keeps up with a trainer
that takes a second a version. The run ends when all that was begun has ended.
"""

import heapq
import itertools
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from buffer import Policy, RolloutBuffer, Slot, TaskConfig

_PLACES, _PER_VERSION, _SLOW = 48, 16, 0.2
_FAST_SECONDS, _SPREAD = 0.94, 0.5


async def simulated(url: str, when_old: Any, versions: int, seed: int) -> Mapping[str, float]:
    """The figures of one training of this many versions."""
    config = TaskConfig(
        group_size=1, min_valid_item_size_ratio=1.0, lease=1e6, late_window=1e6, dialect="v1"
    )
    buffer = RolloutBuffer(url, f"{when_old}-{seed}", config)
    fresh = when_old == "fresh"
    policy = Policy(
        groups_per_version=_PER_VERSION, max_age=8, depth=8 if when_old in ("drop", "fresh") else 2,
        when_old="drop" if fresh else when_old, order="fresh" if fresh else "old", attempts=1000,
        slot_lease=1e6, longest=1e6,
    )  # fmt: skip
    await buffer.set_policy(policy)
    world = _World(buffer, random.Random(seed))
    await world.run(versions)
    await buffer.aclose()
    return world.figures()


@dataclass
class _World:
    buffer: RolloutBuffer
    chance: random.Random
    now: float = 0.0
    version: int = 0
    free_at: float = 0.0
    running: list[tuple[float, int, Slot, str]] = field(default_factory=list)
    ages: list[int] = field(default_factory=list)
    trained: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)  # of a problem's last try
    spent: float = 0.0
    prompts: Any = field(default_factory=itertools.count)

    async def run(self, versions: int) -> None:
        await self.buffer.publish(0)
        while True:
            more = self.version < versions
            await self._begin(more)
            await self._train(more)
            if self.running:
                await self._finish(*heapq.heappop(self.running))
            elif self.free_at > self.now:
                self.now = self.free_at
            elif not more:
                return

    async def _begin(self, more: bool) -> None:
        """Fill the places: prompts to be made again first, as the policy has them."""
        room = _PLACES - len(self.running)
        if room < 1:
            return
        names = [f"{self._kind()}-{next(self.prompts)}" for _ in range(room)] if more else []
        for slot in await self.buffer.admit(room, instances=names):
            if slot.instance_id is None:
                await slot.end()
                continue
            name = str(slot.instance_id)
            mean = _FAST_SECONDS * (10 if name.startswith("slow") else 1)
            seconds = mean * self.chance.lognormvariate(-(_SPREAD**2) / 2, _SPREAD)
            self.seconds[name] = seconds
            self.spent += seconds
            heapq.heappush(self.running, (self.now + seconds, int(slot.fence), slot, name))

    def _kind(self) -> str:
        return "slow" if self.chance.random() < _SLOW else "fast"

    async def _finish(self, at: float, _: int, slot: Slot, name: str) -> None:
        self.now = max(self.now, at)
        item = {"uid": f"{name}.{slot.id}", "instance_id": name, "messages": [], "reward": 1}
        await self.buffer.write_entries([_entry(item, slot)])

    async def _train(self, more: bool) -> None:
        """Take what the policy lets go; a version that has its groups takes a second."""
        if self.now < self.free_at:
            return
        taken = (await self.buffer.versions()).taken
        batch = await self.buffer.take(_PER_VERSION - taken) if taken < _PER_VERSION else None
        if batch is not None:
            self.ages += batch.ages
            self.trained += [str(name) for name, _ in batch.groups]
            taken += len(batch.groups)
            await self.buffer.ack(batch)
        if taken == _PER_VERSION or (not more and not self.running and batch is not None):
            self.version += 1
            self.free_at = self.now + 1.0
            await self.buffer.publish(self.version)

    def figures(self) -> Mapping[str, float]:
        begun = set(self.seconds)
        slow_in = sum(name.startswith("slow") for name in begun) / len(begun)
        slow_out = sum(name.startswith("slow") for name in self.trained) / len(self.trained)
        used = sum(self.seconds[name] for name in self.trained)
        return {
            "fair share of slow problems": slow_out / slow_in,
            "versions per second": self.version / self.now,
            "problems never trained, %": 100 * len(begun - set(self.trained)) / len(begun),
            "generation wasted, %": 100 * (1 - used / self.spent),
            "mean age": math.fsum(self.ages) / len(self.ages),
            "max age": max(self.ages),
        }


def _entry(item: dict[str, Any], slot: Slot) -> Any:
    from buffer.item import entry_of

    return entry_of({**item, "slot": slot.id, "fence": slot.fence}, 1 << 20)

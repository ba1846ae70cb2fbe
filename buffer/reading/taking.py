"""A batch on its way to a reader is claimed, processed, settled and sealed.

Claiming takes groups under the batch's lease. Groups that turn out invalid or fail go their own
way. Those whose turn did not come go back. What is sealed is handed out.
"""

import asyncio
import json
import logging
import math
import uuid
from collections import Counter
from dataclasses import dataclass
from typing import Any

from buffer.batch import Batch, figures_of
from buffer.default_functions import Item
from buffer.errors import LeaseLost
from buffer.reading.pipeline import Handling, Pipeline
from buffer.reading.raw_groups import RawGroups
from buffer.task import Task
from ground.lua import chunks

log = logging.getLogger(__name__)

_CHUNK = 256  # groups in memory as they were written
_FAREWELL = 2.0  # seconds for which a read that failed tries to give its groups back
Figures = tuple[dict[str, Any] | None, int]  # None: the default ones; how much was read


@dataclass(frozen=True)
class Claimed:
    """A group taken for a batch."""

    gid: str
    instance_id: Any
    why: str
    start: int | None  # the version at its start, under a policy
    bytes: int  # 0 if the batch has no bound

    @property
    def settled(self) -> bool:
        """A timed-out group is used as it is; a judged one was found valid before."""
        return self.why != "count"


class Taking:
    """A batch that is being put together."""

    def __init__(
        self, task: Task, raw: RawGroups, pipeline: Pipeline, lease: float, *, implicit: bool,
        max_bytes: int | None,
    ) -> None:  # fmt: skip
        self._task = task
        self._raw = raw
        self._pipeline = pipeline
        self._lease_ms = math.ceil(lease * 1000)
        self._implicit = implicit
        self._room = max_bytes  # that is left, as items are stored
        self._receipt = uuid.uuid4().hex
        self._taken: dict[str, tuple[Any, list[Item]]] = {}
        self._starts: list[int] = []
        self._version: int | None = None
        self._oldest: int | None = None  # what is older is masked
        self._masked = 0

    async def batch_of(self, want: int) -> tuple[Batch | None, int]:
        """Take up to `want` groups, and say in how many ms time alone may bring more (-1: never).

        A read that is cancelled or fails gives back what it claimed: nobody has its receipt.
        """
        try:
            return await self._batch_of(want)
        except BaseException:
            await asyncio.shield(self._give_back())
            raise

    async def _batch_of(self, want: int) -> tuple[Batch | None, int]:
        due, figures = -1, None
        while len(self._taken) < want:
            due, claimed = await self._claim(min(want - len(self._taken), _CHUNK))
            if not claimed:
                break
            figures = figures or await self._custom_figures()
            if not await self._process(claimed):
                break
        return (await self._seal(figures) if figures else None), due

    async def _give_back(self) -> None:
        try:
            async with asyncio.timeout(_FAREWELL):
                await self._task.call_to_its_end("release", self._receipt)
        except Exception as failure:  # noqa: BLE001 - the read's own error is its caller's
            log.warning(
                "the groups of a read that failed come back at their lease's end",
                extra={"task": self._task.name, "reason": str(failure) or type(failure).__name__},
            )

    async def _claim(self, want: int) -> tuple[int, list[Claimed]]:
        room = 0 if self._room is None else max(1, self._room)
        args = [self._receipt, want, self._lease_ms, int(self._implicit), room, *self._taken]
        reply = await self._task.call("claim", *args)
        found = [
            Claimed(
                gid.decode(),
                json.loads(id_json),
                why.decode(),
                int(start) if start else None,
                int(size or 0),
            )
            for gid, id_json, why, start, size in chunks(reply[3:], 5)
        ]
        self._version = int(reply[1]) if reply[1] != b"" else None
        self._oldest = int(reply[2]) if reply[2] != b"" else None
        return int(reply[0]), found

    async def _process(self, claimed: list[Claimed]) -> bool:
        """Through the five steps; False when the read's time was over before all had their turn."""
        raw = await self._raw.items([group.gid.encode() for group in claimed])
        verdicts = await self._pipeline.process(
            [(group.instance_id, items, group.settled, group.start)
             for group, items in zip(claimed, raw, strict=True)], self._oldest
        )  # fmt: skip
        for group, verdict in zip(claimed, verdicts, strict=True):
            if verdict.fate == "delivered":
                self._taken[group.gid] = (group.instance_id, verdict.items)
                if self._room is not None:
                    self._room -= group.bytes
                if group.start is not None:
                    self._starts.append(group.start)
                self._masked += verdict.masked
        await self._settle(claimed, verdicts)
        return all(verdict.fate != "unasked" for verdict in verdicts)

    async def _settle(self, claimed: list[Claimed], verdicts: list[Handling]) -> None:
        args: list[str] = []
        for group, verdict in zip(claimed, verdicts, strict=True):
            if verdict.fate != "delivered":
                args += [group.gid, verdict.fate, verdict.reason]
        if args:
            await self._task.call("settle", self._receipt, *args)

    async def _seal(self, custom: Figures) -> Batch | None:
        figures, read = custom
        said = "" if figures is None else json.dumps(figures)
        version, ages, counted = self._version, tuple[int, ...](), list[int]()
        if version is not None:
            ages = tuple(version - start for start in self._starts)
            counted = [part for age in Counter(ages).items() for part in age]
        reply = await self._task.call(
            "seal", self._receipt, len(self._taken), read, said, self._masked, *counted
        )
        if not reply[0]:
            if self._taken:
                raise LeaseLost(self._receipt)
            return None
        if figures is None:
            figures = figures_of(reply[2:], self._pipeline.config)
        groups, discarded = [*self._taken.values()], json.loads(reply[1])
        return Batch(self._receipt, groups, discarded, figures, version, ages)

    async def _custom_figures(self) -> Figures:
        """The figures that the task's own function makes of all raw items since the last read."""
        if self._task.functions.get_group_data_meta_info is None:
            return None, 0
        raw, read = await self._raw.since_last_read()
        return await self._pipeline.meta_info(raw), read

"""Taking batches: finished groups under a lease, through the five steps, until acknowledged."""

import json
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from buffer.batch import Batch, figures_of
from buffer.default_functions import Item
from buffer.errors import LeaseLost
from buffer.pipeline import Pipeline, Verdict
from buffer.raw_groups import RawGroups
from buffer.settings import TaskConfig
from buffer.task import Task

MOST_GROUPS = 4096  # in one batch: what a reader can hold at once
Figures = tuple[dict[str, Any] | None, int]  # None: the default ones; how much was read
_CHUNK = 256
_LONGEST_WAIT = 5.0  # a reader that missed its ring looks again by itself


@dataclass(frozen=True)
class Claimed:
    """A group taken for a batch."""

    gid: str
    instance_id: Any
    why: str

    @property
    def settled(self) -> bool:
        """A timed-out group is used as it is; a judged one was found valid before."""
        return self.why != "count"


class Reader:
    """One task's batches."""

    def __init__(self, task: Task, *, function_timeout: float) -> None:
        self._task = task
        self._raw = RawGroups(task)
        self._function_timeout = function_timeout

    async def take(
        self, groups: int | None, *, wait: float, lease: float | None, implicit: bool
    ) -> Batch | None:
        """A batch of up to `groups` groups; waits for a first one up to `wait` seconds."""
        deadline = time.monotonic() + wait
        while True:
            batch, due = await self._take(groups, lease, implicit)
            left = deadline - time.monotonic()
            if batch is not None or left <= 0:
                return batch
            await self._until_rung(min(left, _LONGEST_WAIT, due))

    async def fetch(self, receipt: str) -> Batch:
        """A batch that was handed out, once more, with the same content."""
        task, key = self._task, self._task.batch_key(receipt)
        found = await task.link.command("HMGET", key, "state", "discarded", "meta_info", "figures")
        gids = await task.link.command("LRANGE", task.batch_groups_key(receipt), 0, -1)
        if found[0] not in (b"leased", b"consumed") or found[3] is None or not gids:
            raise LeaseLost(receipt)
        pipeline = await self._pipeline()
        ids = await self._raw.instance_ids(gids)
        raw = await self._raw.items(gids)
        verdicts = await pipeline.process(
            [(instance_id, items, True) for instance_id, items in zip(ids, raw, strict=True)]
        )
        groups = [
            (instance_id, verdict.items)
            for instance_id, verdict in zip(ids, verdicts, strict=True)
            if verdict.fate == "delivered"
        ]
        figures = (
            json.loads(found[2]) if found[2] else figures_of(found[3].split(), pipeline.config)
        )
        return Batch(receipt, groups, json.loads(found[1]), figures)

    async def available(self, want: int) -> int:
        """Finished groups that wait, once a custom is_valid_group was asked."""
        if self._task.functions.is_valid_group is not None:
            await self._judge(await self._pipeline(), want)
        await self._task.call("sweep", 200, 0, 0)
        return int(await self._task.link.command("ZCARD", self._task.key("ready")))

    async def wait_for(self, groups: int, seconds: float) -> None:
        """Until so many groups wait, or the time is over."""
        deadline = time.monotonic() + seconds
        while await self.available(groups) < groups:
            left = deadline - time.monotonic()
            if left <= 0:
                return
            await self._until_rung(min(left, _LONGEST_WAIT))

    async def unreported(self) -> list[Any]:
        """Ids of groups that finished without data and are told with the next batch."""
        key = self._task.key("unreported")
        return [json.loads(id_) for id_ in await self._task.link.command("LRANGE", key, 0, -1)]

    async def _take(
        self, groups: int | None, lease: float | None, implicit: bool
    ) -> tuple[Batch | None, float]:
        pipeline = await self._pipeline()
        want = MOST_GROUPS if groups is None else min(groups, MOST_GROUPS)
        if self._task.functions.is_valid_group is not None:
            await self._judge(pipeline, want)
        receipt = uuid.uuid4().hex
        seconds = pipeline.config.lease if lease is None else lease
        taken: dict[str, tuple[Any, list[Item]]] = {}
        due, figures = -1, None
        while len(taken) < want:
            due, claimed = await self._claim(
                receipt, min(want - len(taken), self._chunk(seconds)), seconds, implicit, taken
            )
            if not claimed:
                break
            figures = figures or await self._custom_figures(pipeline)
            verdicts = await self._processed(pipeline, claimed)
            await self._settle(receipt, claimed, verdicts)
            for group, verdict in zip(claimed, verdicts, strict=True):
                if verdict.fate == "delivered":
                    taken[group.gid] = (group.instance_id, verdict.items)
        if figures is None:
            return None, _seconds(due)
        batch = await self._seal(receipt, list(taken.values()), figures, pipeline.config)
        return batch, _seconds(due)

    def _chunk(self, lease: float) -> int:
        """Each claim renews the lease: functions that all run out of time must not outlast it."""
        if not self._task.functions.custom:
            return _CHUNK
        return max(1, min(_CHUNK, int(lease / 2 / self._function_timeout)))

    async def _claim(
        self, receipt: str, want: int, lease: float, implicit: bool, taken: Iterable[str]
    ) -> tuple[int, list[Claimed]]:
        args = [receipt, want, int(lease * 1000), int(implicit), *taken]
        reply = await self._task.call("claim", *args)
        found = [
            Claimed(gid.decode(), json.loads(id_json), why.decode())
            for gid, id_json, why in _by(3, reply[1:])
        ]
        return int(reply[0]), found

    async def _processed(self, pipeline: Pipeline, claimed: list[Claimed]) -> list[Verdict]:
        raw = await self._raw.items([group.gid.encode() for group in claimed])
        return await pipeline.process(
            [(group.instance_id, items, group.settled)
             for group, items in zip(claimed, raw, strict=True)]
        )  # fmt: skip

    async def _settle(self, receipt: str, claimed: list[Claimed], verdicts: list[Verdict]) -> None:
        args: list[str] = []
        for group, verdict in zip(claimed, verdicts, strict=True):
            if verdict.fate != "delivered":
                args += [group.gid, verdict.fate, verdict.reason]
        if args:
            await self._task.call("settle", receipt, *args)

    async def _seal(
        self,
        receipt: str,
        groups: list[tuple[Any, list[Item]]],
        custom: Figures,
        config: TaskConfig,
    ) -> Batch | None:
        figures, read = custom
        said = "" if figures is None else json.dumps(figures)
        reply = await self._task.call("seal", receipt, len(groups), read, said)
        if not reply[0]:
            if groups:
                raise LeaseLost(receipt)
            return None
        if figures is None:
            figures = figures_of(reply[2:], config)
        return Batch(receipt, groups, json.loads(reply[1]), figures)

    async def _custom_figures(self, pipeline: Pipeline) -> Figures:
        """What the task's own function makes of all raw items since the last read."""
        if self._task.functions.get_group_data_meta_info is None:
            return None, 0
        raw, read = await self._raw.since_last_read()
        return await pipeline.meta_info(raw), read

    async def _judge(self, pipeline: Pipeline, want: int) -> None:
        """Ask a custom is_valid_group about the groups that changed since it last saw them."""
        key, start, ready = self._task.key("changed"), 0, 0
        while ready < want:
            gids = await self._task.link.command("ZRANGE", key, start, start + _CHUNK - 1)
            if not gids:
                return
            ids, raw = await self._raw.instance_ids(gids), await self._raw.items(gids)
            verdicts = await pipeline.judge(list(zip(ids, raw, strict=True)))
            args: list[Any] = []
            for gid, items, verdict in zip(gids, raw, verdicts, strict=True):
                word = "valid" if verdict.fate == "delivered" else verdict.fate
                args += [gid, len(items), word, verdict.reason]
                ready += word == "valid"
            held = await self._task.call("judge", *args)
            start += len(gids) - int(held)  # what changed meanwhile stays for the next read

    async def _pipeline(self) -> Pipeline:
        config = await self._task.config()
        task = self._task
        return Pipeline(task.name, config, task.functions, timeout=self._function_timeout)

    async def _until_rung(self, seconds: float) -> None:
        client = self._task.link.client(blocking=True)
        key = self._task.key("bell")
        await self._task.link.outlast(
            lambda: client.execute_command("BLPOP", key, max(seconds, 0.01))
        )


def _seconds(due_ms: int) -> float:
    return _LONGEST_WAIT if due_ms < 0 else due_ms / 1000


def _by(size: int, flat: Sequence[Any]) -> Iterable[Sequence[Any]]:
    return (flat[at : at + size] for at in range(0, len(flat), size))

"""Reading a task: asking a custom is_valid_group, taking batches, waiting for what may come."""

import json
import logging
import math
import time
from typing import Any

from buffer.batch import SEEN, Batch, figures_of
from buffer.errors import LeaseLost
from buffer.link import deadline_in
from buffer.reading.pipeline import Pipeline
from buffer.reading.raw_groups import RawGroups
from buffer.reading.taking import Taking
from buffer.settings import TaskConfig
from buffer.task import Task
from ground.tasks import cancellations, heed_cancellation

log = logging.getLogger(__name__)

MOST_GROUPS = 4096  # in one batch: what a reader can hold at once
_CHUNK = 256  # groups that are judged at once
_LONGEST_WAIT = 5.0  # a reader that missed its ring looks again by itself


class Reader:
    """A reader takes the batches of one task."""

    def __init__(self, task: Task, *, function_timeout: float, longest_wait: float) -> None:
        self._task = task
        self._raw = RawGroups(task)
        self._function_timeout = function_timeout
        self._longest_wait = longest_wait
        self._warned = False

    async def take(
        self, groups: int | None, *, wait: float, lease: float | None, implicit: bool,
        max_bytes: int | None,
    ) -> Batch | None:  # fmt: skip
        """A batch of up to `groups` groups; waits for a first one up to `wait` seconds."""
        deadline, before = deadline_in(wait), cancellations()
        while True:
            heed_cancellation(before)
            batch, due = await self._take(groups, lease, implicit, max_bytes)
            left = deadline - time.monotonic()
            if batch is not None or left <= 0:
                return batch
            await self._until_rung(min(left, _LONGEST_WAIT, due))

    async def fetch(self, receipt: str) -> Batch:
        """A batch that was handed out, once more: its items as they were written, through the
        task's functions again. It is the same if these give the same for the same items."""
        task, key = self._task, self._task.batch_key(receipt)
        found = await task.link.command(
            "HMGET", key, "state", "discarded", "meta_info", "figures", "version", "oldest"
        )
        gids = await task.link.command("LRANGE", task.batch_groups_key(receipt), 0, -1)
        if found[0] not in (b"leased", b"consuming", b"consumed") or found[3] is None or not gids:
            raise LeaseLost(receipt)
        pipeline = self._pipeline(await task.config())
        ids = await self._raw.instance_ids(gids)
        raw = await self._raw.items(gids)
        starts = await self._raw.starts(gids)
        verdicts = await pipeline.process(
            [(instance_id, items, True, start)
             for instance_id, items, start in zip(ids, raw, starts, strict=True)],
            int(found[5]) if found[5] else None,
        )  # fmt: skip
        delivered = [
            (instance_id, verdict.items, start)
            for instance_id, verdict, start in zip(ids, verdicts, starts, strict=True)
            if verdict.fate == "delivered"
        ]
        figures = (
            json.loads(found[2]) if found[2] else figures_of(found[3].split(), pipeline.config)
        )
        groups = [(instance_id, items) for instance_id, items, _ in delivered]
        if not found[4]:
            return Batch(receipt, groups, json.loads(found[1]), figures)
        version = int(found[4])
        ages = tuple(version - start for _, _, start in delivered if start is not None)
        return Batch(receipt, groups, json.loads(found[1]), figures, version, ages)

    async def available(self, want: int) -> int:
        """Finished groups that wait, once a custom is_valid_group was asked."""
        if self._task.functions.is_valid_group is not None:
            pipeline = self._pipeline(await self._task.config(), self._longest_wait)
            await self._judge(pipeline, want)
        _, _, found = await self._task.call("sweep", 200, 0, 0)
        return int(found)

    async def wait_for(self, groups: int, seconds: float) -> None:
        """Wait until this many groups wait, or the time is over."""
        deadline = deadline_in(seconds)
        while await self.available(groups) < groups:
            left = deadline - time.monotonic()
            if left <= 0:
                return
            await self._until_rung(min(left, _LONGEST_WAIT))

    async def unreported(self) -> list[Any]:
        """Ids of groups that finished without data; the next batch reports them."""
        key = self._task.key("unreported")
        return [json.loads(id_) for id_ in await self._task.link.command("LRANGE", key, 0, -1)]

    async def told(self) -> dict[str, Any]:
        """The report of a read without data: those ids, if there are any, and the figures. The next
        batch reports both again."""
        ids = await self.unreported()
        if not ids:
            return {}
        config = await self._task.config()
        if self._task.functions.get_group_data_meta_info is not None:
            raw, _ = await self._raw.since_last_read()
            figures = await self._pipeline(config).meta_info(raw)
        else:
            seen = await self._task.link.command("HMGET", self._task.key("seen"), *SEEN)
            figures = figures_of(seen, config)
        return {**figures, "finished_groups": ids}

    async def _take(
        self, groups: int | None, lease: float | None, implicit: bool, max_bytes: int | None
    ) -> tuple[Batch | None, float]:
        config = await self._task.config()
        want = MOST_GROUPS if groups is None else min(groups, MOST_GROUPS)
        seconds = config.lease if lease is None else lease
        pipeline = self._pipeline(config, min(self._longest_wait, seconds / 2))
        if self._task.functions.is_valid_group is not None:
            await self._judge(pipeline, want)
        taking = Taking(
            self._task, self._raw, pipeline, seconds, implicit=implicit, max_bytes=max_bytes
        )
        batch, due = await taking.batch_of(want)
        if batch is None:
            await self._warn_of_validity()
        return batch, _LONGEST_WAIT if due < 0 else due / 1000

    async def _warn_of_validity(self) -> None:
        """Log once that groups wait for the verdict of a function that this process lacks."""
        if self._warned or self._task.functions.is_valid_group is not None:
            return
        if await self._task.link.command("EXISTS", self._task.key("changed")):
            self._warned = True
            log.warning(
                "groups wait for an is_valid_group that another process has: give this reader the "
                "same functions, or read from that process",
                extra={"task": self._task.name},
            )

    async def _judge(self, pipeline: Pipeline, want: int) -> None:
        """Ask a custom is_valid_group about the groups that changed since it last saw them."""
        key, start, ready = self._task.key("changed"), 0, 0
        while ready < want:
            gids = await self._task.link.command("ZRANGE", key, start, start + _CHUNK - 1)
            if not gids:
                return
            ids, raw = await self._raw.instance_ids(gids), await self._raw.items(gids)
            sizes = [len(items) for items in raw]  # the function may change the lists
            verdicts = await pipeline.judge(list(zip(ids, raw, strict=True)))
            args: list[Any] = []
            for gid, size, verdict in zip(gids, sizes, verdicts, strict=True):
                if verdict.fate == "unasked":
                    continue
                word = "valid" if verdict.fate == "delivered" else verdict.fate
                args += [gid, size, word, verdict.reason]
                ready += word == "valid"
            held = await self._task.call("judge", *args)
            if len(args) < 4 * len(gids):
                return  # the time is over
            start += len(gids) - int(held)  # what changed meanwhile stays for the next read

    def _pipeline(self, config: TaskConfig, within: float = math.inf) -> Pipeline:
        """A pipeline for a read that is over within this many seconds, custom functions and all."""
        task, limit = self._task, self._function_timeout
        return Pipeline(task.name, config, task.functions, timeout=limit, patience=within - limit)

    async def _until_rung(self, seconds: float) -> None:
        await self._task.link.rung(self._task.key("bell"), seconds)

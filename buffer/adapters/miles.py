"""A data buffer for miles' fully asynchronous rollouts, with its groups in Redis.

    --custom-async-data-buffer-path buffer.adapters.miles.DataBuffer

Finished groups outlive a crash of the trainer, and a policy on versions bounds how old they are.
"""

import asyncio
import contextlib
from importlib import import_module
from typing import Any

from buffer.adapters.leftover_groups import log_found
from buffer.adapters.samples import first_of, item_of, trajectory_of
from buffer.batch import Batch
from buffer.errors import BufferFull, LeaseLost
from buffer.rollout_buffer import RolloutBuffer
from buffer.settings import LONGEST, TaskConfig
from buffer.versions.policy import Policy
from ground import SettingError
from ground.settings import GroundSettings
from ground.tasks import cancellations, heed_cancellation

_TASK = "fully-async"
_WAIT = 30.0
_METRICS = "rollout/fully_async/"

Group = list[Any]


class DataBuffer:
    """miles' `DataBuffer`: `put` by its rollouts, `get` and `get_metrics` by its training steps.

    What is aborted, or gets older than `--max-weight-staleness`, goes to miles' handler of unused
    groups. `rollout_task_type` on `args` names the buffer's task.
    """

    def __init__(self, input: Any) -> None:
        settings = GroundSettings.load()
        if settings.redis_url is None:
            raise SettingError("PENSTOCK_REDIS_URL", "unset: name the Redis that keeps the groups")
        args = input.args
        self._args, self._unused = args, input.unused_handler_fn
        self._miles: Any = import_module("miles.rollout.fully_async_data_buffer")
        self._filters: Any = import_module("miles.rollout.filter_hub.base_types")
        self._sample: Any = import_module("miles.utils.types").Sample
        self._keeps = import_module("miles.utils.misc").load_function(
            args.dynamic_sampling_filter_path
        )
        self._policy = _policy_of(args)
        config = TaskConfig(
            group_size=args.n_samples_per_prompt, dialect="v1", late_window=0,
            group_timeout_seconds=LONGEST,
            max_buffer_size=self._policy.most_outstanding * args.n_samples_per_prompt,
        )  # fmt: skip
        task = getattr(args, "rollout_task_type", None) or _TASK
        self.buffer = RolloutBuffer(
            settings.redis_url.get_secret_value(), task, config, run=settings.run
        )
        self._prompts: dict[str, Group] = {}
        self._publishing = asyncio.Lock()
        self._first: int | None = None  # the version of miles' engines that was published first
        self._before = 0  # versions that earlier processes published
        self._version = -1
        self._unheard: list[Batch] = []  # whether they are acknowledged was not heard
        self._room = asyncio.Event()  # a group was taken, or dropped
        self._begin_metrics()

    async def put(self, input: Any) -> None:
        """Put a finished group into the buffer; waits while that is full."""
        before, group = cancellations(), input.group
        if not self._is_wanted(group, input.prompt_group):
            return
        made_by = self._versions_of(group)
        if made_by:
            await self._publish(max(made_by))  # engines have it, though no step has asked yet
        name = str(first_of(group[0]).group_index)
        self._prompts[name] = input.prompt_group
        await self._write([item_of(name, one, self._ours) for one in group], before)

    async def get(self, current_version: int | None = None, **_: Any) -> Any:
        """Take and acknowledge one group to train on: of the oldest version of the weights."""
        before = cancellations()
        if current_version is not None:
            await self._publish(int(current_version))
        while True:
            heed_cancellation(before)
            batch = self._unheard.pop() if self._unheard else await self.buffer.take(1, wait=_WAIT)
            if batch is not None and await self._is_acknowledged(batch):
                return self._got(batch)

    async def _is_acknowledged(self, batch: Batch) -> bool:
        """False if it went back meanwhile. A `get` that ends here leaves it to the next one: it may
        be consumed by now, and nobody else has it."""
        try:
            await self.buffer.ack(batch)
        except LeaseLost:
            return False
        except BaseException:
            self._unheard.append(batch)
            raise
        return True

    def get_metrics(self) -> dict[str, float]:
        """The figures since the last call."""
        found = {
            f"{_METRICS}queue_size": len(self._prompts),
            f"{_METRICS}aborted_groups_filtered": self._aborted,
            f"{_METRICS}stale_groups_filtered": self._stale,
            **self._gathered.collect(),
        }
        if self._ages:
            found[f"{_METRICS}avg_staleness"] = sum(self._ages) / len(self._ages)
            found[f"{_METRICS}max_staleness"] = max(self._ages)
        self._begin_metrics()
        return found

    def _begin_metrics(self) -> None:
        self._gathered = self._filters.MetricGatherer()
        self._aborted = self._stale = 0
        self._ages: list[int] = []

    def _is_wanted(self, group: Group, prompts: Group) -> bool:
        """Whether a group is neither aborted, nor dropped by miles' dynamic filter."""
        aborted = self._sample.Status.ABORTED
        if any(sample.status == aborted for sample in self._miles.iter_samples(group)):
            self._aborted += 1
            self._unused(prompts)
            return False
        verdict = self._filters.call_dynamic_filter(self._keeps, self._args, group)
        if not verdict.keep:
            self._gathered.on_dynamic_filter_drop(reason=verdict.reason)
        return bool(verdict.keep)

    async def _write(self, items: list[Any], cancelled_before: int) -> None:
        while True:
            heed_cancellation(cancelled_before)
            self._room.clear()
            try:
                await self.buffer.write_many(items)
            except BufferFull as full:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(full.retry_after):
                        await self._room.wait()
            else:
                return

    def _got(self, batch: Batch) -> Any:
        for name in batch.discarded:
            self._stale += 1
            if prompts := self._prompts.pop(str(name), None):
                self._unused(prompts)
        ((name, items),) = batch.groups
        self._ages += batch.ages
        self._room.set()
        group = [trajectory_of(self._sample, item) for item in items]
        return self._miles.DataBufferInput(
            prompt_group=self._prompts.pop(str(name), []), group=group
        )

    async def _publish(self, version: int) -> None:
        """miles' engines count updates of their weights from 1 in each process: what earlier ones
        published stays below."""
        async with self._publishing:
            lead = self._first is None
            if lead:
                await self._keep_policy()
                last = (await self.buffer.versions()).version or 0
                self._first, self._before = version, max(0, last - version)
            if version > self._version:
                # No older version begins again: nothing is kept for that.
                published = await self.buffer.publish(
                    self._before + version, saved=self._before + version, lead=lead
                )
                self._version = version
                if lead:
                    now = await self.buffer.versions()
                    log_found(self.buffer.task, published, now, resumes=False)
                if published.stale:
                    self._room.set()

    async def _keep_policy(self) -> None:
        policy = await self.buffer.policy()
        least = self._policy.groups_per_version
        if policy is None:
            await self.buffer.set_policy(self._policy)
        elif policy.groups_per_version < least:
            raise SettingError(
                "groups_per_version",
                f"{policy.groups_per_version} in the task's policy are fewer than the {least} that "
                "miles may train on before its weights change: raise it",
            )

    def _versions_of(self, group: Group) -> list[int]:
        said = (one for sample in self._miles.iter_samples(group) for one in sample.weight_versions)
        return [int(version) for version in said if str(version).isdecimal()]

    def _ours(self, weights: Any) -> int | None:
        return self._before + int(weights) if str(weights).isdecimal() else None


def _policy_of(args: Any) -> Policy:
    """miles begins the next step before it updates weights: a version may see one step more than
    `update_weights_interval`."""
    capacity = int(args.async_data_buffer_capacity_factor * args.rollout_batch_size)
    steps = getattr(args, "update_weights_interval", 1) + 1
    groups, age = max(1, capacity, steps * args.rollout_batch_size), args.max_weight_staleness
    if age is None:
        return Policy(groups_per_version=groups, max_age=0, when_old="keep")
    return Policy(groups_per_version=groups, max_age=age, depth=0, when_old="drop")

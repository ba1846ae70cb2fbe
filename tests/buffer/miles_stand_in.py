"""What the adapter uses of miles, and what calls it: from a checkout, or as a stand-in.

Engines are played: each answer is of the weights that they have by then.
"""

import asyncio
import enum
import importlib.util
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

BATCH, SIZE, MAX_AGE = 4, 2, 2
_UPSTREAM = (
    "miles.utils.types", "miles.rollout.filter_hub.base_types", "miles.rollout.base_types",
    "miles.rollout.fully_async_data_buffer", "miles.rollout.submission_scheduler",
    "miles.rollout.fully_async_rollout",
)  # fmt: skip
_PACKAGES = (
    "miles", "miles.utils", "miles.rollout", "miles.rollout.filter_hub",
    "miles.rollout.generate_utils", "miles.rollout.inference_rollout",
)  # fmt: skip


@dataclass
class Sample:
    class Status(enum.Enum):
        PENDING = "pending"
        COMPLETED = "completed"
        ABORTED = "aborted"

    group_index: int | None = None
    index: int | None = None
    prompt: str = ""
    response: str = ""
    label: str | None = None
    response_length: int = 0
    reward: float | None = None
    loss_mask: list[int] | None = None
    weight_versions: list[str] = field(default_factory=list)
    status: Status = Status.PENDING

    def to_dict(self) -> dict[str, Any]:
        return {**self.__dict__, "status": self.status.value}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Sample":
        return cls(**{**data, "status": cls.Status(data["status"])})

    def reset_for_retry(self) -> None:
        self.weight_versions, self.response_length, self.reward = [], 0, None
        self.status = self.Status.ABORTED


@dataclass
class DataBufferInput:
    prompt_group: list[Any]
    group: list[Any]


class MetricGatherer:
    def __init__(self) -> None:
        self._reasons: Counter[str] = Counter()

    def on_dynamic_filter_drop(self, reason: str | None) -> None:
        self._reasons[reason or ""] += 1

    def collect(self) -> dict[str, float]:
        return {f"rollout/dynamic_filter/drop_{why}": n for why, n in self._reasons.items()}


def iter_samples(group: list[Any]) -> Iterator[Any]:
    for one in group:
        yield from one if isinstance(one, list) else [one]


def call_dynamic_filter(keeps: Callable[..., Any] | None, *said: Any) -> Any:
    return keeps(*said) if keeps else SimpleNamespace(keep=True, reason=None)


class Rollouts:
    """As miles' `FullyAsyncRolloutFn`: a worker that puts, a step that gets."""

    def __init__(self, input: Any) -> None:
        self.args, self.data_source = input.args, input.data_source
        self._worker: asyncio.Task[None] | None = None
        self._output: Any = None

    async def __call__(self, input: Any) -> Any:
        if self._worker is None:
            module, _, name = self.args.custom_async_data_buffer_path.rpartition(".")
            buffer = getattr(importlib.import_module(module), name)
            self._output = buffer(SimpleNamespace(args=self.args, unused_handler_fn=self._recycle))
            self._worker = asyncio.create_task(self._work())
        found: list[Any] = []
        while len(found) < self.args.rollout_batch_size:
            got = asyncio.create_task(self._output.get(current_version=input.weight_version))
            done, _ = await asyncio.wait(
                {got, self._worker}, return_when=asyncio.FIRST_COMPLETED, timeout=30
            )
            if self._worker in done:
                self._worker.result()
            found.append((await got).group)
        return SimpleNamespace(samples=found, metrics=self._output.get_metrics())

    async def _work(self) -> None:
        make = sys.modules["miles.rollout.inference_rollout.inference_rollout_common"]
        active: set[asyncio.Task[Any]] = set()
        while True:
            while len(active) < self.args.rollout_batch_size:
                (prompts,) = self.data_source.get_samples(1)
                active.add(asyncio.create_task(self._made(make, prompts)))
            done, active = await asyncio.wait(active, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                await self._output.put(task.result())

    async def _made(self, make: Any, prompts: list[Any]) -> DataBufferInput:
        group = await make.generate_and_rm_group(None, prompts, {}, False)
        return DataBufferInput(prompts, group)

    def _recycle(self, prompts: list[Any]) -> None:
        for sample in prompts:
            sample.reset_for_retry()
        self.data_source.add_samples([prompts])


class Engines:
    """Every eighth prompt takes as long as it takes for `updates` to be three more."""

    def __init__(self) -> None:
        self.updates = 1
        self.made: Counter[int] = Counter()

    async def make(
        self, state: Any, group: list[Any], *_: Any,
        sample_done_callback: Callable[[], None] | None = None, **__: Any,
    ) -> list[Any]:  # fmt: skip
        began, slow = self.updates, group[0].group_index % 8 == 0
        await asyncio.sleep(0.01)
        slow = slow and not self.made[group[0].group_index]
        while slow and self.updates < began + 3:  # noqa: ASYNC110 - played
            await asyncio.sleep(0.01)
        self.made[group[0].group_index] += 1
        for sample in group:
            sample.weight_versions = [str(began), str(self.updates)]
            sample.response_length, sample.reward = 3, 1.0
            sample.status = type(sample.status)("completed")
            if sample_done_callback is not None:
                sample_done_callback()
        return group


class Prompts:
    """Recycled ones first."""

    def __init__(self, sample: Any) -> None:
        self._sample, self._next = sample, 0
        self.recycled: list[int] = []
        self._back: list[list[Any]] = []

    def get_samples(self, _: int) -> list[list[Any]]:
        if self._back:
            return [self._back.pop(0)]
        group, self._next = self._next, self._next + 1
        return [[self._sample(group_index=group, index=group * SIZE + n, prompt="p")
                 for n in range(SIZE)]]  # fmt: skip

    def add_samples(self, groups: list[list[Any]]) -> None:
        self.recycled += [group[0].group_index for group in groups]
        self._back += groups


def arguments(**more: Any) -> SimpleNamespace:
    return SimpleNamespace(**{
        "rollout_batch_size": BATCH, "n_samples_per_prompt": SIZE, "max_weight_staleness": MAX_AGE,
        "async_data_buffer_capacity_factor": 2.0, "async_unused_samples_handler": "retry",
        "dynamic_sampling_filter_path": None, "rollout_sample_filter_path": None,
        "custom_async_data_buffer_path": "buffer.adapters.miles.DataBuffer",
        "async_max_concurrent_samples": None, "rollout_global_dataset": True,
        "rollout_submission_granularity": None, "update_weights_interval": 1, **more,
    })  # fmt: skip


def install(enter: Callable[[str, ModuleType], None], engines: Engines, source: str) -> Any:
    """Enter whatever of miles is imported; returns its class of rollouts."""

    def module(name: str, **names: Any) -> None:
        made: Any = ModuleType(name)
        made.__path__ = []
        made.__dict__.update(names)
        enter(name, made)

    for name in _PACKAGES:
        module(name)
    module("miles.utils.misc", load_function=_loaded)
    state = SimpleNamespace(sampling_params={})
    module(
        "miles.rollout.inference_rollout.inference_rollout_common",
        GenerateState=lambda _: state, generate_and_rm_group=engines.make,
    )  # fmt: skip
    if not source:
        module("miles.utils.types", Sample=Sample)
        module(
            "miles.rollout.filter_hub.base_types",
            MetricGatherer=MetricGatherer, call_dynamic_filter=call_dynamic_filter,
        )  # fmt: skip
        module(
            "miles.rollout.fully_async_data_buffer",
            DataBufferInput=DataBufferInput, iter_samples=iter_samples,
        )  # fmt: skip
        return Rollouts
    module("numpy", ndarray=list)
    module("torch", Tensor=list, Size=list, dtype=str)
    module("miles.rollout.data_source", DataSource=Prompts)
    module("miles.rollout.inference_rollout.inference_rollout_eval", run_eval_datasets=None)
    told = {"reward_log_summary": str, "sample_text_preview": str}
    module("miles.rollout.generate_utils.sample_utils", **told)
    for name in _UPSTREAM:
        file = (Path(source) / name.replace(".", "/")).with_suffix(".py")
        spec: Any = importlib.util.spec_from_file_location(name, file)
        found = importlib.util.module_from_spec(spec)
        enter(name, found)
        spec.loader.exec_module(found)
    return sys.modules["miles.rollout.fully_async_rollout"].FullyAsyncRolloutFn  # type: ignore[attr-defined]


def _loaded(path: str | None) -> Any:
    if path is None:
        return None
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)

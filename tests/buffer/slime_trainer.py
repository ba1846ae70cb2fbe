"""slime's asynchronous training loop with our adapter, as a process to be killed.

    python -m tests.buffer.slime_trainer FOLDER STEPS [SLIME]

Without SLIME, a checkout, slime is a stand-in of what the adapter uses. With it the data source,
the samples and the fully asynchronous worker are slime's own. Engines and trainer are played.
FOLDER/trained has a line for each step: what was trained on, and by which weights it was made.
"""

import asyncio
import copy
import enum
import importlib.util
import json
import queue
import random
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from tests.buffer.ledger import going_on, note

BATCH, SIZE, SAVE_EVERY, MAX_AGE = 4, 2, 3, 3
_UPSTREAM = {
    "slime.utils.types": "slime/utils/types.py",
    "slime.rollout.data_source": "slime/rollout/data_source.py",
    "slime.rollout.fully_async_rollout": "slime/rollout/fully_async_rollout.py",
}


class Engines:
    """One model: half of the groups are aborted once, and it knows how often it got weights."""

    updates = 0

    async def make(self, args: Any, group: list[Any], **_: Any) -> list[Any]:
        await asyncio.sleep(random.uniform(0, 0.05))
        aborted = random.random() < 0.5
        for sample in group:
            if sample.status.value in ("completed", "truncated"):
                continue
            assert sample.status.value in ("pending", "aborted")
            assert sample.response_length == 3 * len(sample.weight_versions)
            sample.tokens = [*sample.tokens, *[sample.group_index] * 3]
            sample.response_length += 3
            sample.rollout_log_probs = [-0.25] * sample.response_length
            sample.weight_versions = [*sample.weight_versions, str(self.updates)]
            sample.status = type(sample.status)("aborted" if aborted else "completed")
            sample.reward = None if aborted else 1.0
        return group


def module(name: str, **names: Any) -> ModuleType:
    """A package of that name, with these in it."""
    made: Any = ModuleType(name)
    made.__path__ = []
    made.__dict__.update(names)
    sys.modules[name] = made
    return made


def install(engines: Engines, slime: str) -> None:
    """Whatever of slime is imported, from a checkout or from here."""
    for name in ("slime", "slime.utils", "slime.rollout"):
        module(name)
    if not slime:
        module("slime.utils.types", Sample=Sample)
        module("slime.rollout.data_source", RolloutDataSource=Prompts)
        module(
            "slime.rollout.fully_async_rollout", AsyncRolloutWorker=Worker,
            get_rollout_num_engines=lambda args: 1, generate_and_rm_group=engines.make,
        )  # fmt: skip
        return
    module("torch", Tensor=Sample, dtype=Sample, Size=Sample, save=_save, load=_load)
    module("slime.utils.misc", decode_int32_meta_array=None, load_function=None)
    module("slime.utils.data", Dataset=Rows)
    module(
        "slime.utils.processing_utils",
        load_processor=lambda *a, **k: None, load_tokenizer=lambda *a, **k: None,
    )  # fmt: skip
    state = lambda args: SimpleNamespace(sampling_params={})  # noqa: E731
    module("slime.rollout.sglang_rollout", GenerateState=state, generate_and_rm_group=engines.make)
    module("slime.utils.async_utils", run=asyncio.run)
    module("slime.utils.http_utils", get_rollout_num_engines=lambda args: 1)
    for name, path in _UPSTREAM.items():
        spec: Any = importlib.util.spec_from_file_location(name, Path(slime) / path)
        sys.modules[name] = found = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(found)
    sys.modules["slime.utils.data"].__dict__["Dataset"] = Rows


def main() -> None:
    folder, steps, slime = Path(sys.argv[1]), int(sys.argv[2]), (sys.argv[3:] or [""])[0]
    engines = Engines()
    install(engines, slime)
    from buffer.adapters.slime import DataSource, generate_rollout

    if slime:
        sys.modules["slime.rollout.fully_async_rollout"].AsyncRolloutWorker.poll_interval = 0.01  # type: ignore[attr-defined]
    saved = folder / "saved"
    first = int(saved.read_text()) if saved.exists() else 0
    args = SimpleNamespace(
        n_samples_per_prompt=SIZE, rollout_batch_size=BATCH, max_weight_staleness=MAX_AGE,
        sglang_server_concurrency=64, update_weights_interval=1, rollout_global_dataset=True,
        prompt_data="prompts", hf_checkpoint="", dump_details=None, rollout_max_prompt_len=1,
        input_key="", multimodal_keys=None, label_key="", metadata_key="", tool_key="",
        apply_chat_template=False, apply_chat_template_kwargs={}, rollout_seed=1,
        rollout_shuffle=False, save=str(folder), load=str(folder),
    )  # fmt: skip
    source = DataSource(args)
    source.load(first - 1)
    engines.updates = 1
    with going_on(folder / "trained") as ledger:
        ahead = generate_rollout(args, first, source)
        for step in range(first, steps):
            groups = ahead
            if step + 1 < steps:
                ahead = generate_rollout(args, step + 1, source)
            row = {"step": step, "first": first, "groups": [_told(group) for group in groups]}
            ledger.write(json.dumps(row) + "\n")
            note(ledger)
            if (step + 1) % SAVE_EVERY == 0:
                source.save(step)
                saved.with_suffix(".new").write_text(str(step + 1))
                saved.with_suffix(".new").rename(saved)
            engines.updates += 1
    ledger_end = folder / "ended"
    ledger_end.touch()


def _told(group: list[Any]) -> dict[str, Any]:
    return {
        "group": group[0].group_index,
        "samples": [
            {"index": one.index, "tokens": one.tokens, "log_probs": one.rollout_log_probs,
             "weights": one.weight_versions, "status": one.status.value, "reward": one.reward}
            for one in group
        ],
    }  # fmt: skip


# The stand-in for slime, where there is no checkout.


@dataclass
class Sample:
    class Status(enum.Enum):
        PENDING = "pending"
        COMPLETED = "completed"
        TRUNCATED = "truncated"
        ABORTED = "aborted"

    group_index: int | None = None
    index: int | None = None
    tokens: list[int] = field(default_factory=list)
    response_length: int = 0
    reward: float | None = None
    loss_mask: list[int] | None = None
    weight_versions: list[str] = field(default_factory=list)
    rollout_log_probs: list[float] | None = None
    status: Status = Status.PENDING

    def to_dict(self) -> dict[str, Any]:
        return {**self.__dict__, "status": self.status.value}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Sample":
        return cls(**{**data, "status": cls.Status(data["status"])})


class Prompts:
    """Without an end; where it stands is in the checkpoint."""

    def __init__(self, args: Any) -> None:
        self._args = args
        self.sample_group_index = 0

    def get_samples(self, number: int) -> list[list[Sample]]:
        groups = []
        for _ in range(number):
            at = self.sample_group_index
            groups.append([Sample(at, at * SIZE + place) for place in range(SIZE)])
            self.sample_group_index += 1
        return groups

    def save(self, rollout_id: int) -> None:
        self._file(rollout_id).write_text(str(self.sample_group_index))

    def load(self, rollout_id: int) -> None:
        if self._file(rollout_id).exists():
            self.sample_group_index = int(self._file(rollout_id).read_text())

    def _file(self, rollout_id: int) -> Path:
        return Path(self._args.save) / f"prompts-{rollout_id}"


class Worker:
    """As slime's: asks for prompts, sends aborted groups back, and others to its queue."""

    def __init__(self, args: Any, data_buffer: Any, concurrency: int) -> None:
        self.args, self.data_buffer, self.concurrency = args, data_buffer, concurrency
        self.output_queue: queue.Queue[Any] = queue.Queue()
        self._running = True

    def start(self) -> None:
        threading.Thread(target=lambda: asyncio.run(self._loop()), daemon=True).start()

    def stop(self) -> None:
        self._running = False

    async def _loop(self) -> None:
        make = sys.modules["slime.rollout.fully_async_rollout"].generate_and_rm_group  # type: ignore[attr-defined]
        active: set[asyncio.Task[Any]] = set()
        while self._running:
            while len(active) < self.concurrency and (found := self.data_buffer.get_samples(1)):
                active.add(asyncio.create_task(make(self.args, found[0])))
            done = {task for task in active if task.done()}
            active -= done
            for task in done:
                group = task.result()
                if any(sample.status.value == "aborted" for sample in group):
                    self.data_buffer.add_samples([group])
                else:
                    self.output_queue.put((0, group))
            await asyncio.sleep(0.01)


# What slime's own files import, where there is a checkout.


class Rows:
    """A data set of as many prompts as anyone asks for."""

    def __init__(self, *_: Any, **__: Any) -> None:
        sample: Any = sys.modules["slime.utils.types"].Sample  # type: ignore[attr-defined]
        self.samples = [sample(prompt=str(n)) for n in range(10_000)]

    def __len__(self) -> int:
        return len(self.samples)


def _save(state: Any, path: str) -> None:
    Path(path).write_text(json.dumps(copy.deepcopy(state)))


def _load(path: str) -> Any:
    return json.loads(Path(path).read_text())


if __name__ == "__main__":
    main()

"""slime's fully asynchronous rollouts, with their groups in the buffer.

    --rollout-function-path buffer.adapters.slime.generate_rollout
    --data-source-path buffer.adapters.slime.DataSource

Prompts are begun under slots, aborted groups are parked, finished ones are written, and a training
step takes its batch: so a bound on versions holds, and a crash of the trainer loses no group.
"""

import atexit
import json
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from buffer.adapters.leftover_groups import log_found
from buffer.adapters.samples import (
    Known,
    first_of,
    item_of,
    known_of,
    trajectory_of,
    unpacked,
)
from buffer.default_functions import Item
from buffer.errors import SlotLost
from buffer.rollout_buffer import RolloutBuffer, SyncSlot
from buffer.settings import LONGEST, TaskConfig
from buffer.versions.policy import Policy
from ground import SettingError
from ground.settings import GroundSettings, load_named

log = logging.getLogger(__name__)

_SOURCE = "slime.rollout.data_source.RolloutDataSource"
_TASK = "fully-async"
_MAX_AGE = 4
_SLOT_LEASE = 30.0  # a trainer that was killed and started again waits so long for its groups
_WAIT = 30.0

Group = list[Any]


@dataclass
class _HeldGroup:
    """A group under way here: its slot, and what was parked of each of its items."""

    slot: SyncSlot
    segment: int
    known: dict[str, list[Known]]


Work = Callable[[_HeldGroup, list[Item]], None]


class DataSource:
    """slime's data source for `generate_rollout`; prompts come from slime's own.

    On `args`, or in slime's `--custom-config-path`:

    max_weight_staleness  the policy's `max_age`, where the task has no policy yet; 4 by default
    rollout_task_type     the buffer's task; `fully-async` by default
    """

    def __init__(self, args: Any) -> None:
        settings = GroundSettings.load()
        if settings.redis_url is None:
            raise SettingError("PENSTOCK_REDIS_URL", "unset: name the Redis that keeps the groups")
        self.args = args
        self._source: Any = load_named("--data-source-path", _SOURCE, {})(args)
        self._sample: Any = import_module("slime.utils.types").Sample
        size = args.n_samples_per_prompt
        config = TaskConfig(group_size=size, dialect="v1", group_timeout_seconds=LONGEST)
        task = getattr(args, "rollout_task_type", None) or _TASK
        self.buffer = RolloutBuffer(
            settings.redis_url.get_secret_value(), task, config, run=settings.run
        ).sync
        self._task = task
        self._keep_policy()
        self._guard = threading.Lock()
        self._held: dict[str, _HeldGroup] = {}
        self._prompts: dict[str, list[Item]] = {}
        self._drawn: deque[str] = deque()  # prompts that were not asked a slot for yet
        self._first: int | None = None
        self._version = 0
        self._saved = 0
        self.failure: Exception | None = None
        self._work: queue.SimpleQueue[tuple[Work, Group]] = queue.SimpleQueue()
        threading.Thread(target=self._do, name="penstock-slime", daemon=True).start()

    def get_samples(self, num_samples: int) -> list[Group]:
        """Groups, as many as the policy has room for now: parked ones first, then new prompts."""
        found: list[Group] = []
        with self._guard:
            try:
                while len(found) < num_samples and (group := self._next()):
                    found.append(group)
            except Exception as failure:
                self.failure = failure
                raise
        return found

    def add_samples(self, samples: list[Group]) -> None:
        """Aborted groups: the next process with room continues with them."""
        for group in samples:
            self._later(self._park, group)

    def finished(self, group: Group) -> None:
        """Write a finished group, to be trained on."""
        self._later(self._write, group)

    def publish(self, rollout_id: int) -> None:
        """The step `rollout_id` is to be trained. The first one of a process begins at a
        checkpoint: what was trained on since is trained on again."""
        lead = self._first is None
        if lead:
            self._first = self._saved = rollout_id
        self._version = rollout_id
        published = self.buffer.publish(rollout_id, saved=self._saved, lead=lead)
        if lead:
            now = self.buffer.versions()
            log_found(self._task, published, now, resumes=rollout_id > 0)

    def take(self, groups: int) -> list[Group]:
        """Take so many groups, by the policy. They count as trained on; a restart from a checkpoint
        before this step brings them back."""
        found: list[Group] = []
        while len(found) < groups:
            if self.failure is not None:
                raise self.failure
            batch = self.buffer.take(groups - len(found), wait=_WAIT)
            if batch is None:
                log.warning("no finished group yet", extra={"has": len(found), "of": groups})
                continue
            self.buffer.ack(batch)
            self._done({str(name) for name in batch.finished_groups})
            found += [[trajectory_of(self._sample, item) for item in items]
                      for _, items in batch.groups]  # fmt: skip
        return sorted(found, key=lambda group: _index_of(group[0]))

    def _done(self, names: set[str]) -> None:
        with self._guard:
            for name in names:
                self._prompts.pop(name, None)
            if names & set(self._drawn):  # begun before a kill, and not asked for again yet
                self._drawn = deque(name for name in self._drawn if name not in names)

    def save(self, rollout_id: int) -> None:
        """slime's own state, and the prompts that it has given and that are not trained on yet."""
        with self._guard:
            self._source.save(rollout_id)
            state = json.dumps({"drawn": list(self._drawn), "prompts": self._prompts})
        file = _drawn_file(self.args.save, rollout_id)
        file.parent.mkdir(parents=True, exist_ok=True)
        whole = file.with_suffix(".new")
        whole.write_text(state)
        whole.replace(file)
        self._saved = rollout_id + 1

    def load(self, rollout_id: int | None = None) -> None:
        self._source.load(rollout_id)
        folder = getattr(self.args, "load", None)
        if folder is not None and (file := _drawn_file(folder, rollout_id)).exists():
            state = json.loads(file.read_text())
            self._prompts |= state["prompts"]
            self._drawn.extend(state["drawn"])

    def __len__(self) -> int:
        return len(self._source)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_source"], name)

    def _keep_policy(self) -> None:
        policy = self.buffer.policy()
        batch = self.args.rollout_batch_size
        if policy is None:
            age = getattr(self.args, "max_weight_staleness", None)
            age = _MAX_AGE if age is None else age
            self.buffer.set_policy(
                Policy(groups_per_version=batch, max_age=age, slot_lease=_SLOT_LEASE)
            )
        elif policy.groups_per_version != batch:
            raise SettingError(
                "groups_per_version",
                f"{policy.groups_per_version} in the task's policy, and rollout_batch_size is "
                f"{batch}: make them equal",
            )

    def _next(self) -> Group | None:
        """The next group that may begin; None while there is no room."""
        while True:
            if not self._drawn:
                self._draw()
            wish = self._drawn[0]
            slots = self.buffer.admit(1, instances=[(wish, 0)])
            if not slots:
                return None
            (slot,) = slots
            name = None if slot.instance_id is None else str(slot.instance_id)
            if name in (
                None,
                wish,
            ):  # without a name it was begun before a kill, and comes by itself
                self._drawn.popleft()
            if name is None:
                slot.end()
            elif group := self._begun(name, slot):
                return group

    def _draw(self) -> int:
        (group,) = self._source.get_samples(1)
        name = str(group[0].group_index)
        self._prompts[name] = [item_of(name, sample, lambda _: None) for sample in group]
        self._drawn.append(name)
        return int(name)

    def _begun(self, name: str, slot: SyncSlot) -> Group | None:
        """A new prompt, or what there is of a group that somebody began. A prompt is parked at
        once, for the process that makes the group if this one dies."""
        while name not in self._prompts and not slot.partial and self._draw() < int(name):
            pass  # a process that was killed had drawn it, and this one has yet to
        size = self.args.n_samples_per_prompt
        whole = self.buffer.catalog.items(name, 0) if slot.missing < size else []
        known = {item["uid"] for item in whole}
        parts = slot.partial or self._prompts.get(name, [])
        parts = [part for part in parts if part["uid"] not in known]
        if len(whole) + len(parts) < size:
            log.warning("this process no longer knows the prompt", extra={"group": name})
            slot.end()
            return None
        if not slot.partial:
            slot.park(parts, go_on=True)
        self._held[name] = _HeldGroup(
            slot,
            max((part.get("segment", 0) for part in parts), default=0),
            {part["uid"]: known_of(part) for part in parts},
        )
        group = [unpacked(self._sample, item["sample"][0]) for item in [*whole, *parts]]
        return sorted(group, key=_index_of)

    def _later(self, work: Work, group: Group) -> None:
        """Do some work elsewhere than on slime's event loop, which may not wait."""
        self._work.put((work, group))

    def _do(self) -> None:
        while True:
            work, group = self._work.get()
            name = str(first_of(group[0]).group_index)
            try:
                held = self._held.pop(name, None)
                if held is None:
                    raise SlotLost(name)
                work(held, self._items(name, group, held))
            except SlotLost:
                log.warning("the slot of a group is over: it is made again", extra={"group": name})
            except Exception as failure:  # noqa: BLE001 - `take` raises it
                self.failure = failure

    def _park(self, held: _HeldGroup, items: list[Item]) -> None:
        segment = held.segment + 1
        held.slot.park([{**item, "segment": segment} for item in items])

    def _write(self, held: _HeldGroup, items: list[Item]) -> None:
        self.buffer.write_many(items, slot=held.slot)

    def _items(self, name: str, group: Group, held: _HeldGroup) -> list[Item]:
        return [
            item_of(name, one, self._version_of, held.known.get(str(first_of(one).index), ()))
            for one in group
        ]

    def _version_of(self, weights: Any) -> int | None:
        """slime's engines count updates of their weights from 1. The first holds the checkpoint,
        and each later one comes after a multiple of `update_weights_interval` steps."""
        if not str(weights).isdecimal() or self._first is None:
            return None
        updates = int(weights) - getattr(self.args, "update_weight_start_version", 0) - 1
        every = getattr(self.args, "update_weights_interval", 1)
        steps = (self._first // every + updates) * every if updates > 0 else self._first
        return min(steps, self._version)


class _Finished(queue.Queue[Any]):
    """A queue in place of slime's: groups go to the buffer. The policy bounds them, not their
    number here."""

    def __init__(self, source: DataSource) -> None:
        super().__init__()
        self._source = source

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        _, group = item
        self._source.finished(group)


_workers: dict[int, Any] = {}


def generate_rollout(
    args: Any, rollout_id: int, data_buffer: DataSource, evaluation: bool = False
) -> list[Group]:
    """slime's `--rollout-function-path`."""
    if evaluation:
        raise ValueError("fully asynchronous rollouts do not evaluate: set slime's own function")
    data_buffer.publish(rollout_id)
    if id(data_buffer) not in _workers:
        slime: Any = import_module("slime.rollout.fully_async_rollout")
        engines = slime.get_rollout_num_engines(args)
        worker = slime.AsyncRolloutWorker(
            args, data_buffer, concurrency=args.sglang_server_concurrency * engines
        )
        worker.output_queue = _Finished(data_buffer)
        worker.start()
        atexit.register(worker.stop)
        _workers[id(data_buffer)] = worker
    return data_buffer.take(args.rollout_batch_size)


def _drawn_file(folder: str, rollout_id: int | None) -> Path:
    return Path(folder) / "rollout" / f"penstock_prompts_{rollout_id}.json"


def _index_of(trajectory: Any) -> int:
    return int(first_of(trajectory).index or 0)

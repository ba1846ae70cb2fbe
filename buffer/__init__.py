"""The buffer keeps trajectories in Redis, in groups, until they are trained on. An item that was
stored is in one group. A group is delivered and acknowledged, or it is reported why not."""

from buffer.batch import Batch
from buffer.errors import (
    BufferFull,
    GeneratorError,
    ItemRefused,
    LeaseLost,
    NoPolicy,
    NotAdmitted,
    RolloutBufferError,
    RolloutReplaced,
    SlotLost,
    TrainerReplaced,
    UnknownTask,
)
from buffer.rollout_buffer import RolloutBuffer, SyncRolloutBuffer
from buffer.settings import TaskConfig
from buffer.versions.policy import Policy
from buffer.versions.publishing import Published, Versions
from buffer.versions.slots import Slot
from buffer.writer import Outcome

__all__ = [
    "Batch",
    "BufferFull",
    "GeneratorError",
    "ItemRefused",
    "LeaseLost",
    "NoPolicy",
    "NotAdmitted",
    "Outcome",
    "Policy",
    "Published",
    "RolloutBuffer",
    "RolloutBufferError",
    "RolloutReplaced",
    "Slot",
    "SlotLost",
    "SyncRolloutBuffer",
    "TaskConfig",
    "TrainerReplaced",
    "UnknownTask",
    "Versions",
]

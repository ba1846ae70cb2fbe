"""Trajectory groups in Redis."""

from buffer.batch import Batch
from buffer.errors import (
    BufferFull,
    GeneratorError,
    ItemRefused,
    LeaseLost,
    RolloutBufferError,
    RolloutReplaced,
    UnknownTask,
)
from buffer.group_functions import GroupFunctions
from buffer.rollout_buffer import RolloutBuffer
from buffer.settings import BufferSettings, TaskConfig
from buffer.sync_face import SyncRolloutBuffer
from buffer.writer import Outcome

__all__ = [
    "Batch",
    "BufferFull",
    "BufferSettings",
    "GeneratorError",
    "GroupFunctions",
    "ItemRefused",
    "LeaseLost",
    "Outcome",
    "RolloutBuffer",
    "RolloutBufferError",
    "RolloutReplaced",
    "SyncRolloutBuffer",
    "TaskConfig",
    "UnknownTask",
]

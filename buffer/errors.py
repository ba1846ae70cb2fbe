"""What can go wrong with a buffer.

PenstockError
└── RolloutBufferError     the base of this branch
    ├── ItemRefused        an item that could never be trained on; says why
    ├── BufferFull         no room now; says when to come back
    ├── UnknownTask        nobody started or configured that task in this run
    ├── LeaseLost          the batch went back before it was acknowledged
    ├── RolloutReplaced    items of a rollout that another start put an end to
    └── GeneratorError     a generator file that cannot be used; names the file
"""

from ground import PenstockError


class RolloutBufferError(PenstockError):
    """The base of what a rollout buffer raises on purpose."""


class ItemRefused(RolloutBufferError):
    """An item that is not stored, and never will be as it is."""

    def __init__(self, reason: str, *, too_large: bool = False) -> None:
        super().__init__(reason)
        self.too_large = too_large


class BufferFull(RolloutBufferError):
    """There is no room for another group; `retry_after` seconds say when to try again."""

    def __init__(self, task: str, retry_after: float) -> None:
        super().__init__(
            f"the buffer of task {task!r} is full: take batches faster, or raise "
            f"PENSTOCK_MAX_BUFFER_SIZE or PENSTOCK_MAX_BUFFER_BYTES; "
            f"try again in {retry_after:.1f} s"
        )
        self.retry_after = retry_after


class UnknownTask(RolloutBufferError):
    """No such task in this run."""

    def __init__(self, task: str, run: str) -> None:
        super().__init__(
            f"run {run!r} has no task {task!r}: POST /start_rollout with this task_type, "
            f"or PUT /v1/tasks/{task} with its group_size"
        )


class LeaseLost(RolloutBufferError):
    """The batch's lease ended and its groups went back, or it was never given out."""

    def __init__(self, receipt: str) -> None:
        super().__init__(
            f"batch {receipt} is no longer leased: its groups went back to be delivered again. "
            "Acknowledge sooner, extend the lease, or take with a longer one"
        )


class RolloutReplaced(RolloutBufferError):
    """The rollout that sent these items was replaced by a newer start of its task."""

    def __init__(self, task: str) -> None:
        super().__init__(f"another rollout of task {task!r} was started: stop this generator")


class GeneratorError(RolloutBufferError):
    """A generator file that cannot be used."""

"""The errors of a buffer.

PenstockError
└── RolloutBufferError     the base of this branch
    ├── ItemRefused        an item that could never be trained on; says why
    ├── BufferFull         no room now; says when to come back
    ├── UnknownTask        nobody started or configured that task in this run
    ├── LeaseLost          the batch went back before it was acknowledged
    ├── RolloutReplaced    items of a rollout that another start put an end to
    ├── NoPolicy           versions and slots of a task that has no policy
    ├── NotAdmitted        no slot within the time that was waited
    ├── SlotLost           a slot is over, and its group is another's to make
    ├── TrainerReplaced    a version from a trainer that does not publish the task's versions
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
    """The batch's lease ended and its groups went back, or Redis knows of no such batch."""

    def __init__(self, receipt: str) -> None:
        super().__init__(
            f"batch {receipt} is no longer leased, and its groups are delivered again. Either its "
            "lease ended: acknowledge sooner, extend it, or take with a longer one. Or Redis lost "
            "its newest writes, and the take with them"
        )


class RolloutReplaced(RolloutBufferError):
    """The rollout that sent these items was replaced by a newer start of its task."""

    def __init__(self, task: str) -> None:
        super().__init__(f"another rollout of task {task!r} was started: stop this generator")


class NoPolicy(RolloutBufferError):
    """Versions and slots need a policy."""

    def __init__(self, task: str) -> None:
        super().__init__(
            f"task {task!r} has no policy on versions: set_policy(Policy(...)), or "
            f"PUT /v1/tasks/{task}/policy with groups_per_version and max_age"
        )


class NotAdmitted(RolloutBufferError):
    """No slot came free in time."""

    def __init__(self, task: str, waited: float, version: int) -> None:
        super().__init__(
            f"no slot of task {task!r} within {waited:g} s: {why_not_admitted(version)}. "
            "Wait longer; buffer.versions() shows what is under way"
        )


def why_not_admitted(version: int) -> str:
    """The reason why there is no slot at this version; -1 is before the first."""
    if version < 0:
        return "no version was published yet"
    return f"all groups that may be under way at version {version} are"


class SlotLost(RolloutBufferError):
    """The slot is over."""

    def __init__(self, slot: str) -> None:
        super().__init__(
            f"slot {slot} is over: its lease ended, or its group got too old. Its group is "
            "another's to make; stop this one, and ask for another slot"
        )


class TrainerReplaced(RolloutBufferError):
    """Another trainer publishes this task's versions."""

    def __init__(self, task: str, version: int) -> None:
        super().__init__(
            f"another trainer publishes the versions of task {task!r}, the last is {version}. "
            'A trainer that takes over publishes with lead=True, over HTTP with "lead": true'
        )


class GeneratorError(RolloutBufferError):
    """A generator file that cannot be used."""

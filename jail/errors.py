"""The errors around running a program, as one tree.

    PenstockError
    ├── RequestRefused          the request cannot be run as it stands; refused at the door
    ├── SandboxError            the embedded sandbox cannot serve
    │   ├── SandboxUnavailable  this machine cannot isolate as asked; says what is missing
    │   └── LimitRefused        a limit beyond its cap, or without sense
    └── SandboxFailure          the sandbox failed, not the program: masked, never a reward of 0
        ├── SandboxBusy         it has no room now; ask again, after `retry_after` if it said so
        ├── SandboxUnreachable  no connection, or one that was cut
        ├── SandboxTimeout      no whole answer before the deadline
        ├── SandboxBroken       it answered, and the answer is no outcome
        └── SandboxUnfit        it cannot serve us as it is set up; asking again changes nothing

A program that crashes, exits non-zero or runs out of time raises nothing: that
is a `CodeResult`.
"""

from typing import Any, ClassVar

from ground.errors import PenstockError


class RequestRefused(PenstockError):
    """The request cannot be run as it stands."""


class SandboxError(PenstockError):
    """The embedded sandbox cannot serve. `reason` is a word for machines."""

    reason = "refused"


class SandboxUnavailable(SandboxError):
    """This machine does not offer the requested level. `remedy` says what to do."""

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__(f"{problem}. {remedy}" if remedy else problem)
        self.problem = problem
        self.remedy = remedy


class LimitRefused(SandboxError):
    """A limit of a request is not one that can be given."""


class SandboxFailure(PenstockError):
    """The sandbox failed to run a program. One attempt; its caller decides on more.

    `reason` is for machines and metrics. `may_be_running`: the program may have
    begun, and may use the sandbox until its own time limit, though nobody waits.
    `result` is what the sandbox reported, where it reported anything.
    """

    retryable: ClassVar[bool] = True

    def __init__(
        self,
        problem: str,
        *,
        reason: str,
        retry_after: float | None = None,
        may_be_running: bool = False,
        result: Any = None,  # a `CodeResult`, whose room knows these errors
    ) -> None:
        super().__init__(problem)
        self.reason = reason
        self.retry_after = retry_after
        self.may_be_running = may_be_running
        self.result = result


class SandboxBusy(SandboxFailure):
    """The sandbox has no room for the program now."""


class SandboxUnreachable(SandboxFailure):
    """No connection could be made, or it was cut before the answer was complete."""


class SandboxTimeout(SandboxFailure):
    """No whole answer came before the deadline."""


class SandboxBroken(SandboxFailure):
    """The sandbox answered, and the answer is not the outcome of a program."""


def unreadable(why: str) -> SandboxBroken:
    """The error for an answer that no sandbox would give."""
    return SandboxBroken(why, reason="unreadable")


class SandboxUnfit(SandboxFailure):
    """The sandbox, as it is set up, cannot serve this request."""

    retryable = False

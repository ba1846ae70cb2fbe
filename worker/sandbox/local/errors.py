"""What the embedded sandbox raises. A program's own failure is an outcome, never one of these.

PenstockError
└── SandboxError
    ├── SandboxUnavailable   this machine cannot isolate as asked; says what is missing
    └── LimitRefused         a limit beyond its cap, or without sense
"""

from ground.errors import PenstockError


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

"""How a sandbox reads the cases of a suite: one at a time, the next ones on their way already."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from jail.judge.models import JudgeCase


@dataclass(frozen=True, slots=True)
class Case:
    """A case as the sandbox needs it. What is expected never enters a jail."""

    input: bytes = b""
    expected: tuple[bytes, ...] | None = None  # any of these is right; None: to return 0 is enough
    check: str = ""  # code that is put behind the program


class Suite(Protocol):
    """The cases of one problem, in order.

    Ask from one event loop, in rising order: asking for a case starts to fetch the one or two
    after it. Nothing is fetched that nobody comes near.
    """

    def __len__(self) -> int: ...

    async def case(self, index: int) -> Case:
        """Fetch one case. A `SandboxFailure` says that it cannot be had; the case is masked
        then."""

    async def close(self) -> None:
        """Stop what is being fetched. Harmless when repeated."""


class InlineSuite:
    """Cases that are here already."""

    def __init__(self, cases: Sequence[Case]) -> None:
        self._cases = cases

    @classmethod
    def of(cls, cases: Sequence[JudgeCase]) -> "InlineSuite":
        return cls([case_of(case) for case in cases])

    def __len__(self) -> int:
        return len(self._cases)

    async def case(self, index: int) -> Case:
        return self._cases[index]

    async def close(self) -> None:
        """There is nothing to stop."""


def case_of(given: JudgeCase) -> Case:
    """A case as bytes."""
    expected = given.expected
    answers = [expected] if isinstance(expected, str) else expected
    as_bytes = None if answers is None else tuple(answer.encode() for answer in answers)
    return Case(given.input.encode(), as_bytes, given.check)

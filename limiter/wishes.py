"""What callers want of a gate: a permit, or an answer."""

import math

from limiter.answers import Answer
from limiter.commands import Command
from limiter.permit import Lease

NEVER = math.inf
_BENEFIT_OF_DOUBT = 2.0  # seconds: a busy machine may not have run our thread for a while


class Ask:
    """One caller's wish for a permit."""

    __slots__ = (
        "answer", "began", "deadline", "given_up", "hold_us", "id", "lane", "lease", "score",
        "sent",
    )  # fmt: skip

    def __init__(
        self,
        id: str,
        answer: Answer,
        *,
        began: float,
        deadline: float,
        lane: int,
        hold_us: int,
        score: str = "",
    ) -> None:
        self.id = id
        self.answer = answer
        self.began = began
        self.deadline = deadline
        self.lane = lane
        self.hold_us = hold_us
        self.score = score
        self.sent = 0.0  # when first
        self.lease: Lease | None = None
        self.given_up = False

    def patience(self, now: float) -> float | None:
        """Seconds after which the caller stops believing that the engine will answer."""
        return None if self.deadline == NEVER else self.deadline - now + _BENEFIT_OF_DOUBT


class Call:
    """A question or change out of turn: status, configure, the renewal of one lease."""

    __slots__ = ("answer", "command", "deadline", "lease")

    def __init__(
        self,
        command: Command,
        answer: Answer,
        deadline: float,
        lease: Lease | None = None,
    ) -> None:
        self.command = command
        self.answer = answer
        self.deadline = deadline
        self.lease = lease

"""One connection of an `AsyncWire`, with what was asked on it and is not answered yet."""

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Any

from worker.quick_replies import QuickReplies

Command = tuple[Any, ...]
Question = tuple[Command, "asyncio.Future[Any]", float]  # and when it was asked


class WireLine:
    def __init__(self) -> None:
        self.connection: Any = None
        self.asked: deque[Question] = deque()
        self.replies: QuickReplies | None = None
        self.heard_at = 0.0  # by the loop's clock
        self.watched = False
        self.overdue: Question | None = None
        self.reading: asyncio.Task[None] | None = None  # where replies are not read quickly

    @property
    def due_since(self) -> float:
        """Since when the server owes the next reply; it answers one question after the other."""
        return max(self.asked[0][2], self.heard_at)


def refuse(questions: Iterable[Question], failure: BaseException) -> None:
    """Who asked these is told why there is no answer."""
    for _, answer, _ in questions:
        if not answer.done():
            answer.set_exception(failure)

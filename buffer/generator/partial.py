"""A trajectory under way: what there is of it, which versions made it, and whether to stop.

What was interrupted is parked with its group. The holder of the group's next slot continues it.
"""

import multiprocessing
import signal
from typing import Any

from buffer.spans import joined, spans_of

PARTIAL = "partial"  # an item's status
# Our own fields of a question, beside those of its line. A data set may have a column `tries`.
HELD, PARKED, TRIES = OURS = "penstock.held", "penstock.parked", "penstock.tries"


class Interrupted(Exception):
    """A rollout stops here; its `Partial` has what there is."""


class Signals:
    """A generator's processes share these signals: the newest version, and how often they were
    interrupted.

    Without locks: a process that is killed would take one with it.
    """

    def __init__(self, *, on_publish: bool = False) -> None:
        context: Any = multiprocessing.get_context("fork")
        self._newest = context.Value("q", -1, lock=False)
        self._interrupts = context.Value("q", 0, lock=False)
        self._on_publish = on_publish

    @property
    def newest(self) -> int:
        """The newest version that is known here."""
        return int(self._newest.value)

    @property
    def interrupts(self) -> tuple[int, int]:
        """A counter that differs from before once there is a reason to stop."""
        return int(self._interrupts.value), self.newest if self._on_publish else 0

    def published(self, version: int) -> None:
        self._newest.value = version

    def interrupt(self) -> None:
        self._interrupts.value += 1


def leave_interrupts_to_the_parent() -> None:
    """Ctrl-C reaches all processes of a terminal. The parent ends the others, or parks their work.

    A handler and not SIG_IGN, which programs that a rollout function starts would inherit.
    """
    signal.signal(signal.SIGINT, lambda *_: None)


class Partial:
    """A partial is the beginning of one trajectory; a rollout function that takes a `partial` gets
    one.

    It begins with `messages`, if there are any. It adds what the model says, and raises
    `Interrupted` when `interrupted` is true. Without a slot it is never interrupted.

    messages   the conversation so far, an unfinished answer at its end; empty at the beginning
    versions   of the tokens that the model said, as [[tokens, version], …]
    log_probs  of these tokens, as the engine gave them
    """

    def __init__(
        self, parked: dict[str, Any] | None = None, signals: Signals | None = None
    ) -> None:
        parked = parked or {}
        self._signals = signals
        self._begun = signals.interrupts if signals else None
        self._segment = int(parked.get("segment", 0))
        self.messages: list[dict[str, Any]] = list(parked.get("messages", ()))
        self.versions: list[list[int]] = joined(spans_of(parked))
        self.log_probs: list[float] = list(parked.get("rollout_log_probs", ()))

    @property
    def text(self) -> str | None:
        """The unfinished answer; None before the model said anything."""
        last = self.messages[-1] if self.messages else {}
        return last.get("content") if last.get("role") == "assistant" else None

    @property
    def tokens(self) -> int:
        """How many the model said."""
        return sum(tokens for tokens, _ in self.versions)

    @property
    def newest(self) -> int:
        """The newest version: what is asked of the engine now is made by it, or by a later one."""
        return self._signals.newest if self._signals else -1

    @property
    def interruptible(self) -> bool:
        return self._signals is not None

    @property
    def interrupted(self) -> bool:
        return self._signals is not None and self._signals.interrupts != self._begun

    def add(
        self,
        messages: list[dict[str, Any]],
        tokens: int,
        version: int,
        log_probs: list[float] | None = None,
    ) -> None:
        """The conversation is this now, with so many more tokens of the model."""
        self.messages = messages
        self.versions = joined(spans_of({"versions": self.versions}), [(tokens, version)])
        self.log_probs += log_probs or []

    def fields(self) -> dict[str, Any]:
        """The fields for the item: the spans, and log-probabilities if there is one for every
        token."""
        found: dict[str, Any] = {"versions": self.versions} if self.tokens else {}
        if self.log_probs and len(self.log_probs) == self.tokens:
            found["rollout_log_probs"] = self.log_probs
        return found

    def item(self, question: dict[str, Any]) -> dict[str, Any]:
        """The item to be parked; without messages while there is nothing to continue with."""
        return {
            "uid": question["uid"], "instance_id": question["instance_id"],
            "round_number": question["round"], "messages": self.messages, "status": PARTIAL,
            "segment": self._segment + 1, **question[HELD], **self.fields(),
        }  # fmt: skip

"""A trajectory is the end of a rollout: the conversation, why it ended, what it earned, and what it
took. rollout.py and exact.py decide whether it is masked."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from worker.rollout.request import Message, RolloutRequest

_PARTIAL = ("messages", "versions", "answers", "unfinished", "seq_len")


class StopReason(StrEnum):
    """The reason why a trajectory ended."""

    STOP = "stop"
    """The model had no more to say."""
    LENGTH = "length"
    """One answer reached its `max_tokens`."""
    MAX_SEQ_LEN = "max_seq_len"
    """The whole is as long as it may be, or the prompt was already."""
    MAX_TURNS = "max_turns"
    INTERRUPTED = "interrupted"
    """By `Rollout.interrupt()`, or by the engine; `Rollout.run` continues with its `partial()`."""
    FAILURE = "failure"
    """Something on our side failed; the trajectory is masked, for its `exit_reason`."""


class Masked(Exception):
    """This trajectory has no outcome, through no fault of the model."""


@dataclass
class CallMetrics:
    """A call of a tool. `refused`: it never ran, because the model wrote it wrongly."""

    tool: str
    seconds: float = 0.0
    refused: bool = False
    reward: float | None = None
    metrics: dict[str, Any] = field(default_factory=dict)


@dataclass
class TurnMetrics:
    """An answer of the model, and the calls in it."""

    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    model_seconds: float
    tool_seconds: float = 0.0
    calls: list[CallMetrics] = field(default_factory=list)


@dataclass(frozen=True)
class Row:
    """Exact tokens: one line of turns, in which every prompt continues the one before, id by id.

    The `response_length` last of the `ids` stand behind the first prompt, and `mask`, `logprobs`
    and `versions` are of these. `mask` is 1 for what is trained on. `versions` is
    [[tokens, version], …]: -1 was not sampled, -2 was sampled by an unknown version.
    """

    ids: list[int]
    response_length: int
    mask: list[int]
    logprobs: list[float]
    versions: list[list[int]]
    masked: bool
    cause: str


@dataclass
class Trajectory:
    """A trajectory; `score` is None if it is masked, or nobody was asked for one."""

    request: RolloutRequest
    messages: list[Message]
    stop_reason: StopReason = StopReason.STOP
    exit_reason: str = ""
    turns: list[TurnMetrics] = field(default_factory=list)
    seq_len: int = 0
    score: float | None = None
    reward_scores: dict[str, Any] = field(default_factory=dict)
    """What each tool's `calc_reward` said at the end."""
    versions: list[list[int]] = field(default_factory=list)
    """Of all its tokens in order, as [[tokens, version], …]; -1 if no version made them. Only
    where the rollout was given a `version`."""
    answers: int = 0
    """How often the model spoke to an end; before it was interrupted, too."""
    unfinished: bool = False
    """The last message is an answer that was broken off."""
    rows: list[Row] = field(default_factory=list)
    """By a gateway: its exact tokens. A sub-conversation, or an edit, begins another row."""

    @property
    def exact(self) -> bool:
        """Whether it has the ids that were sampled. Text alone is not enough to train on policy."""
        return bool(self.rows)

    @property
    def masked(self) -> bool:
        """The trajectory does not count: it failed, or was interrupted."""
        return self.stop_reason in (StopReason.FAILURE, StopReason.INTERRUPTED)

    def partial(self) -> dict[str, Any]:
        """The part that another `Rollout.run` of the request needs to continue with it, as JSON."""
        return {name: getattr(self, name) for name in _PARTIAL}

    def go_on(self, partial: Mapping[str, Any]) -> None:
        """Continue from what `partial()` gave."""
        if missing := [name for name in _PARTIAL if name not in partial]:
            raise ValueError(f"partial has no {', '.join(missing)}: it is what `partial()` gives")
        for name in _PARTIAL:
            setattr(self, name, copy.deepcopy(partial[name]))

    def made(self, prompt_tokens: int, answer_tokens: int, version: int) -> None:
        """The model has added this many tokens after that many; those between are the prompt's and
        the tools'."""
        known = sum(tokens for tokens, _ in self.versions)
        for tokens, maker in ((prompt_tokens - known, -1), (answer_tokens, version)):
            if self.versions and self.versions[-1][1] == maker:
                self.versions[-1][0] += max(0, tokens)
            elif tokens > 0:
                self.versions.append([tokens, maker])

    @property
    def answer(self) -> str:
        """The model's last words."""
        last = self.messages[-1]
        return str(last.get("content") or "") if last["role"] == "assistant" else ""

    @property
    def tool_rewards(self) -> list[float]:
        """The rewards that `execute` gave for single calls, in order."""
        calls = (call for turn in self.turns for call in turn.calls)
        return [call.reward for call in calls if call.reward is not None]

    def mask(self, reason: str, stop_reason: StopReason = StopReason.FAILURE) -> None:
        self.stop_reason, self.exit_reason, self.score = stop_reason, reason, None

    def sample(self) -> dict[str, Any]:
        """The fields that say to a trainer whether and how to count it."""
        fields: dict[str, Any] = {"reward_score": self.score or 0.0, "exact": self.exact}
        fields["traj_masked"] = int(self.masked)
        return fields | ({"traj_exit_reason": self.exit_reason} if self.masked else {})


CountTokens = Callable[[str], int]


def guess(text: str) -> int:
    """A quarter of its bytes: low for code and digits, and the server's count follows soon."""
    return len(text.encode("utf-8", "replace")) // 4


class TokenCount:
    """The length of one conversation, in tokens."""

    def __init__(self, count: CountTokens, limit: int | None, seq_len: int = 0) -> None:
        self._count = count
        self._limit = limit
        self.seq_len = seq_len

    @property
    def room(self) -> int | None:
        """Tokens that may still follow; None: as many as one likes."""
        return None if self._limit is None else self._limit - self.seq_len

    @property
    def full(self) -> bool:
        return self.room is not None and self.room <= 0

    def add(self, text: str) -> None:
        """Text that the server has not seen."""
        try:
            self.seq_len += self._count(text)
        except Exception as failure:
            raise Masked(f"count_tokens: {type(failure).__name__}: {failure}") from failure

    def counted(self, prompt_tokens: int, completion_tokens: int) -> None:
        """Take in the server's count of all it saw, and of its answer."""
        self.seq_len = prompt_tokens + completion_tokens

"""A question's trajectory, as upstream's generators write it: an item for the buffer.

A failure is one too, with a reward that marks it, so that its group still finishes.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from openai import OpenAI

FAILED_REWARD = -1

Question = dict[str, Any]
RolloutFunction = Callable[..., Any]
RewardFunction = Callable[[dict[str, Any]], float]


def answered(
    question: Question, client: "OpenAI", rollout: RolloutFunction, reward: RewardFunction,
    sampling: dict[str, Any],
) -> dict[str, Any]:  # fmt: skip
    said = rollout(client, question["prompt"], sampling)
    messages, reason = said if isinstance(said, tuple) else (said, None)
    if messages[-1].get("content") is None and not messages[-1].get("tool_calls"):
        return failed(question, "no attempt got an answer", messages)
    row = {**question, "messages": messages}
    row.pop("held", None)
    return _item(question, messages, reward(row), sampling, reason)


def _item(
    question: Question, messages: list[dict[str, Any]], reward: float,
    sampling: dict[str, Any], reason: str | None,
) -> dict[str, Any]:  # fmt: skip
    """As upstream writes it; `round_number` beside its five keys is the epoch's."""
    own = ("uid", "instance_id", "round", "tries", "held")
    row = {name: value for name, value in question.items() if name not in own}
    turns = sum(message["role"] == "assistant" for message in messages)
    return {
        "uid": question["uid"],
        "instance_id": question["instance_id"],
        "messages": messages,
        "reward": reward,
        "round_number": question["round"],
        **question.get("held", {}),
        "extra_info": {
            **row, "messages": messages, "rollout_index": 1, "reward": reward,
            "extra_info": {}, **sampling, "timestamp": str(time.time()),
            "round_number": turns, "finish_reason": reason,
        },
    }  # fmt: skip


def failed(
    question: Question, failure: str, messages: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    """A failure is stored like a success, with a reward that marks it."""
    asked = messages[:-1] if messages else list(question.get("prompt") or [])
    item = _item(
        question, [*asked, {"role": "assistant", "content": ""}], FAILED_REWARD, {}, "error"
    )
    item["extra_info"]["failure"] = failure
    return item

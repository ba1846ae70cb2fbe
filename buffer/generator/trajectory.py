"""A question's trajectory, as upstream's generators write it: an item for the buffer.

A failure is one too, with a reward that marks it, so that its group still finishes.
"""

import inspect
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from buffer.generator.partial import HELD, OURS, PARKED, Partial, Signals

if TYPE_CHECKING:
    from openai import OpenAI

FAILED_REWARD = -1

Question = dict[str, Any]
RolloutFunction = Callable[..., Any]
RewardFunction = Callable[[dict[str, Any]], float]


def partial_of(
    question: Question, rollout: RolloutFunction, signals: Signals | None
) -> Partial | None:
    """The partial of a question, for a function that takes one; None for a function that does
    not. Without `signals` it is never interrupted."""
    if "partial" not in inspect.signature(rollout).parameters:
        return None
    return Partial(question.get(PARKED), signals if HELD in question else None)


def answered(
    question: Question, client: "OpenAI", rollout: RolloutFunction, reward: RewardFunction,
    sampling: dict[str, Any], partial: Partial | None, session: dict[str, str],
) -> dict[str, Any]:  # fmt: skip
    more = {} if partial is None else {"partial": partial}
    said = rollout(client, question["prompt"], sampling, **more)
    messages, reason = said if isinstance(said, tuple) else (said, None)
    if messages[-1].get("content") is None and not messages[-1].get("tool_calls"):
        return failed(question, "no attempt got an answer", messages)
    row = {name: value for name, value in question.items() if name not in OURS}
    item = _item(question, messages, reward({**row, "messages": messages}), sampling, reason)
    item |= session
    if partial is not None and HELD in question:
        item |= partial.fields()
        begun = [version for _, version in partial.versions if version >= 0]
        item["version_start"] = min([item["version_start"], *begun])
    return item


def _item(
    question: Question, messages: list[dict[str, Any]], reward: float,
    sampling: dict[str, Any], reason: str | None,
) -> dict[str, Any]:  # fmt: skip
    """The item as upstream writes it; `round_number` beside its five keys is the epoch's. It has
    text and no ids, so it is not `exact`: nobody can train on it on policy. A gateway adds them."""
    own = ("uid", "instance_id", "round", *OURS)
    row = {name: value for name, value in question.items() if name not in own}
    turns = sum(message["role"] == "assistant" for message in messages)
    return {
        "uid": question["uid"],
        "instance_id": question["instance_id"],
        "messages": messages,
        "reward": reward,
        "round_number": question["round"],
        "exact": False,
        **question.get(HELD, {}),
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
    asked = messages[:-1] if messages else _asked(question.get("prompt"))
    item = _item(
        question, [*asked, {"role": "assistant", "content": ""}], FAILED_REWARD, {}, "error"
    )
    item["extra_info"]["failure"] = failure
    return item


def _asked(prompt: Any) -> list[dict[str, Any]]:
    """A prompt as messages; the rollout function may take it in another form, or be given none."""
    said = list(prompt) if isinstance(prompt, list | tuple) else []
    if prompt and not (said and all(isinstance(one, dict) and "role" in one for one in said)):
        return [{"role": "user", "content": prompt}]
    return said

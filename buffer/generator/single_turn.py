"""One question to an OpenAI-compatible server, with partial rollouts.

While the trainer updates its weights the server aborts what is running. The text so
far is then sent back to be continued, and its tokens are taken off the budget.
"""

import copy
import logging
import random
import time
from typing import TYPE_CHECKING, Any

from ground.backoff import backoff

if TYPE_CHECKING:
    from openai import OpenAI

log = logging.getLogger(__name__)

ATTEMPTS = 6
ABORT_PAUSE = 10.0  # seconds; an update of the weights takes about that
ERROR_PAUSE = 1.0
_LONGEST_PAUSE = 30.0

Messages = list[dict[str, Any]]


def query_single_turn(
    client: "OpenAI",
    messages: Messages,
    sampling_params: dict[str, Any],
    tools: list[dict[str, Any]] | None = None,
) -> tuple[Messages, str | None]:
    """(messages with the answer, finish reason). The answer's content is None if all failed."""
    seed = random.randint(1, 10_000_000)
    text: str | None = None
    spent = 0
    reason: str | None = None
    for attempt in range(ATTEMPTS):
        payload = _payload(messages, sampling_params, tools, seed, text, spent)
        if payload.get("max_tokens") == 0:
            break
        response = _asked(client, payload, attempt)
        if response is None:
            continue
        choice = response.choices[0]
        # The seam is exact: a continuation carries only what is new.
        if choice.message.content is not None:
            text = (text or "") + choice.message.content
        reason = choice.finish_reason
        if reason != "abort":
            break
        spent += response.usage.completion_tokens if response.usage else 0
        log.info("query aborted", extra={"attempt": attempt + 1, "tokens": spent})
        _pause(ABORT_PAUSE, attempt)
    return [*_without_answer(messages), {"role": "assistant", "content": text}], reason


def _asked(client: "OpenAI", payload: dict[str, Any], attempt: int) -> Any:
    """The server's answer; None after a pause where it gave none."""
    from openai import OpenAIError  # takes a second to import; the server needs none of it

    try:
        response = client.chat.completions.create(**payload)
    except OpenAIError as failure:
        log.warning(
            "query failed",
            extra={"attempt": attempt + 1, "engine": str(client.base_url), "reason": str(failure)},
        )
        _pause(backoff(attempt + 1, ERROR_PAUSE, _LONGEST_PAUSE), attempt)
        return None
    if not response.choices:
        log.warning("query failed", extra={"attempt": attempt + 1, "reason": "no choices"})
        _pause(ERROR_PAUSE, attempt)
        return None
    return response


def _payload(
    messages: Messages,
    sampling_params: dict[str, Any],
    tools: list[dict[str, Any]] | None,
    seed: int,
    text: str | None,
    spent: int,
) -> dict[str, Any]:
    payload: dict[str, Any] = {
        "messages": copy.deepcopy(messages),
        **sampling_params,
        "model": "custom",
        "stream": False,
        "seed": seed,
    }
    if tools:
        payload["tools"] = tools
    if text is not None:
        payload["messages"].append({"role": "assistant", "content": text})
        payload["extra_body"] = {"continue_final_message": True}
        if sampling_params.get("max_tokens") is not None:
            payload["max_tokens"] = max(0, sampling_params["max_tokens"] - spent)
    return payload


def _pause(seconds: float, attempt: int) -> None:
    if attempt + 1 < ATTEMPTS:
        time.sleep(seconds)


def _without_answer(messages: Messages) -> Messages:
    return messages[:-1] if messages and messages[-1]["role"] == "assistant" else messages

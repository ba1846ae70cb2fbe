"""A rollout of one turn asks an OpenAI-compatible server once, and may be interrupted.

While the trainer updates its weights the server aborts what is running. The text so
far is then sent back to be continued, and its tokens are taken off the budget. A rollout that
may be interrupted reads the answer as it comes, and stops between two pieces.
"""

import copy
import json
import logging
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from buffer.generator.partial import Interrupted, Partial
from ground.backoff import backoff

if TYPE_CHECKING:
    from openai import OpenAI

log = logging.getLogger(__name__)

ATTEMPTS = 6
ABORT_PAUSE = 10.0  # seconds; an update of the weights takes about that
ERROR_PAUSE = 1.0
_LONGEST_PAUSE = 30.0
_REFUSED = (400, 413, 422)  # the request itself is at fault, for its length say; again, it would be

Messages = list[dict[str, Any]]


class _Refused(Exception):
    """The server gives the same request the same answer again."""


@dataclass
class _Answer:
    """The answer to one request."""

    text: str | None = None
    reason: str | None = None
    tokens: int = 0
    log_probs: list[float] = field(default_factory=list)


def query_single_turn(
    client: "OpenAI",
    messages: Messages,
    sampling_params: dict[str, Any],
    tools: list[dict[str, Any]] | None = None,
    partial: Partial | None = None,
) -> tuple[Messages, str | None]:
    """Ask once: (messages with the answer, finish reason). The answer's content is None if all
    failed.

    Continues with `partial`. Raises `Interrupted` with the part to park.
    """
    partial = partial or Partial()
    seed = random.randint(1, 10_000_000)
    reason: str | None = None
    for attempt in range(ATTEMPTS):
        if partial.interrupted:
            raise Interrupted
        payload = _payload(messages, sampling_params, tools, seed, partial)
        if payload.get("max_tokens") == 0:
            break
        version = partial.newest
        try:
            said = _asked(client, payload, attempt, partial)
        except _Refused:
            break
        if said is None:
            continue
        # The seam is exact: a continuation carries only what is new.
        if said.text is not None:
            text = (partial.text or "") + said.text
            answer = {"role": "assistant", "content": text}
            partial.add([*_without_answer(messages), answer], said.tokens, version, said.log_probs)
        reason = said.reason
        if reason != "abort":
            break
        log.info("query aborted", extra={"attempt": attempt + 1, "tokens": partial.tokens})
        if not partial.interrupted:
            _pause(ABORT_PAUSE, attempt)
    if reason == "abort" and partial.interruptible:
        raise Interrupted
    return [*_without_answer(messages), {"role": "assistant", "content": partial.text}], reason


def _asked(
    client: "OpenAI", payload: dict[str, Any], attempt: int, partial: Partial
) -> _Answer | None:
    """The server's answer; None after a pause where it gave none. Raises `_Refused`."""
    import httpx
    import openai  # takes a second to import; the server needs none of it

    reason, refused = "no choices", False
    try:
        response = client.chat.completions.create(**payload)
        try:
            said = _streamed(response, partial) if payload["stream"] else _whole(response)
        except (AttributeError, TypeError) as odd:  # the client checks nothing of what it is sent
            said, reason = None, f"no chat completion ({odd})"
        if said is not None:
            return said
    except (openai.OpenAIError, httpx.TransportError, json.JSONDecodeError) as failure:
        reason = str(failure)
        refused = isinstance(failure, openai.APIStatusError) and failure.status_code in _REFUSED
    engine = client.base_url.copy_with(username=None, password=None)
    log.warning(
        "query failed", extra={"attempt": attempt + 1, "engine": str(engine), "reason": reason}
    )
    if refused:
        raise _Refused
    _pause(backoff(attempt + 1, ERROR_PAUSE, _LONGEST_PAUSE), attempt)
    return None


def _whole(response: Any) -> _Answer | None:
    if not response.choices:
        return None
    choice = response.choices[0]
    tokens = response.usage.completion_tokens if response.usage else 0
    found = _log_probs(choice)
    return _Answer(choice.message.content, choice.finish_reason, tokens or len(found), found)


def _streamed(response: Any, partial: Partial) -> _Answer | None:
    """Piece by piece, until the answer ends or is interrupted. Servers that count tokens as they go
    are believed; else there is a log-probability for each, or a piece."""
    said, pieces = _Answer(), 0
    with response:
        for chunk in response:
            if chunk.usage:
                said.tokens = chunk.usage.completion_tokens
            for choice in chunk.choices[:1]:
                if choice.delta.content is not None:
                    said.text = (said.text or "") + choice.delta.content
                    pieces += bool(choice.delta.content)
                said.log_probs += _log_probs(choice)
                said.reason = choice.finish_reason or said.reason
            if said.reason is None and partial.interrupted:
                said.reason = "abort"
                break
    said.tokens = max(said.tokens, len(said.log_probs)) or pieces
    return said if said.reason is not None else None


def _log_probs(choice: Any) -> list[float]:
    given = getattr(choice, "logprobs", None)
    return [one.logprob for one in (given.content if given else None) or ()]


def _payload(
    messages: Messages,
    sampling_params: dict[str, Any],
    tools: list[dict[str, Any]] | None,
    seed: int,
    partial: Partial,
) -> dict[str, Any]:
    payload: dict[str, Any] = {
        "messages": copy.deepcopy(messages),
        **sampling_params,
        "model": "custom",
        "stream": partial.interruptible,
        "seed": seed,
    }
    if partial.interruptible:
        payload["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    if tools:
        payload["tools"] = tools
    if partial.text is not None:
        payload["messages"].append({"role": "assistant", "content": partial.text})
        more = {"continue_final_message": True, "add_generation_prompt": False}
        payload["extra_body"] = {**sampling_params.get("extra_body", {}), **more}
        if sampling_params.get("max_tokens") is not None:
            payload["max_tokens"] = max(0, sampling_params["max_tokens"] - partial.tokens)
    return payload


def _pause(seconds: float, attempt: int) -> None:
    if attempt + 1 < ATTEMPTS:
        time.sleep(seconds)


def _without_answer(messages: Messages) -> Messages:
    return messages[:-1] if messages and messages[-1]["role"] == "assistant" else messages

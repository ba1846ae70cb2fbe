"""A dialect reads a request into a `Question`, and writes a `Reply` in its own shape.

Responses is to be a third: a module with `read`, `whole`, `events` and `error` of its own.
"""

from __future__ import annotations

import json
from base64 import b32encode
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict, ValidationError

from gateway.canonical import Message, ToolCall, arguments_of, canonical_json
from gateway.engines.models import Answer, Chat, ToolUse
from gateway.errors import RequestRefused

KEEPALIVE = b": keepalive\n"
"""A comment of a stream. It ends no event: some clients read empty ones as JSON."""

# What stands on messages that clients echo, and says nothing.
_EMPTY: tuple[Any, ...] = (None, "", [], {})


@dataclass(frozen=True)
class Question:
    """A request of an agent, understood.

    chat        the conversation in the engines' words
    messages    the same in canonical form, message for message
    model       the name that the agent calls the model by
    most        tokens that the answer may have; None: as many as fit
    stops       texts that end the answer
    stream      the answer is wanted as events
    usage       a stream ends with what was used
    logprobs    the agent wants log-probabilities too
    ids         the agent wants the ids of the prompt and of the answer too
    asked       sampling that the agent asked for: the session's own stands over it
    """

    chat: Chat
    messages: tuple[Message, ...]
    model: str
    most: int | None = None
    stops: tuple[str, ...] = ()
    stream: bool = False
    usage: bool = False
    logprobs: bool = False
    ids: bool = False
    asked: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Reply:
    """An answer, in no dialect. The log keeps it as JSON, so that a retry gets the same bytes."""

    id: str
    created: int
    model: str
    answer: Answer
    finish: str
    """`stop`, `length` or `tool_calls`."""
    stop: str | None = None
    """The text that ended it."""
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    tokens: tuple[tuple[int, float | None], ...] = ()
    """Ids and log-probabilities, if the agent wants them."""
    prompt: tuple[int, ...] = ()
    """The prompt's ids, if the agent wants them."""

    def dump(self) -> bytes:
        """The answer as JSON, without the prompt's ids, which the log has once."""
        said = asdict(replace(self, prompt=()))  # it copies what it finds
        del said["prompt"]
        return json.dumps(said, separators=(",", ":")).encode()

    @classmethod
    def load(cls, said: bytes) -> Reply:
        """Read a body from JSON."""
        found = json.loads(said)
        answer = found.pop("answer")
        calls = [ToolUse(**call) for call in answer.pop("calls")]
        tokens = tuple((token, lp) for token, lp in found.pop("tokens"))
        return cls(answer=Answer(**answer, calls=calls), tokens=tokens, **found)


@dataclass(frozen=True)
class Fault:
    """A fault says why there is no answer: a status, its kind in the words of either dialect, and
    what helps."""

    status: int
    message: str
    param: str = ""
    code: str = ""
    retry_after: float | None = None
    again: bool = False
    """Whether the same request may be answered later."""


class Dialect(Protocol):
    """A module of this package."""

    NAME: str

    @staticmethod
    def read(body: Any) -> Question: ...

    @staticmethod
    def whole(question: Question, reply: Reply) -> dict[str, Any]: ...

    @staticmethod
    def events(question: Question, reply: Reply) -> Iterator[bytes]: ...

    @staticmethod
    def error(fault: Fault) -> dict[str, Any]: ...

    @staticmethod
    def error_event(fault: Fault) -> bytes: ...


class Body(BaseModel):
    """Part of a request; keys that it does not know are kept."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)


def validated(model: type[BaseModel], body: Any) -> Any:
    """The body as its model; else `RequestRefused` names the first field at fault."""
    try:
        return model.model_validate(body)
    except ValidationError as refusal:
        first = refusal.errors(include_url=False)[0]
        where = ".".join(
            str(part) for part in first["loc"] if not str(part).startswith("function-")
        )
        raise RequestRefused(first["msg"].removeprefix("Value error, "), where or "body") from None


def refuse(wanted: bool, param: str, problem: str) -> None:
    """Refuse the request for this reason."""
    if wanted:
        raise RequestRefused(problem, param)


def extra_of(given: Mapping[str, Any]) -> str:
    """The keys of a message that no dialect knows, as the canonical form keeps them."""
    kept = {
        name: value
        for name, value in given.items()
        if name != "cache_control" and value not in _EMPTY
    }
    return canonical_json(kept) if kept else ""


def assistant(content: str, calls: list[tuple[str, str, str]]) -> Message:
    """An assistant's message in canonical form; `calls` are ids, names and arguments. Text of
    nothing but blanks is none: clients leave it out, since Anthropic's API refuses it."""
    content = content if content.strip() else ""
    found = tuple(ToolCall(name, arguments_of(arguments), id) for id, name, arguments in calls)
    return Message("assistant", content, found)


def answered(answer: Answer, before: str = "") -> Message:
    """An answer as its client will echo it, behind what the client itself began."""
    calls = [("", call.name, call.arguments) for call in answer.calls]
    return assistant(before + answer.content, calls)


def call_id(reply: Reply, place: int) -> str:
    """The id of a call of a tool; a retry gets the same. It has nine letters and digits, since
    Mistral's templates take no others."""
    digest = blake2b(f"{reply.id}_{place}".encode(), digest_size=6).digest()
    return b32encode(digest)[:9].decode().lower()


def event(data: Any, name: str = "") -> bytes:
    """The bytes of one event of a stream."""
    said = data if isinstance(data, str) else json.dumps(data, separators=(",", ":"))
    return f"event: {name}\ndata: {said}\n\n".encode() if name else f"data: {said}\n\n".encode()

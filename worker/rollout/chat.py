"""A turn with an OpenAI-compatible server: the conversation goes out, an answer comes back.

Tools are the server's to read (`native`), or text (`hermes`). An answer with calls in text
is understood either way: many servers run without a parser for their model's calls.
"""

import copy
import hashlib
import json
import logging
import re
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

# Whole before openai looks at it: where another thread is importing it, openai finds half of it.
import httpx  # noqa: F401

from ground import tracing
from limiter import Gate
from worker.rollout.calls import Call, Schemas, encodable, read_arguments, read_call
from worker.rollout.endpoint import GatedModel
from worker.rollout.hermes import calls_in, unparsed_in, with_tools
from worker.rollout.request import THOUGHTS, Message, RolloutRequest, text_of
from worker.rollout.trajectory import Masked

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from openai.types.chat import ChatCompletion, ChatCompletionMessage

log = logging.getLogger("penstock.rollout")

CallStyle = Literal["native", "hermes"]
ABORTED = "abort"  # by an engine that gets new weights, for example
_BROKEN_OFF = (ABORTED, "error", "content_filter")
_LIMITS = ("max_tokens", "max_completion_tokens")  # of one answer; servers know one or both
_TOO_LONG = re.compile(r"context.?length|context.?window|maximum.{0,20}tokens", re.IGNORECASE)


class TooLong(Exception):
    """The server takes no conversation of this length."""


@dataclass(frozen=True)
class Reply:
    """The model's answer; `message` is its form in the conversation."""

    message: Message
    calls: list[Call]
    finish_reason: str
    usage: tuple[int, int] | None
    seconds: float


class Chat:
    """A model on a server."""

    def __init__(
        self,
        client: "AsyncOpenAI",
        model: str,
        style: CallStyle,
        *,
        partials: bool = False,
        gate: Gate | None = None,
    ) -> None:
        self._client = client
        self._create = partial(_plain, client) if gate is None else GatedModel(client, gate).create
        self._model = model
        self._about = {"gen_ai.operation.name": "chat", "gen_ai.request.model": model}
        self._style = style
        self._broken_off = _BROKEN_OFF[1:] if partials else _BROKEN_OFF
        self._keyed = False

    def keyed(self, client: "AsyncOpenAI") -> "Chat":
        """Ask the same model by another client. A request that is repeated has the same key, even
        in a process that replaces this one. So it gets the answer that is there."""
        chat = copy.copy(self)
        chat._client, chat._create, chat._keyed = client, partial(_plain, client), True
        return chat

    async def ask(
        self,
        messages: list[Message],
        request: RolloutRequest,
        schemas: Schemas,
        room: int | None,
        *,
        unfinished: bool = False,
    ) -> Reply:
        """Ask the model's server for one answer. Raises `TooLong`, or `Masked` if the server fails
        for good. An `unfinished` last message is continued, and the reply has the whole of it."""
        from openai import BadRequestError

        began = time.monotonic()
        try:
            payload = self._payload(messages, request, room, unfinished)
            try:
                completion = await self._sent(payload)
            except BadRequestError as refusal:
                bounded = room is not None and room in map(payload.get, _LIMITS)
                if not bounded or not _is_too_long(refusal):
                    raise
                # The room was a guess for what the server had not counted. It knows what there is.
                free = {name: value for name, value in payload.items() if name not in _LIMITS}
                completion = await self._sent(free)
        except BadRequestError as refusal:
            if _is_too_long(refusal):
                raise TooLong from None
            raise Masked(f"model: {type(refusal).__name__}: {refusal}") from refusal
        except Exception as failure:  # the client's own errors, and those of its transport
            where = self._client.base_url.copy_with(username=None, password=None)
            log.warning("the model's server at %s failed: %s", where, failure)
            raise Masked(f"model: {type(failure).__name__}: {failure} ({where})") from failure
        try:
            begun = messages[-1] if unfinished else {}
            seconds = time.monotonic() - began
            return _reply(completion, schemas, seconds, self._broken_off, begun)
        except (AttributeError, TypeError) as odd:  # the client checks nothing of what it is sent
            what = f"the server's answer is no chat completion ({odd}): {completion!r:.200}"
            raise Masked(f"model: {what}") from odd

    async def _sent(self, payload: dict[str, Any]) -> "ChatCompletion":
        key = {"Idempotency-Key": _key_of(payload)} if self._keyed else {}
        with tracing.span(f"chat {self._model}", self._about, kind="client"):
            if key:
                payload = payload | {"extra_headers": key | tracing.headers()}
            return await self._create(payload)

    def _payload(
        self, messages: list[Message], request: RolloutRequest, room: int | None, unfinished: bool
    ) -> dict[str, Any]:
        payload: dict[str, Any] = {"model": self._model, **request.sampling}
        if self._style == "hermes":
            messages = with_tools(messages, request.tool_schemas)
        elif request.tool_schemas:
            schemas = request.tool_schemas
            payload["tools"] = [schema.model_dump(exclude_none=True) for schema in schemas]
        payload["messages"] = on_the_wire(messages)
        if room is not None:
            limit = next((name for name in _LIMITS if name in payload), _LIMITS[0])
            payload[limit] = min(room, payload.get(limit) or room)
        if unfinished:
            more = {"continue_final_message": True, "add_generation_prompt": False}
            payload["extra_body"] = {**payload.get("extra_body", {}), **more}
        return payload


def _is_too_long(refusal: Any) -> bool:
    return refusal.code == "context_length_exceeded" or bool(_TOO_LONG.search(str(refusal)))


def _key_of(payload: dict[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(payload, sort_keys=True).encode(), digest_size=16).hexdigest()


async def _plain(client: "AsyncOpenAI", payload: dict[str, Any]) -> "ChatCompletion":
    answer: ChatCompletion = await client.chat.completions.create(**payload)
    return answer


def _reply(
    completion: "ChatCompletion", schemas: Schemas, seconds: float, broken_off: tuple[str, ...],
    begun: Message,
) -> Reply:  # fmt: skip
    if not completion.choices:
        raise Masked("model: the server's answer has no choices")
    choice = completion.choices[0]
    if str(choice.finish_reason) in broken_off:
        raise Masked(f"model: the server broke the answer off ({choice.finish_reason})")
    said = choice.message
    text = begun.get("content", "") + encodable(_text(said.content))
    message: Message = {"role": "assistant", "content": text}
    for name in THOUGHTS:
        thought = getattr(said, name, None)
        more = encodable(thought) if isinstance(thought, str) else ""
        if whole := (begun.get(name) or "") + more:
            message[name] = whole
    if native := _native_calls(said):
        message["tool_calls"] = native
    calls = [
        read_call(call["function"]["name"], call["function"]["arguments"], call["id"], schemas)
        for call in native
    ] or calls_in(text, schemas)
    is_cut = str(choice.finish_reason) in (ABORTED, "length")  # within a call, no parser reads it
    is_read = is_cut or any(call.name for call in calls)
    if _passed_over(said) or (schemas and not is_read and unparsed_in(text, schemas)):
        raise Masked(
            "model: the server did not parse its model's calls: start it with the parser of its"
            " model, as vLLM's --tool-call-parser names it"
        )
    return Reply(message, calls, str(choice.finish_reason), _usage(completion), seconds)


def _text(content: Any) -> str:
    """The text of an answer: text, or a list of parts, of which some servers make one."""
    if not isinstance(content, list):
        return content or ""
    parts = [part if isinstance(part, dict) else {"text": part} for part in content]
    return "".join(part.get("text") or "" for part in parts)


def _usage(completion: "ChatCompletion") -> tuple[int, int] | None:
    """Tokens of the prompt and of the answer, where the server counts both."""
    used: Any = completion.usage
    if used is None or None in (used.prompt_tokens, used.completion_tokens):
        return None
    return used.prompt_tokens, used.completion_tokens


def _native_calls(said: "ChatCompletionMessage") -> list[dict[str, Any]]:
    """The calls that the server read out of the answer."""
    calls: list[Any] = said.tool_calls or []
    return [
        {
            "id": call.id or f"call_{place}",
            "type": "function",
            "function": {
                "name": encodable(call.function.name or ""),
                "arguments": _as_text(call.function.arguments),
            },
        }
        for place, call in enumerate(calls)
        if call.type in ("function", None)  # some servers leave it out
    ]


def _passed_over(said: "ChatCompletionMessage") -> bool:
    """Whether it has calls of a form that is not asked for, and that nothing here runs."""
    kinds = [call.type for call in said.tool_calls or []]
    return bool(said.function_call) or any(kind not in ("function", None) for kind in kinds)


def _as_text(arguments: Any) -> str:
    """Arguments of a call as text: some servers send them as the object that they are the text
    of."""
    return encodable(arguments if isinstance(arguments, str) else json.dumps(arguments or {}))


def on_the_wire(messages: list[Message]) -> list[Message]:
    """Messages as servers take them: calls with arguments that are JSON, answers to calls in text
    as text.

    Chat templates parse the arguments of earlier calls, and fail on those that a model
    wrote wrongly. Answers to calls of one turn in text go in one message, as Qwen has it.
    Thoughts are sent back while the tools answer, and not once the user has spoken again.
    """
    sent: list[Message] = []
    asked = max((at for at, said in enumerate(messages) if said["role"] == "user"), default=-1)
    for at, message in enumerate(messages):
        if message["role"] == "tool" and not message.get("tool_call_id"):
            text = f"<tool_response>\n{text_of(message)}\n</tool_response>"
            if sent and sent[-1].get("role") == "user" and _responds(sent[-1]):
                sent[-1] = {"role": "user", "content": f"{sent[-1]['content']}\n{text}"}
            else:
                sent.append({"role": "user", "content": text})
            continue
        message = {key: said for key, said in message.items() if at > asked or key not in THOUGHTS}
        if "tool_calls" in message:
            message["tool_calls"] = [_readable(call) for call in message["tool_calls"]]
        sent.append(message)
    return sent


def _responds(message: Message) -> bool:
    return str(message["content"]).startswith("<tool_response>")


def _readable(call: dict[str, Any]) -> dict[str, Any]:
    written = call["function"]["arguments"]
    try:
        if isinstance(json.loads(written), dict):
            return call
    except (ValueError, RecursionError):
        pass  # what is read below may still be read
    try:
        read = read_arguments(written)
    except (ValueError, RecursionError):
        read = None
    if not isinstance(read, dict):
        read = {"unread": written}
    return {**call, "function": {**call["function"], "arguments": json.dumps(read)}}

"""Anthropic's Messages are read into a `Question`, and a `Reply` is written as they are. What
cannot be served exactly is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field

from gateway.canonical import Message
from gateway.dialects.dialect import (
    Body,
    Fault,
    Question,
    Reply,
    assistant,
    call_id,
    event,
    extra_of,
    refuse,
    validated,
)
from gateway.engines.models import Chat

NAME = "messages"
_SAMPLING = {"temperature", "top_p", "top_k", "thinking"}


class Block(Body):
    """A block of content. Which of these it has depends on its type."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: Any = None
    tool_use_id: str | None = None
    content: Any = None
    is_error: bool | None = None


class MessageBody(Body):
    """A message as a client of this dialect writes it."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class ToolBody(Body):
    """A tool of the client's."""

    name: str = Field(min_length=1)
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class OutputFormat(Body):
    """The form that an answer is to have."""

    type: Literal["json_schema"]
    shape: dict[str, Any] = Field(alias="schema")


class OutputConfig(Body):
    """How an answer is wanted."""

    format: OutputFormat | None = None
    effort: str | None = None


class MessagesBody(Body):
    """The body of `POST /v1/messages`."""

    model: str
    messages: list[MessageBody] = Field(min_length=1)
    max_tokens: int = Field(ge=1)
    system: str | list[Block] | None = None
    tools: list[ToolBody] | None = None
    tool_choice: dict[str, Any] | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = False
    temperature: float | int | None = None
    top_p: float | int | None = None
    top_k: int | None = None


class CountBody(MessagesBody):
    """The body of `POST /v1/messages/count_tokens`."""

    max_tokens: int = Field(1, ge=1)


def read(body: Any, model: type[MessagesBody] = MessagesBody) -> Question:
    """Understand a request, or refuse it with the reason."""
    asked: MessagesBody = validated(model, body)
    extra = asked.model_extra or {}
    for name in ("mcp_servers", "container"):
        refuse(
            bool(extra.get(name)), name, "is not served here: the model runs on your own engines"
        )
    pairs: list[tuple[dict[str, Any], Message]] = []
    if asked.system:
        text = _text(asked.system, "system")
        pairs.append(({"role": "system", "content": text}, Message("system", text)))
    for place, message in enumerate(asked.messages):
        pairs += _messages(message, f"messages.{place}")
    refuse(not pairs, "messages", "there is no content in them")
    open_calls = "tool_calls" in pairs[-1][0] and not isinstance(asked, CountBody)
    refuse(open_calls, "messages", "the last calls tools: send their results")
    tools = [_tool(tool, f"tools.{place}") for place, tool in enumerate(asked.tools or ())]
    stops = asked.stop_sequences or []
    refuse(len(stops) > 16 or "" in stops, "stop_sequences", "up to 16 texts, none of them empty")
    given = {name: value for name in ("temperature", "top_p", "top_k")
             if (value := getattr(asked, name)) is not None}  # fmt: skip
    if extra.get("thinking"):
        given["thinking"] = extra["thinking"]
    if (asked.tool_choice or {}).get("disable_parallel_tool_use"):
        given["disable_parallel_tool_use"] = True
    if asked.output_config and asked.output_config.effort:
        given["effort"] = asked.output_config.effort
    return Question(
        chat=Chat(
            [sent for sent, _ in pairs], tools, {}, _constraints(asked, tools),
            continues=pairs[-1][0]["role"] == "assistant",
            calls=(asked.tool_choice or {}).get("type") != "none",
        ),
        messages=tuple(canonical for _, canonical in pairs),
        model=asked.model,
        most=asked.max_tokens,
        stops=tuple(stops),
        stream=bool(asked.stream),
        usage=True,
        asked=given,
    )  # fmt: skip


def _tool(tool: ToolBody, where: str) -> dict[str, Any]:
    refuse(
        tool.type not in (None, "custom"), where,
        f"{tool.type!r} runs on Anthropic's servers, which are not here: bring tools of your own",
    )  # fmt: skip
    function: dict[str, Any] = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    function["parameters"] = tool.input_schema or {"type": "object", "properties": {}}
    return {"type": "function", "function": function}


def _constraints(asked: MessagesBody, tools: list[Any]) -> dict[str, Any]:
    """The constraints that bind the answer to a form, in the engines' words."""
    found = _choice(asked, tools)
    config = asked.output_config
    form = (config and config.format) or asked.output_format
    if form is not None:
        schema = {"name": "answer", "schema": form.shape}
        found["response_format"] = {"type": "json_schema", "json_schema": schema}
    return found


def _choice(asked: MessagesBody, tools: list[Any]) -> dict[str, Any]:
    choice = asked.tool_choice or {"type": "auto"}
    kind = choice.get("type")
    refuse(
        kind not in ("auto", "any", "tool", "none"),
        "tool_choice",
        "must be auto, any, tool or none",
    )
    refuse(kind in ("any", "tool") and not tools, "tool_choice", "there are no tools")
    if kind == "tool":
        name = choice.get("name")
        refuse(not isinstance(name, str), "tool_choice", "names no tool")
        return {"tool_choice": {"type": "function", "function": {"name": name}}}
    return {"tool_choice": "required"} if kind == "any" else {}


def _text(content: Any, where: str) -> str:
    """The text of content that may have no other."""
    if content is None or isinstance(content, str):
        return content or ""
    refuse(not isinstance(content, list), where, "must be a text or a list of blocks")
    texts = []
    for block in content:
        said = block.model_dump() if isinstance(block, Block) else block
        kind = said.get("type") if isinstance(said, dict) else None
        text = said["text"] if kind == "text" and isinstance(said.get("text"), str) else None
        refuse(text is None, where, f"only text is served, not {kind!r}")
        texts.append(text or "")
    return "\n".join(texts)


def _messages(message: MessageBody, where: str) -> Iterator[tuple[dict[str, Any], Message]]:
    """The messages for the engines: one of this dialect may become several, as results stand
    alone."""
    blocks = message.content
    if isinstance(blocks, str):
        blocks = [Block(type="text", text=blocks)]
    if message.role == "assistant":
        yield _assistant(blocks, where)
        return
    texts: list[str] = []
    for block in blocks:
        if block.type == "tool_result" and message.role == "user":
            refuse(block.tool_use_id is None, where, "a tool_result has a tool_use_id")
            content, answers = _text(block.content, where), block.tool_use_id or ""
            sent = {"role": "tool", "tool_call_id": answers, "content": content}
            extra = extra_of({"is_error": block.is_error} if block.is_error else {})
            yield sent, Message("tool", content, answers=answers, extra=extra)
        else:
            texts.append(_text([block], where))
    if texts:
        text = "\n".join(texts)
        yield {"role": message.role, "content": text}, Message(message.role, text)


def _assistant(blocks: list[Block], where: str) -> tuple[dict[str, Any], Message]:
    texts, thoughts, calls = [], [], []
    for block in blocks:
        if block.type == "text" and block.text is not None:
            texts.append(block.text)
        elif block.type == "thinking":
            thoughts.append(block.thinking or "")
        elif block.type == "tool_use":
            refuse(block.name is None, where, "a tool_use has a name")
            calls.append((block.id or "", block.name or "", json.dumps(block.input or {})))
        else:
            refuse(
                block.type != "redacted_thinking", where,
                f"an assistant's block is text, thinking or tool_use, not {block.type!r}",
            )  # fmt: skip
    content = "\n".join(texts)
    sent: dict[str, Any] = {"role": "assistant", "content": content}
    if thoughts:
        sent["reasoning_content"] = "\n".join(thoughts)
    if calls:
        sent["tool_calls"] = [
            {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
            for id, name, arguments in calls
        ]
    return sent, assistant(content, calls)


def _blocks(reply: Reply) -> list[dict[str, Any]]:
    answer = reply.answer
    found: list[dict[str, Any]] = []
    if answer.reasoning:
        # Clients take thinking with an empty signature for another's, and send it as text.
        found.append({"type": "thinking", "thinking": answer.reasoning, "signature": reply.id})
    if answer.content or not (answer.calls or answer.reasoning):
        found.append({"type": "text", "text": answer.content})
    for place, call in enumerate(answer.calls):
        found.append(
            {"type": "tool_use", "id": call_id(reply, place), "name": call.name,
             "input": _input(call.arguments)}
        )  # fmt: skip
    return found


def _input(arguments: str) -> Any:
    """The arguments as an object. What is none is kept under a name, and fails the tool's check."""
    try:
        found = json.loads(arguments or "{}")
        json.dumps(found, allow_nan=False)  # NaN and 1e999 are read, and no JSON
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {"arguments": arguments}


def _reason(reply: Reply) -> str:
    if reply.finish == "stop":
        return "stop_sequence" if reply.stop else "end_turn"
    return {"length": "max_tokens", "tool_calls": "tool_use"}[reply.finish]


def _message(reply: Reply) -> dict[str, Any]:
    return {
        "id": f"msg_{reply.id}", "type": "message", "role": "assistant", "model": reply.model,
    }  # fmt: skip


def _usage(reply: Reply) -> dict[str, int]:
    return {"input_tokens": reply.prompt_tokens, "output_tokens": reply.sampled_tokens}


def whole(question: Question, reply: Reply) -> dict[str, Any]:
    """The answer as one body."""
    return _message(reply) | {
        "content": _blocks(reply), "stop_reason": _reason(reply), "stop_sequence": reply.stop,
        "usage": _usage(reply),
    }  # fmt: skip


def events(question: Question, reply: Reply) -> Iterator[bytes]:
    """Stream the answer as events."""
    begun = _message(reply) | {
        "content": [], "stop_reason": None, "stop_sequence": None,
        "usage": {"input_tokens": reply.prompt_tokens, "output_tokens": 0},
    }  # fmt: skip
    yield _event("message_start", message=begun)
    for place, block in enumerate(_blocks(reply)):
        match block["type"]:
            case "thinking":
                empty = {"type": "thinking", "thinking": "", "signature": ""}
                deltas = [
                    {"type": "thinking_delta", "thinking": block["thinking"]},
                    {"type": "signature_delta", "signature": block["signature"]},
                ]
            case "text":
                empty = {"type": "text", "text": ""}
                deltas = [{"type": "text_delta", "text": block["text"]}]
            case _:
                empty = block | {"input": {}}
                said = json.dumps(block["input"])
                deltas = [{"type": "input_json_delta", "partial_json": said}]
        yield _event("content_block_start", index=place, content_block=empty)
        for delta in deltas:
            yield _event("content_block_delta", index=place, delta=delta)
        yield _event("content_block_stop", index=place)
    ended = {"stop_reason": _reason(reply), "stop_sequence": reply.stop}
    yield _event("message_delta", delta=ended, usage=_usage(reply))
    yield _event("message_stop")


def _event(kind: str, **data: Any) -> bytes:
    return event({"type": kind, **data}, kind)


_KINDS = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error",
    404: "not_found_error", 409: "invalid_request_error", 413: "request_too_large",
    422: "invalid_request_error", 429: "rate_limit_error", 503: "overloaded_error",
}  # fmt: skip


def error(fault: Fault) -> dict[str, Any]:
    """The body of an error."""
    kind = _KINDS.get(fault.status, "api_error")
    # Agents know by these words that they must compact.
    lead = "prompt is too long: " if fault.code == "context_length_exceeded" else ""
    return {"type": "error", "error": {"type": kind, "message": lead + fault.message}}


def error_event(fault: Fault) -> bytes:
    """An error in a stream that has begun."""
    return event(error(fault), "error")

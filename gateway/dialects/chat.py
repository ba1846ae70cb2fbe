"""OpenAI's chat completions are read into a `Question`, and a `Reply` is written as they are. What
cannot be served exactly is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal

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

NAME = "chat"
SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "logit_bias", "seed", "min_tokens", "ignore_eos", "stop_token_ids",
    "bad_words", "thinking", "enable_thinking", "reasoning",
)  # fmt: skip

Text = Annotated[str, Field(max_length=1 << 26)]


class Part(Body):
    """A part of a message's content."""

    type: str
    text: str | None = None


class Function(Body):
    """A function that is called."""

    name: str
    arguments: str | dict[str, Any] | None = "{}"

    @property
    def text(self) -> str:
        """The arguments as JSON text; engines take an object too, and none for no arguments."""
        said = self.arguments
        return json.dumps(said) if isinstance(said, dict) else said or "{}"


class ToolCallBody(Body):
    """A call of a tool."""

    id: str | None = ""
    type: str | None = "function"
    function: Function


class MessageBody(Body):
    """A message as a client of this dialect writes it."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part] | None = None
    tool_calls: list[ToolCallBody] | None = None
    tool_call_id: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None


class FunctionBody(Body):
    """A function that may be called."""

    name: str = Field(min_length=1)
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ToolBody(Body):
    """A tool."""

    type: str = "function"
    function: FunctionBody | None = None


class StreamOptions(Body):
    """How a stream is wanted."""

    include_usage: bool | None = None


class ChatBody(Body):
    """The body of `POST /v1/chat/completions`."""

    model: str
    messages: list[MessageBody] = Field(min_length=1)
    tools: list[ToolBody] | None = None
    tool_choice: Any = None
    response_format: dict[str, Any] | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    max_output_tokens: int | None = Field(None, ge=1)
    stop: str | list[str] | None = None
    n: int | None = Field(1)
    logprobs: bool | None = False
    top_logprobs: int | None = None
    return_token_ids: bool | None = None
    temperature: float | int | None = None
    top_p: float | int | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool | None = False


def read(body: Any) -> Question:
    """Understand a request, or refuse it with the reason."""
    asked: ChatBody = validated(ChatBody, body)
    refuse(asked.n not in (None, 1), "n", "one answer per request: ask several times instead")
    more = asked.model_extra or {}
    for name in (
        "previous_response_id", "audio", "prediction", "web_search_options", "functions",
        "function_call",
    ):  # fmt: skip
        refuse(bool(more.get(name)), name, "is not served here: the model runs on your own engines")
    for name in (
        "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
        "regex", "ebnf",
    ):  # fmt: skip
        refuse(
            bool(more.get(name)), name, "is one engine's own: bind the answer by response_format"
        )
    modalities = more.get("modalities")
    refuse(modalities not in (None, ["text"]), "modalities", "only text is served")
    refuse(bool(asked.top_logprobs), "top_logprobs", "only the sampled tokens' own are served")
    tools = [_tool(tool, place) for place, tool in enumerate(asked.tools or ())]
    pairs = [_message(message, place) for place, message in enumerate(asked.messages)]
    continues = bool(asked.continue_final_message)
    refuse(
        continues and asked.messages[-1].role != "assistant",
        "continue_final_message", "the last message is not an assistant's",
    )  # fmt: skip
    refuse(
        continues and "tool_calls" in pairs[-1][0], "continue_final_message",
        "the last message calls tools: send their results",
    )  # fmt: skip
    stops = [asked.stop] if isinstance(asked.stop, str) else asked.stop or []
    refuse(len(stops) > 16 or "" in stops, "stop", "up to 16 texts, none of them empty")
    options = asked.stream_options
    given = asked.model_dump(include=set(SAMPLING), exclude_none=True) | {
        name: value
        for name, value in (asked.model_extra or {}).items()
        if name in SAMPLING and value is not None
    }
    if asked.parallel_tool_calls is False:
        given["parallel_tool_calls"] = False
    effort = {"reasoning_effort": asked.reasoning_effort} if asked.reasoning_effort else {}
    return Question(
        chat=Chat(
            [sent for sent, _ in pairs], tools, effort | (asked.chat_template_kwargs or {}),
            _constraints(asked, tools), continues, calls=asked.tool_choice != "none",
        ),
        messages=tuple(canonical for _, canonical in pairs),
        model=asked.model,
        most=_least(asked.max_tokens, asked.max_completion_tokens, asked.max_output_tokens),
        stops=tuple(stops),
        stream=bool(asked.stream),
        usage=bool(options and options.include_usage),
        logprobs=bool(asked.logprobs),
        ids=bool(asked.return_token_ids),
        asked=given,
    )  # fmt: skip


def _least(*given: int | None) -> int | None:
    return min((each for each in given if each is not None), default=None)


def _tool(tool: ToolBody, place: int) -> dict[str, Any]:
    refuse(
        tool.type != "function" or tool.function is None, f"tools.{place}",
        f"only functions are served, not {tool.type!r}",
    )  # fmt: skip
    assert tool.function is not None  # noqa: S101 - refused above
    function = tool.function.model_dump(exclude_none=True)
    return {"type": "function", "function": function}


def _constraints(asked: ChatBody, tools: list[Any]) -> dict[str, Any]:
    """The constraints that bind the answer to a form, beside the model's own will."""
    found: dict[str, Any] = {}
    choice = asked.tool_choice
    named = isinstance(choice, dict) and choice.get("type") == "function"
    refuse(
        not named and choice not in (None, "auto", "none", "required"),
        "tool_choice", "must be auto, none, required, or name a function",
    )  # fmt: skip
    refuse(bool(named or choice == "required") and not tools, "tool_choice", "there are no tools")
    if choice == "required" or named:
        found["tool_choice"] = choice
    shape = asked.response_format
    if shape is not None and shape.get("type") != "text":
        refuse(
            shape.get("type") not in ("json_object", "json_schema"),
            "response_format", "must be text, json_object or json_schema",
        )  # fmt: skip
        found["response_format"] = shape
    return found


def _message(message: MessageBody, place: int) -> tuple[dict[str, Any], Message]:
    """A message as engines take it, and in canonical form."""
    where = f"messages.{place}"
    role = "system" if message.role == "developer" else message.role
    more = message.model_extra or {}
    refuse(bool(more.get("function_call")), where, "a function_call is not served: use tool_calls")
    refuse(bool(more.get("audio")), where, "only text is served, not 'audio'")
    content = message.content or ""
    if not isinstance(content, str):
        content = "\n".join(_part(part, where) for part in content)
    content = "\n".join(text for text in (content, message.refusal) if text)
    extra = extra_of(more)
    sent: dict[str, Any] = {"role": role, "content": content}
    name = more.get("name")
    if name and role != "assistant":
        sent["name"] = name
    refuse(bool(message.tool_calls) and role != "assistant", where, f"a {role} calls no tools")
    if role == "tool":
        answers = message.tool_call_id or ""
        return sent | {"tool_call_id": answers}, Message(
            role, content, answers=answers, extra=extra
        )
    if role != "assistant":
        return sent, Message(role, content, extra=extra)
    calls = [(c.id or "", c.function.name, c.function.text) for c in message.tool_calls or ()]
    if calls:
        sent["tool_calls"] = [
            {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
            for id, name, arguments in calls
        ]
    if reasoning := message.reasoning_content or message.reasoning:
        sent["reasoning_content"] = reasoning
    # No engine reads more of it, so a name, as LangGraph gives it, makes it no other turn.
    return sent, assistant(content, calls)


def _part(part: Part, where: str) -> str:
    if part.type == "refusal":
        return str((part.model_extra or {}).get("refusal") or "")
    refuse(
        part.type != "text" or part.text is None, where, f"only text is served, not {part.type!r}"
    )
    return part.text or ""


def whole(question: Question, reply: Reply) -> dict[str, Any]:
    """The answer as one body."""
    choice: dict[str, Any] = {
        "index": 0, "message": {"role": "assistant", **_said(reply)}, "logprobs": None,
        "finish_reason": reply.finish,
    }  # fmt: skip
    if question.logprobs:
        choice["logprobs"] = _logprobs(reply)
    if question.ids:
        choice["token_ids"] = _ids(reply)
    head = _head(reply, "chat.completion") | _prompt(question, reply)
    return head | {"choices": [choice], "usage": _usage(reply)}


def events(question: Question, reply: Reply) -> Iterator[bytes]:
    """The answer as a stream. All calls of tools are in one event: some clients join pieces of
    them wrongly."""
    head = _head(reply, "chat.completion.chunk")
    said = _said(reply)
    first: dict[str, Any] = {"role": "assistant", "content": None if reply.answer.calls else ""}
    yield event(head | _prompt(question, reply) | {"choices": [_delta(first)]})
    if reasoning := said.get("reasoning_content"):
        yield event(head | {"choices": [_delta({"reasoning_content": reasoning})]})
    last = _delta({}, reply.finish)
    content = _delta({"content": reply.answer.content})
    if question.logprobs:
        (content if reply.answer.content else last)["logprobs"] = _logprobs(reply)
    if question.ids:
        last["token_ids"] = _ids(reply)
    if reply.answer.content:
        yield event(head | {"choices": [content]})
    if reply.answer.calls:
        calls = [{"index": n, **call} for n, call in enumerate(said["tool_calls"])]
        yield event(head | {"choices": [_delta({"tool_calls": calls})]})
    yield event(head | {"choices": [last]})
    if question.usage:
        yield event(head | {"choices": [], "usage": _usage(reply)})
    yield event("[DONE]")


def _head(reply: Reply, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{reply.id}", "object": kind, "created": reply.created,
        "model": reply.model,
    }  # fmt: skip


def _said(reply: Reply) -> dict[str, Any]:
    answer = reply.answer
    found: dict[str, Any] = {"content": answer.content or (None if answer.calls else "")}
    if answer.reasoning:
        found["reasoning_content"] = answer.reasoning
    if answer.calls:
        found["tool_calls"] = [
            {
                "id": call_id(reply, place), "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for place, call in enumerate(answer.calls)
        ]  # fmt: skip
    return found


def _delta(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}


def _logprobs(reply: Reply) -> dict[str, Any]:
    content: list[dict[str, Any]] = [
        {"token": f"token_id:{token}", "logprob": LOWEST if lp is None else lp, "bytes": None,
         "top_logprobs": []}
        for token, lp in reply.tokens
    ]  # fmt: skip
    return {"content": content, "refusal": None}


def _ids(reply: Reply) -> list[int]:
    return [token for token, _ in reply.tokens]


def _prompt(question: Question, reply: Reply) -> dict[str, Any]:
    """The prompt's ids stand beside the choices, as vLLM's API has them."""
    return {"prompt_token_ids": list(reply.prompt)} if question.ids else {}


LOWEST = -9999.0
"""What stands for a log-probability that the engine did not give: the wire has numbers only."""


def _usage(reply: Reply) -> dict[str, int]:
    return {
        "prompt_tokens": reply.prompt_tokens, "completion_tokens": reply.sampled_tokens,
        "total_tokens": reply.prompt_tokens + reply.sampled_tokens,
    }  # fmt: skip


_KINDS = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error",
    404: "not_found_error", 409: "conflict_error", 413: "invalid_request_error",
    422: "invalid_request_error", 429: "rate_limit_error",
}  # fmt: skip


def error(fault: Fault) -> dict[str, Any]:
    """The body of an error."""
    said = {
        "message": fault.message, "type": _KINDS.get(fault.status, "server_error"),
        "param": fault.param or None, "code": fault.code or None,
    }  # fmt: skip
    return {"error": said}


def error_event(fault: Fault) -> bytes:
    """An error in a stream that has begun."""
    return event(error(fault))

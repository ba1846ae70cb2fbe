"""A rollout's request: the beginning of a conversation, its tools, and its limits."""

import json
import uuid
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from worker.tool.schemas import OpenAIFunctionToolSchema

Message = dict[str, Any]
THOUGHTS = ("reasoning", "reasoning_content")  # of a message: vLLM's name for them, and others'
OURS = {"messages", "model", "stream", "tools"}  # what a request to the server has from us


def text_of(message: Message) -> str:
    """The text of a message, without its pictures."""
    content = message.get("content")
    if isinstance(content, list):
        texts = [part["text"] for part in content if isinstance(part, dict) and "text" in part]
        return "\n".join(map(str, texts))
    return str(content or "")


def _as_servers_take_it(message: Message, place: int) -> Message:
    """Data sets may have a null for the calls that a message lacks, and arguments as objects."""
    if not message.get("role"):
        raise ValueError(f"message {place} has no role")
    if "tool_calls" not in message:
        return message
    rest = {name: value for name, value in message.items() if name != "tool_calls"}
    try:
        calls = [_with_text(call) for call in message["tool_calls"] or ()]
    except (KeyError, TypeError) as odd:
        raise ValueError(f"message {place} has a call that is none of a function ({odd})") from None
    return rest | {"tool_calls": calls} if calls else rest


def _with_text(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = function["arguments"]
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments or {}, ensure_ascii=False)
    return {**call, "function": {**function, "name": function["name"], "arguments": arguments}}


class ToolKwargs(BaseModel):
    """The arguments that each of a tool's four methods gets beyond its own, as verl's data sets
    name them."""

    model_config = ConfigDict(extra="forbid")

    create_kwargs: dict[str, Any] = Field(default_factory=dict)
    execute_kwargs: dict[str, Any] = Field(default_factory=dict)
    calc_reward_kwargs: dict[str, Any] = Field(default_factory=dict)
    release_kwargs: dict[str, Any] = Field(default_factory=dict)


class RolloutRequest(BaseModel):
    """The request for one trajectory. A batch is resumed by `request_id`: give it one that lasts.

    `max_seq_len` bounds prompt, answers and tools' outputs together, in tokens. `sampling`
    goes to the server as it is: `temperature`, `max_tokens` (of one turn), `extra_body`, …
    """

    model_config = ConfigDict(extra="forbid")

    messages: list[Message] = Field(min_length=1)
    request_id: str = Field(default_factory=lambda: uuid.uuid4().hex, min_length=1)
    tool_schemas: list[OpenAIFunctionToolSchema] = Field(default_factory=list)
    tools_kwargs: dict[str, ToolKwargs] = Field(default_factory=dict)
    max_seq_len: int | None = Field(default=None, ge=1)
    max_turns: int = Field(default=16, ge=1)
    sampling: dict[str, Any] = Field(default_factory=dict)
    instance_id: str | int | None = Field(
        default=None, description="At a gateway: the group of the buffer; None: one of its own."
    )
    session: dict[str, Any] = Field(
        default_factory=dict, description="At a gateway: `slot`, `round_number`, `budget`."
    )
    step: int = 0
    data: dict[str, Any] = Field(default_factory=dict, description="The caller's own: a label, …")

    @field_validator("messages")
    @classmethod
    def _messages_are_a_conversation(cls, messages: list[Message]) -> list[Message]:
        return [_as_servers_take_it(message, place) for place, message in enumerate(messages)]

    @field_validator("sampling")
    @classmethod
    def _sampling_is_no_more(cls, sampling: dict[str, Any]) -> dict[str, Any]:
        if taken := sorted(OURS & sampling.keys()):
            raise ValueError(f"{', '.join(taken)} cannot be given here: the rollout does")
        return sampling

    def kwargs_of(self, tool: str) -> ToolKwargs:
        return self.tools_kwargs.get(tool) or ToolKwargs()

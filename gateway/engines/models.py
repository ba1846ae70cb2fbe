"""These models pass between the gateway and an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.calls import UNKNOWN_VERSION as UNKNOWN
from gateway.errors import EngineFailed


@dataclass(frozen=True)
class Chat:
    """A conversation in the words that engines share, OpenAI's, and how it is rendered."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the template, such as `enable_thinking`."""
    constraints: Mapping[str, Any] = field(default_factory=dict)
    """`tool_choice` and `response_format`, if they bind what may be sampled."""
    continues: bool = False
    """The last message is the beginning of the answer."""
    calls: bool = True
    """What looks like a call of a tool is one; else it is text."""

    def request(self, model: str, *, ends: bool = False) -> dict[str, Any]:
        """The prompt as the body of a chat request."""
        body: dict[str, Any] = {
            "model": model, "messages": list(self.messages), **self.constraints,
        }  # fmt: skip
        if self.tools:
            body["tools"] = list(self.tools)
            if not self.calls:
                body["tool_choice"] = "none"
        if self.kwargs:
            body["chat_template_kwargs"] = dict(self.kwargs)
        if self.continues:
            body |= {"continue_final_message": True, "add_generation_prompt": False}
        elif ends:
            body["add_generation_prompt"] = False
        return body


@dataclass(frozen=True)
class Rendered:
    """A conversation as the engine renders it. `params` are what its parsers want of sampling."""

    ids: list[int]
    params: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class ToolUse:
    """A tool that the answer calls; the arguments are JSON text."""

    name: str
    arguments: str


@dataclass
class Answer:
    """An answer as the engine's parsers read the tokens."""

    content: str
    reasoning: str = ""
    calls: list[ToolUse] = field(default_factory=list)


@dataclass
class Part:
    """A part of an answer: all that one request to an engine brought.

    A missing log-probability is NaN, and a missing version unknown: neither is made up. `finish`
    is `stop`, `length`, `abort`, or empty if the engine went away before it said.
    """

    ids: list[int] = field(default_factory=list)
    lps: list[float] = field(default_factory=list)
    spans: list[list[int]] = field(default_factory=list)
    bracket: tuple[int, int] | None = None
    """The versions between which its tokens were sampled, if the weights moved meanwhile."""
    finish: str = ""
    stop: int | str | None = None
    text: str | None = None
    """What the engine wrote of it, if it said so."""
    answer: Answer | None = None
    failure: EngineFailed | None = None
    engine: str = ""
    settling: asyncio.Task[None] | None = None
    """What still finds out by which versions it was sampled."""

    async def settled(self) -> None:
        """Wait until `spans` and `bracket` are as they stay."""
        if self.settling is not None:
            await self.settling

    def settle(self) -> None:
        """Bring spans to the length of the ids; what has no version is unknown."""
        self.spans = [list(span) for span in self.spans if span[0]]
        short = len(self.ids) - sum(length for length, _ in self.spans)
        if short > 0:
            self.spans.append([short, UNKNOWN])
        while short < 0:
            short += self.spans[-1][0]
            self.spans.pop()
            if short > 0:
                self.spans.append([short, UNKNOWN])
                short = 0

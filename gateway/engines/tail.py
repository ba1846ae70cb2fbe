"""The tail of a conversation, rendered alone: what stands behind the tokens that are kept.

A tail is rendered behind a dummy conversation, and the dummy is cut off. That is exact only if a
template renders a tail the same behind every conversation. Engines are asked so at their start: one
result of a tool, two, a question; thinking on and off. Turns that call tools must also end as those
of text do. Where this does not hold, a conversation is rendered whole, and continues what was
recorded only if its tokens do.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from gateway.engines.models import Chat, Rendered
from gateway.errors import EngineRefused
from ground.recent import Recent


class Renders(Protocol):
    """An engine's `render`."""

    async def __call__(self, chat: Chat, *, ends: bool = False) -> Rendered: ...


_QUESTION = {"role": "user", "content": "a"}
_TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look.",
        "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
    },
}
_CONTEXT = 2  # ids before the end of a turn, by which a turn of the dummy is known
ROLES = ("user", "tool", "system")


@dataclass
class Tail:
    """How the tails of an engine's template are found.

    close  the ids that end an assistant's turn; the end-of-turn id is the first of them
    bases  the ids of the dummy, by the first role of a tail and the template's arguments; None if
           that template renders such a tail otherwise behind other conversations
    """

    _render: Renders
    close: tuple[int, ...]
    bases: Recent[tuple[int, ...] | None]

    @classmethod
    async def probed(cls, render: Renders) -> Tail:
        """The probes of the template that this renders."""
        one, other = [await _ids(render, [_QUESTION, _said(word)], ends=True) for word in "bc"]
        close = one[len(one) - _alike(one[::-1], other[::-1]) :]
        tail = cls(render, tuple(close), Recent(256))
        for kwargs in ({}, {"enable_thinking": False}):
            for role in ROLES:
                await tail.base(role, kwargs)
        return tail

    @property
    def renders(self) -> list[str]:
        """The roles with which a tail may begin, under the template's own arguments."""
        return [role for role in ROLES if self.bases.use((role, "{}")) is not None]

    def closing(self, ids: Sequence[int]) -> list[int]:
        """The ids that these lack of the end of a turn: all of it, if it was cut."""
        for length in range(min(len(self.close), len(ids)), 0, -1):
            if tuple(ids[-length:]) == self.close[:length]:
                return list(self.close[length:])
        return list(self.close)

    async def render(self, chat: Chat, start: int) -> list[int] | None:
        """The ids of the messages from `start` on, up to where the answer begins. None if they are
        no tail, or cannot be rendered alone."""
        tail = chat.messages[start:]
        roles = [message["role"] for message in tail]
        if chat.continues and roles[-1:] == ["assistant"]:
            roles.pop()
        if not roles or "assistant" in roles:
            return None
        base = await self.base(roles[0], chat.kwargs)
        called = start and chat.messages[start - 1].get("tool_calls")
        if base is None or (called and not await self.base("tool", chat.kwargs)):
            return None
        whole = [*_dummy(tail), *tail]
        ids = (await self._render(replace(chat, messages=whole, tools=(), constraints={}))).ids
        return ids[len(base) :] if tuple(ids[: len(base)]) == base else None

    async def base(self, role: str, kwargs: Mapping[str, Any]) -> tuple[int, ...] | None:
        """The ids of the dummy before a tail that begins with this role."""
        key = (role, json.dumps(kwargs, sort_keys=True))
        if key not in self.bases:
            try:
                found = await self._base(role, kwargs) if self.close and role in ROLES else None
            except EngineRefused:  # a template that knows no such turn
                found = None
            self.bases.put(key, found)
        return self.bases.use(key)

    async def _base(self, role: str, kwargs: Mapping[str, Any]) -> tuple[int, ...] | None:
        render = self._render
        tails = [[_turn(role, "x", 0)], [_turn(role, "x", 0), _turn(role, "y", 1)]]
        short = _dummy(tails[0])
        ids = await _ids(render, [*short, *tails[0]], kwargs)
        other = await _ids(render, [*short, _turn(role, "zz", 0)], kwargs)
        mark = await self._mark(short, (), kwargs)
        if tuple(mark[-len(self.close) :]) != self.close:
            return None  # `closing` knows no other end
        end = next(
            (at for at in range(_alike(ids, other), 0, -1) if ids[:at][-len(mark) :] == mark), None
        )
        if end is None:
            return None
        base = tuple(ids[:end])
        for tail in tails:
            alone = await _ids(render, [*short, *tail], kwargs)
            if tuple(alone[:end]) != base:
                return None
            longer = [
                {"role": "system", "content": "s"}, _QUESTION, _said("Yes, and so on", "hm"),
                *_dummy(tail, calls=len(tail), name="find"),
            ]  # fmt: skip
            mark = await self._mark(longer, (_TOOL,), kwargs)
            whole = await _ids(render, [*longer, *tail], kwargs, (_TOOL,))
            cut = len(whole) - len(alone[end:])
            if whole[cut:] != alone[end:] or whole[:cut][-len(mark) :] != mark:
                return None
        return base

    async def _mark(self, messages: Any, tools: Any, kwargs: Any) -> list[int]:
        """The last ids of a conversation that ends with an assistant's turn."""
        ids = await _ids(self._render, messages, kwargs, tools, ends=True)
        return ids[-len(self.close) - _CONTEXT :]


def _dummy(
    tail: Sequence[Mapping[str, Any]], calls: int = 1, name: str = "look"
) -> list[dict[str, Any]]:
    """The shortest conversation that such a tail may follow."""
    if tail[0]["role"] != "tool":
        return [_QUESTION, _said("b")]
    ids = [message.get("tool_call_id", "") for message in tail[:calls]]
    function = {"name": name, "arguments": '{"at": "b"}'}
    called = [{"id": each, "type": "function", "function": function} for each in ids]
    return [_QUESTION, {"role": "assistant", "content": "", "tool_calls": called}]


def _said(words: str, reasoning: str = "") -> dict[str, Any]:
    thought = {"reasoning": reasoning, "reasoning_content": reasoning} if reasoning else {}
    return {"role": "assistant", "content": words} | thought


def _turn(role: str, words: str, number: int) -> dict[str, Any]:
    more = {"tool_call_id": f"call0000{number}"} if role == "tool" else {}
    return {"role": role, "content": words} | more


async def _ids(
    render: Renders, messages: Any, kwargs: Any = None, tools: Any = (), *, ends: bool = False
) -> list[int]:
    return (await render(Chat(messages, tools, kwargs or {}), ends=ends)).ids


def _alike(one: Sequence[int], other: Sequence[int]) -> int:
    """How many ids both begin with."""
    pairs = zip(one, other, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))

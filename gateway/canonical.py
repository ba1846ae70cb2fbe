"""All dialects have this one form of a conversation, from which it is read what continues what.

Two requests that mean the same have the same hashes, however a client writes them: the order of
keys, ids of tools, reasoning, parts of a text and marks of caches make no difference.
"""

import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import groupby
from typing import Any

VOLATILE = {
    "billing": re.compile(r"x-anthropic-billing-header:[^\n]*\n?"),
    "date": re.compile(r"(?m)^[^\n]*\b[Tt]oday'?s? (?:the )?date[^\n]*\n?"),
    "reminder": re.compile(r"<system-reminder>.*?</system-reminder>\n?", re.DOTALL),
}
"""Text that clients change between turns, by name: a hash leaves out what is named to it."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool that an assistant calls. The id only says which result answers it."""

    name: str
    arguments: str
    """As canonical JSON; text that is no JSON as it is. `arguments_of` makes it."""
    id: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a conversation. A tool's result is a message of its own, with the role `tool`.

    content  all its text, joined; without reasoning
    calls    tools that it calls, in order
    answers  the id of the call that a tool's result answers
    extra    keys that the dialect does not know, as canonical JSON; empty if there are none
    """

    role: str
    content: str = ""
    calls: tuple[ToolCall, ...] = ()
    answers: str = ""
    extra: str = ""


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no blanks: values that are equal have equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def arguments_of(said: Any) -> str:
    """The arguments of a call, as text or as an object."""
    if not isinstance(said, str):
        return canonical_json(said)
    try:
        return canonical_json(json.loads(said or "{}", parse_float=_number))
    except (ValueError, RecursionError):
        return said


def _number(said: str) -> float:
    """A whole number is one without its point too: JavaScript writes 5.0 as 5."""
    number = float(said)
    return int(number) if number.is_integer() and abs(number) < 1e21 else number


def digest(body: Any) -> bytes:
    """16 bytes of a request's body: a retry has the same."""
    return _hash(canonical_json(body))


def root(tools: Any, kwargs: Any, model: str) -> bytes:
    """The hash before the first message: tools, arguments of the template, and the model."""
    return _hash(canonical_json([tools or [], kwargs or {}, model]))


def chain(
    before: bytes, messages: Sequence[Message], volatile: Collection[str] = ("billing",)
) -> list[bytes]:
    """The hash after each message; `before` is that of what stands before them."""
    hashes = []
    for text in _texts(messages, volatile):
        before = _hash(text, before)
        hashes.append(before)
    return hashes


def turns(
    messages: Sequence[Message], hashes: Sequence[bytes], most: int = 64
) -> tuple[list[bytes], list[int]]:
    """The hash after each assistant's message, the newest first, and the messages' places."""
    places = [n for n, each in enumerate(messages) if each.role == "assistant"][: -most - 1 : -1]
    return [hashes[place] for place in places], places


def _texts(messages: Sequence[Message], volatile: Collection[str]) -> Iterator[str]:
    """The text that is hashed of each message. Results stand in the order of their calls."""
    called: list[str] = []

    def place(result: Message) -> int:
        return called.index(result.answers) if result.answers in called else len(called)

    for is_result, run in groupby(messages, lambda each: each.role == "tool"):
        for message in sorted(run, key=place) if is_result else run:
            content = message.content
            if message.role != "assistant":
                for name in volatile:
                    content = VOLATILE[name].sub("", content)
            if message.calls:
                called = [call.id for call in message.calls]
            calls = [[call.name, call.arguments] for call in message.calls]
            answers = place(message) if is_result else None
            yield canonical_json([message.role, content, calls, answers, message.extra])


def _hash(text: str, before: bytes = b"") -> bytes:
    return blake2b(before + text.encode(errors="surrogatepass"), digest_size=16).digest()

"""A model, its tokenizer and its chat template, each small enough to be a function.

A token's log-probability depends on the whole context, the token and the version of the weights.
So a row proves itself: `misproved` computes each log-probability again from the row alone. The
tokenizer is as unkind as real ones: what it makes of a text differs from what was sampled, and
what it makes of a beginning differs from the beginning of what it makes of the whole.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from typing import Any

SPECIALS = (
    "<pad>", "<s>", "<|im_start|>", "<|im_end|>", "<think>", "</think>",
    "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>",
)  # fmt: skip
PAD, BOS, START, END, THINK, UNTHINK, CALL, UNCALL, RESPONSE, UNRESPONSE = range(len(SPECIALS))
_BYTES = 16  # the id of the first of 256 bytes
_WORDS = re.split(
    r"\s+",
    """the then there list file files open close read write run test tests look now next done
answer error fixed change line code main print value result find check four five name arguments
command path assistant user system tool""",
)


def _pieces() -> list[bytes]:
    """Each beginning of each word, with a space before it or not, and what JSON and code repeat."""
    found = {word[:end] for word in _WORDS for end in range(2, len(word) + 1)}
    found |= {" " + piece for piece in found} | {" " + word[0] for word in _WORDS}
    found |= {
        "\n\n",
        "\n\n\n",
        ".\n",
        ".\n\n",
        "  ",
        ". ",
        ", ",
        '{"',
        '": "',
        '", "',
        '"}',
        '": {"',
    }
    found |= {'"}}', '"}}\n', "\n{", "é", "日本", "👍"}
    return sorted(piece.encode() for piece in found)


PIECES = {piece: _BYTES + 256 + place for place, piece in enumerate(_pieces())}
VOCABULARY: list[bytes] = [
    *(special.encode() for special in SPECIALS),
    *(b"" for _ in range(len(SPECIALS), _BYTES)),
    *(bytes([byte]) for byte in range(256)),
    *PIECES,
]
_LONGEST = max(map(len, PIECES))
_SPLIT = re.compile("(" + "|".join(map(re.escape, SPECIALS)) + ")")
_SPECIAL = re.compile(_SPLIT.pattern.encode())
_SPECIAL_IDS = {special: place for place, special in enumerate(SPECIALS)}


def _choices(text: bytes, at: int) -> Iterator[int]:
    """Each token with which the text can go on at this place, the longest first."""
    for length in range(min(_LONGEST, len(text) - at), 1, -1):
        if (token := PIECES.get(text[at : at + length])) is not None:
            yield token
    yield _BYTES + text[at]


@lru_cache(4096)
def _encode_plain(text: str) -> tuple[int, ...]:
    raw, at, ids = text.encode(errors="surrogatepass"), 0, []
    while at < len(raw):
        ids.append(next(_choices(raw, at)))
        at += len(VOCABULARY[ids[-1]])
    return tuple(ids)


def encode(text: str) -> list[int]:
    """The ids of a text: specials first, even if a user typed them, then the longest pieces."""
    ids: list[int] = []
    for part in _SPLIT.split(text):
        if part in _SPECIAL_IDS:
            ids.append(_SPECIAL_IDS[part])
        else:
            ids += _encode_plain(part)
    return ids


def decode(ids: Iterable[int], *, skip_special: bool = False) -> str:
    """The text of the ids; half a character reads as a replacement character."""
    kept = (token for token in ids if not (skip_special and token < _BYTES))
    return b"".join(VOCABULARY[token] for token in kept).decode(errors="replace")


class Context:
    """What the model has read, as a running hash."""

    def __init__(self, ids: Iterable[int] = ()) -> None:
        self._hash = sha256()
        self.extend(ids)

    def extend(self, ids: Iterable[int]) -> None:
        """Read more."""
        self._hash.update(b"".join(token.to_bytes(4, "little") for token in ids))

    def logprob(self, token: int, version: int) -> float:
        """What this token costs here and now; a float32 holds it exactly."""
        seed = self._hash.digest() + token.to_bytes(4, "little") + version.to_bytes(8, "little")
        return -(int.from_bytes(sha256(seed).digest()[:3]) + 1) / 2**21


def logprob(context: Iterable[int], token: int, version: int) -> float:
    """The log-probability of one token behind this context under these weights."""
    return Context(context).logprob(token, version)


def misproved(
    tokens: Sequence[int],
    mask: Sequence[int],
    logprobs: Sequence[float],
    versions: Sequence[int],
) -> list[int]:
    """The places whose mask is 1 and whose log-probability was not computed in this context.

    All four are as long as the row: mask, log-probabilities and versions cover the prompt too.
    """
    context, wrong = Context(), []
    for place, token in enumerate(tokens):
        if mask[place] and context.logprob(token, versions[place]) != logprobs[place]:
            wrong.append(place)
        context.extend((token,))
    return wrong


@dataclass(frozen=True)
class Template:
    """A chat template after Qwen's: ChatML, thinking, tools as JSON, a newline after each turn."""

    strips: bool = True
    """Thinking before the last question of a user is left out, as Qwen 3 does."""
    bos: bool = False
    """The conversation begins with <s>."""
    opens_think: bool = False
    """The prompt of the next turn ends with <think>, as for models that always think."""
    counts_turns: bool = False
    """Each turn says its number: what a turn looks like depends on those before it."""
    names_results: bool = False
    """A result has the name of the tool that was called last, as gpt-oss has it."""
    moves_tools: bool = False
    """The tools stand before the last question of a user, as Mistral has them."""
    nine: bool = False
    """Ids of calls have nine letters or digits, as Mistral demands."""
    ends_calls: str = "<|im_end|>"
    """The end of a turn that calls tools."""

    def render(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        enable_thinking: bool = True,
    ) -> str:
        """The text that the model reads."""
        asked = [place for place, each in enumerate(messages) if each["role"] == "user"]
        last = asked[-1] if asked else -1
        text = "<s>" if self.bos else ""
        called = ""
        ids = [call["id"] for each in messages for call in each.get("tool_calls") or ()]
        if self.nine and not all(re.fullmatch("[a-zA-Z0-9]{9}", each) for each in ids):
            raise ValueError("Tool call IDs should be alphanumeric strings with length 9!")
        listed = "".join("\n" + json.dumps(tool) for tool in tools or ())
        if tools and not self.moves_tools:
            lead = _text(messages[0]) if messages and messages[0]["role"] == "system" else ""
            text += f"<|im_start|>system\n{lead}# Tools{listed}<|im_end|>\n"
        for place, message in enumerate(messages):
            number = f" {place}" if self.counts_turns else ""
            match message["role"]:
                case "assistant":
                    said = self._assistant(message, thinks=not self.strips or place > last)
                    for call in message.get("tool_calls") or ():
                        called = f" {call['function']['name']}" if self.names_results else ""
                    final = continue_final_message and place == len(messages) - 1
                    text += f"<|im_start|>assistant{number}\n{said}"
                    end = self.ends_calls if message.get("tool_calls") else "<|im_end|>"
                    text += "" if final else f"{end}\n"
                case "tool":
                    first = not place or messages[place - 1]["role"] != "tool"
                    ends = place + 1 == len(messages) or messages[place + 1]["role"] != "tool"
                    text += f"<|im_start|>user{number}" if first else ""
                    text += f"\n<tool_response>{called}\n{_text(message)}\n</tool_response>"
                    text += "<|im_end|>\n" if ends else ""
                case "system" if place == 0 and tools and not self.moves_tools:
                    pass
                case role:
                    if tools and self.moves_tools and place == last:
                        text += f"<|im_start|>system\n# Tools{listed}<|im_end|>\n"
                    text += f"<|im_start|>{role}{number}\n{_text(message)}<|im_end|>\n"
        if add_generation_prompt and not continue_final_message:
            number = f" {len(messages)}" if self.counts_turns else ""
            text += f"<|im_start|>assistant{number}\n"
            if not enable_thinking:
                text += "<think>\n\n</think>\n\n"
            elif self.opens_think:
                text += "<think>\n"
        return text

    @staticmethod
    def _assistant(message: dict[str, Any], *, thinks: bool) -> str:
        reasoning = message.get("reasoning") or message.get("reasoning_content") or ""
        said = f"<think>\n{reasoning}\n</think>\n\n" if thinks and reasoning else ""
        said += _text(message)
        for call in message.get("tool_calls") or ():
            function = call["function"]
            arguments = function["arguments"]
            if isinstance(arguments, str):
                arguments = json.loads(arguments)
            written = json.dumps({"name": function["name"], "arguments": arguments})
            said += f"\n<tool_call>\n{written}\n</tool_call>"
        return said


def _text(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)


@dataclass(frozen=True)
class Parsed:
    """An answer as a client sees it."""

    content: str
    reasoning: str | None = None
    calls: list[tuple[str, str]] = field(default_factory=list)
    """The name of each tool called, and its arguments as JSON."""


def parse(text: str, *, thinking: bool = False) -> Parsed:
    """What an engine's parsers make of an answer's text; `thinking` says the prompt opened it.

    A call whose JSON is broken stays text, as in an answer that was cut.
    """
    text = text.replace("<|im_end|>", "")
    reasoning = None
    if thinking or text.startswith("<think>"):
        before, closed, after = text.removeprefix("<think>").partition("</think>")
        reasoning, text = before.strip("\n"), after.lstrip("\n") if closed else ""
    calls: list[tuple[str, str]] = []

    def take(found: re.Match[str]) -> str:
        try:
            call = json.loads(found[1])
            calls.append((call["name"], json.dumps(call["arguments"])))
        except (ValueError, KeyError, TypeError):
            return found[0]
        return ""

    content = re.sub(r"\n?<tool_call>(.*?)</tool_call>\n?", take, text, flags=re.DOTALL)
    return Parsed(content, reasoning, calls)


Script = Callable[[list[int], random.Random], str]
"""What the model answers to a prompt: the text, without its end of turn."""


def babble(prompt: list[int], chance: random.Random) -> str:
    """An answer of some words: with thinking, with no, one or two calls of `sh`."""
    words = lambda most: " ".join(chance.choices(_WORDS, k=chance.randint(1, most)))  # noqa: E731
    text = f"<think>\n{words(6)}.\n</think>\n\n" if chance.random() < 0.4 else ""
    text += words(8) + chance.choice(["", ".", ".\n", " 日本 é 👍"])
    for _ in range(chance.choice([0, 0, 1, 1, 2])):
        call = {"name": "sh", "arguments": {"command": words(3)}}
        text += f"\n<tool_call>\n{json.dumps(call)}\n</tool_call>"
    return text


def shell(prompt: list[int], chance: random.Random) -> str:
    """An agent of a shell, with the tool `bash`: it looks around, and hands in."""
    turn = decode(prompt).count("<|im_start|>assistant\n") - 1
    commands = ("ls", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")
    call = {"name": "bash", "arguments": {"command": commands[min(turn, 1)]}}
    text = ("I look around.", "That is all.")[min(turn, 1)]
    return f"{text}\n<tool_call>\n{json.dumps(call)}\n</tool_call>"


class Model:
    """Samples answers, token by token, as a function of what stands in the context.

    An answer's text is one of a few that the prompt decides; how it is cut into tokens is drawn.
    A generation that goes on by ids finishes one of the answers that begin so.
    """

    def __init__(self, seed: int = 0, script: Script = babble, variants: int = 16) -> None:
        self._chance = random.Random(seed)
        self._script = script
        self._variants = variants

    def generate(self, ids: Sequence[int]) -> Iterator[int]:
        """The tokens behind this context, the end of the turn the last of them."""
        begin = self._turn(ids)
        text, at = self._text(list(ids[:begin]), b"".join(VOCABULARY[each] for each in ids[begin:]))
        while at < len(text):
            special = _SPECIAL.search(text, at)
            if special and special.start() == at:
                token = _SPECIAL_IDS[special[0].decode()]
            else:
                choices = list(_choices(text[: special.start()] if special else text, at))
                # The whole first piece tells the variants apart.
                token = self._chance.choice(choices) if at else choices[0]
            yield token
            at += len(VOCABULARY[token])
        yield END

    def _text(self, prompt: list[int], own: bytes) -> tuple[bytes, int]:
        """The answer that this turn has begun, and how much of it is written; else any of them."""
        key = sha256(repr(prompt).encode()).hexdigest()
        texts = [
            self._script(prompt, random.Random(f"{key}/{variant}")).encode()
            for variant in range(self._variants)
        ]
        # A template or a client may have put something in front of what the model wrote.
        written = [_overlap(own, text) for text in texts]
        most = max(written)
        return self._chance.choice(
            [t for t, k in zip(texts, written, strict=True) if k == most]
        ), most

    @staticmethod
    def _turn(ids: Sequence[int]) -> int:
        """Where the turn that is being written begins: behind `<|im_start|>assistant`."""
        for place in range(len(ids) - 1, -1, -1):
            if ids[place] == START:
                newline = _BYTES + 10
                after = place + 1
                while after < len(ids) and ids[after] != newline:
                    after += 1
                return min(after + 1, len(ids))
        return len(ids)


def _overlap(own: bytes, text: bytes) -> int:
    """How many bytes of the text stand at the end of what is written."""
    if own and text.startswith(own):
        return len(own)
    return next((k for k in range(min(len(own), len(text)), 0, -1) if own.endswith(text[:k])), 0)

"""Random agents before a gateway that is as small as it can be, and what must hold of their rows.

`World` does what the gateway does with a request, with the scripted model as its engine. Its log is
a `MemoryLog`, or the real one in Redis: both are asked the same. What the engine evaluated and
sampled is noted beside it, and `check` compares the rows with that.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from gateway.calls import Call, Sent, State, common, full
from gateway.canonical import Message, ToolCall, arguments_of, chain, digest, root, turns
from gateway.errors import KeyReused
from gateway.log import Asked, Fresh, Join, Replay
from gateway.packing import Ids, floats_of, ids_of, runs, spread
from gateway.training_rows import Log, Rows, is_clean, rows_of
from tests.gateway.scripted.model import (
    END,
    Context,
    Model,
    Template,
    decode,
    encode,
    misproved,
    parse,
)

Chat = list[dict[str, Any]]
NEWLINE = encode("\n")
TOOLS = [{"type": "function", "function": {"name": "sh", "parameters": {"type": "object"}}}]
DUMMY: Chat = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]


class Calls(Protocol):
    """One session's log, as a gateway uses it."""

    async def begin(self, asked: Asked) -> Fresh | Replay | Join: ...
    async def ids(self, call: int) -> Ids: ...
    async def commit(self, fence: str, call: Call, reached: bytes, answer: bytes = b"") -> None: ...
    def sent(self, call: int, sent: Sent) -> None: ...
    def broke(self, call: int, fence: str, sent: Sent = Sent.NOTHING) -> None: ...
    def die(self, call: int) -> None: ...


class MemoryLog:
    """What a log does, said by dictionaries. `dead` has the calls whose process is gone."""

    def __init__(self) -> None:
        self.calls: dict[int, Call] = {}
        self.answers: dict[int, bytes] = {}
        self.dead: set[int] = set()
        self.reached: dict[bytes, int] = {}
        self.continued: set[int] = set()
        self.by_digest: dict[bytes, int] = {}
        self.by_key: dict[str, tuple[bytes, int]] = {}
        self.first: set[bytes] = set()

    async def begin(self, asked: Asked) -> Fresh | Replay | Join:
        number = self.by_digest.get(asked.digest, 0)
        if asked.key:
            body, number = self.by_key.get(asked.key, (asked.digest, 0))
            if body != asked.digest:
                raise KeyReused
        earlier = self.calls.get(number)
        retry = earlier.id if earlier and (asked.key or asked.retry) else 0
        if earlier and earlier.state is State.DONE:
            unsaid = earlier.sent is Sent.UNKNOWN and earlier.id in self.dead
            if retry or earlier.sent is Sent.HUNG_UP or unsaid:
                return Replay(earlier, self.answers.get(earlier.id))
        elif earlier and retry and earlier.state is State.OPEN:
            if earlier.id not in self.dead:
                return Join(earlier.id, 1.0)
            self.calls[earlier.id] = replace(earlier, state=State.BROKEN)
        number = len(self.calls) + 1
        if number == 1:
            self.first = set(asked.hashes)
        hits = tuple(self.reached.get(each) for each in asked.hashes)
        known = [
            hit is not None or each in self.first
            for hit, each in zip(hits, asked.hashes, strict=True)
        ]
        parent = next((hit for hit in hits if hit is not None), None)
        sent = Sent.UNKNOWN if asked.live else Sent.NOTHING
        self.calls[number] = Call(
            number, parent, state=State.OPEN, sent=sent, req_digest=asked.digest, retry=retry
        )
        self.by_digest[asked.digest] = number
        if asked.key:
            self.by_key[asked.key] = (asked.digest, number)
        foreign = known.index(True) if True in known else len(known)
        return Fresh(number, f"f{number}", 0, hits, foreign, None, retry)

    async def ids(self, call: int) -> Ids:
        return full(self.calls, call)

    async def commit(self, fence: str, call: Call, reached: bytes, answer: bytes = b"") -> None:
        self.calls[call.id] = call
        self.answers[call.id] = answer
        if call.has_ids:
            if self.reached.get(reached) not in self.continued:
                self.reached[reached] = call.id
            if call.parent is not None and is_clean(call, self.calls):
                self.continued.add(call.parent)

    def sent(self, call: int, sent: Sent) -> None:
        self.calls[call] = replace(self.calls[call], sent=sent)

    def broke(self, call: int, fence: str, sent: Sent = Sent.NOTHING) -> None:
        self.calls[call] = replace(self.calls[call], state=State.BROKEN, sent=sent)

    def die(self, call: int) -> None:
        """The process that has the call is gone."""
        self.dead.add(call)

    def log(self) -> Log:
        return Log(dict(self.calls))


@dataclass(frozen=True)
class Seen:
    """What the engine evaluated and sampled for a call, token by token."""

    prompt: tuple[int, ...]
    out: tuple[int, ...]
    versions: tuple[int, ...]
    fault: str


@dataclass(frozen=True)
class How:
    """How a turn goes.

    fate   `whole`, `hung_up`, `unsaid` (its process died after the commit), `killed` (before it),
           `lost` (the same, when some content had left), `late` (a retry was answered meanwhile)
    fault  `nan`, `infinite`, `short`, `versions`, `prompt_ids`: what the engine's answer lacks
    cut    the answer ends after so many tokens; 0: by itself
    bumps  how often the weights change while it is sampled
    """

    fate: str = "whole"
    fault: str = ""
    cut: int = 0
    bumps: int = 0
    retry: bool = False
    key: str = ""


class World:
    """One session: its model, its template, its log."""

    def __init__(
        self, seed: int, log: Calls, *, mode: str = "R", template: Template | None = None
    ) -> None:
        self.chance = random.Random(seed)
        self.model = Model(seed)
        self.template = template or Template()
        self.mode = mode
        self.log = log
        self.version = 1000
        self.seen: dict[int, Seen] = {}
        self.delivered: set[int] = set()
        self.holes = 0

    def render(self, chat: Chat) -> list[int]:
        return encode(self.template.render(chat, TOOLS))

    def tail(self, chat: Chat) -> list[int]:
        """What a conversation adds, rendered behind a fixed one."""
        before = encode(self.template.render(DUMMY, add_generation_prompt=False))
        ids = encode(self.template.render([*DUMMY, *chat]))
        assert ids[: len(before)] == before
        return ids[len(before) :]

    async def turn(self, chat: Chat, how: How = How()) -> dict[str, Any] | None:
        """The answer to a conversation, or None if its client got none."""
        messages = canonical(chat)
        hashes = chain(root(TOOLS, {}, "m"), messages)
        found, places = turns(messages, hashes)
        asked = Asked(digest(chat), tuple(found), how.retry, how.key, how.fate == "lost")
        begun = await self.log.begin(asked)
        if isinstance(begun, Replay):
            self.log.sent(begun.call.id, Sent.WHOLE)
            self.delivered.add(begun.call.id)
            return json.loads(begun.answer or b"null")
        assert isinstance(begun, Fresh)
        if how.fate in ("killed", "lost"):
            sent = Sent.UNKNOWN if how.fate == "lost" else Sent.NOTHING
            self.log.broke(begun.call, begun.fence, sent)
            return None
        parent, keep, prompt = await self.placed(chat, begun, places)
        call = self.sampled(begun, parent, keep, prompt, asked, how)
        answer = self.message(decode(call.out, skip_special=True), begun.call)
        if how.fate == "late":
            return await self.overtaken(chat, begun, call, hashes[-1], answer, how.key)
        await self.deliver(begun, call, hashes[-1], answer)
        match how.fate:
            case "hung_up":
                self.log.sent(call.id, Sent.HUNG_UP)
                return None
            case "unsaid":
                self.log.die(call.id)
            case _:
                self.log.sent(call.id, Sent.WHOLE)
        self.delivered.add(call.id)
        return answer

    async def deliver(
        self, begun: Fresh, call: Call, before: bytes, answer: dict[str, Any]
    ) -> None:
        reached = chain(before, canonical([answer]))[-1]
        await self.log.commit(begun.fence, call, reached, json.dumps(answer).encode())

    async def overtaken(
        self,
        chat: Chat,
        begun: Fresh,
        call: Call,
        before: bytes,
        answer: dict[str, Any],
        key: str,
    ) -> dict[str, Any] | None:
        """Its process hangs for so long that a retry is answered by another one."""
        self.log.die(begun.call)
        again = await self.turn(chat, How(retry=True, key=key))
        await self.deliver(begun, call, before, answer)
        return again

    async def placed(
        self, chat: Chat, begun: Fresh, places: Sequence[int]
    ) -> tuple[int | None, int, Ids]:
        """Which call a request continues, how many of its ids, and the prompt."""
        hits = [
            (hit, place) for hit, place in zip(begun.hits, places, strict=False) if hit is not None
        ]
        if hits and self.mode == "R":
            hit, place = hits[0]
            tail = chat[place + 1 :]
            if tail and all(each["role"] != "assistant" for each in tail):
                ids = await self.log.ids(hit)
                close = NEWLINE if ids[-1] == END else [END, *NEWLINE]
                return hit, len(ids), ids + ids_of([*close, *self.tail(tail)])
        prompt, best = ids_of(self.render(chat)), (0, None)
        for hit, _ in hits:
            ids = await self.log.ids(hit)
            shared = common(ids, prompt)
            if shared == len(ids):
                return hit, shared, prompt
            best = max(best, (shared, hit), key=lambda each: each[0])
        return best[1], best[0], prompt

    def sampled(
        self, begun: Fresh, parent: int | None, keep: int, prompt: Ids, asked: Asked, how: How
    ) -> Call:
        out: list[int] = []
        versions: list[int] = []
        places = list(self.model.generate(prompt))[: how.cut or None]
        bumps = sorted(self.chance.randint(0, len(places)) for _ in range(how.bumps))
        context, lps = Context(prompt), []
        for n, token in enumerate(places):
            while bumps and bumps[0] <= n:
                bumps.pop(0)
                self.version += self.chance.choice([1, 1, 1, -2])
            out.append(token)
            versions.append(self.version)
            lps.append(context.logprob(token, self.version))
            context.extend((token,))
        self.seen[begun.call] = Seen(tuple(prompt), tuple(out), tuple(versions), how.fault)
        spans, lacks = runs(versions), ""
        match how.fault:
            case "nan":
                lps[0] = float("nan")
            case "infinite":
                lps[0] = -9999.0
            case "short":
                lps.pop()
            case "versions":
                spans = spans[1:]
            case "prompt_ids":
                lacks, parent, keep, prompt = "prompt_ids", None, 0, ids_of()
        return Call(
            begun.call, parent, keep, prompt[keep:], ids_of(out), floats_of(lps), spans,
            finish="length" if how.cut else "stop", req_digest=asked.digest, retry=begun.retry,
            foreign=begun.foreign, lacks=lacks,
        )  # fmt: skip

    def message(self, text: str, number: int) -> dict[str, Any]:
        found = parse(text)
        message: dict[str, Any] = {"role": "assistant", "content": found.content}
        if found.reasoning:
            message["reasoning"] = found.reasoning
        if found.calls:
            message["tool_calls"] = [
                {
                    "id": f"c{number}-{n}",
                    "type": "function",
                    "function": {"name": name, "arguments": arguments},
                }
                for n, (name, arguments) in enumerate(found.calls)
            ]
        return message


def canonical(chat: Chat) -> list[Message]:
    """Chat messages in the gateway's form."""
    return [
        Message(
            each["role"],
            each.get("content") or "",
            tuple(
                ToolCall(made["name"], arguments_of(made["arguments"]), call["id"])
                for call in each.get("tool_calls") or ()
                if (made := call["function"])
            ),
            each.get("tool_call_id", ""),
        )
        for each in chat
    ]  # fmt: skip


class Agent:
    """Conversations of one session, which one step after the other changes."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.chance = world.chance
        self.threads: list[Chat] = [
            [{"role": "system", "content": "be brief"}, {"role": "user", "content": "fix the test"}]
        ]

    async def step(self, name: str, how: How = How()) -> None:
        """Do one thing: each is a method of this name."""
        await getattr(self, name)(how)

    async def ask(self, how: How) -> None:
        """The next turn of a conversation; what gets no answer is asked again, or given up."""
        chat = self.chance.choice(self.threads)
        answer = await self.world.turn(chat, how)
        if answer is None and self.chance.random() < 0.7:
            answer = await self.world.turn(chat, How(retry=self.chance.random() < 0.7))
        if answer is not None:
            chat += [answer, *self._results(answer)]

    async def fork(self, how: How) -> None:
        """The same conversation goes on in two ways."""
        chat = self.chance.choice(self.threads)
        self.threads.append([dict(each) for each in chat])
        await self.ask(how)

    async def twice(self, how: How) -> None:
        """The same body, as two samples."""
        chat = self.chance.choice(self.threads)
        for _ in range(2):
            answer = await self.world.turn(chat, how)
            if answer is not None:
                self.threads.append([*chat, answer, *self._results(answer)])

    async def again(self, how: How) -> None:
        """The same body, as a retry: by a header, or by its key."""
        chat, key = self.chance.choice(self.threads), str(self.chance.random())
        first = await self.world.turn(chat, replace(how, key=key))
        by = How(retry=True) if self.chance.random() < 0.5 else How(key=key)
        second = await self.world.turn(chat, by)
        if first is not None:
            assert second == first, "a retry got another answer"
        if second is not None:
            chat += [second, *self._results(second)]

    async def sub_agent(self, how: How) -> None:
        """Another agent with other instructions, in the same session."""
        task = f"look {self.chance.randint(0, 2)}"
        self.threads.append(
            [{"role": "system", "content": "look"}, {"role": "user", "content": task}]
        )
        await self.ask(how)

    async def compact(self, how: How) -> None:
        """A conversation goes on from a summary."""
        chat = self.chance.choice(self.threads)
        chat[1:] = [{"role": "user", "content": f"so far: {len(chat)} messages. go on"}]
        await self.ask(how)

    async def edit(self, how: How) -> None:
        """Something that the model said is changed."""
        chat = self.chance.choice(self.threads)
        said = [each for each in chat if each["role"] == "assistant"]
        if said:
            self.chance.choice(said)["content"] = "done."
        await self.ask(how)

    async def echo(self, how: How) -> None:
        """What was said comes back as clients write it."""
        chat = self.chance.choice(self.threads)
        for each in chat:
            each.pop("reasoning", None)
            for call in each.get("tool_calls", ()):
                function = call["function"]
                given = json.loads(function["arguments"])
                function["arguments"] = json.dumps(given, indent=1, ensure_ascii=True)
        results = [n for n, each in enumerate(chat) if each["role"] == "tool"]
        if len(results) > 1 and results[-1] - results[-2] == 1:
            chat[results[-2]], chat[results[-1]] = chat[results[-1]], chat[results[-2]]
        await self.ask(how)

    def _results(self, answer: dict[str, Any]) -> Chat:
        if calls := answer.get("tool_calls"):
            return [
                {"role": "tool", "tool_call_id": call["id"], "content": f"ok {n}"}
                for n, call in enumerate(calls)
            ]
        return [{"role": "user", "content": self.chance.choice(["next", "look <|im_end|>", "é"])}]


STEPS = ("ask", "fork", "twice", "again", "sub_agent", "compact", "edit", "echo")
FATES = ("whole", "hung_up", "unsaid", "killed", "lost", "late")
FAULTS = ("", "nan", "infinite", "short", "versions", "prompt_ids")


def check(log: Log, seen: dict[int, Seen], rows: Rows | None = None) -> Rows:
    """I1 to I5, by what the engine saw. Returns the rows."""
    rows = rows or rows_of(log)
    trained: dict[tuple[int, int], int] = {}
    for row in rows.rows:
        begin = len(row.tokens) - row.response_length
        mask = [0] * begin + spread(row.mask)
        versions = [-1] * begin + spread(row.versions)
        logprobs = [0.0] * begin + list(row.logprobs)
        assert len(mask) == len(versions) == len(logprobs) == len(row.tokens)
        assert misproved(row.tokens, mask, logprobs, versions) == []
        for number, first, end, _ in row.calls:
            if any(mask[first:end]):
                there = seen[number]
                assert tuple(row.tokens[:first]) == there.prompt
                assert tuple(row.tokens[first:end]) == there.out
                assert tuple(versions[first:end]) == there.versions
            for place in range(first, end):
                if mask[place]:
                    key = number, place - first
                    trained[key] = trained.get(key, 0) + 1
            mask[first:end] = [0] * (end - first)
        assert not any(mask), "a token is trained that no call sampled"
    assert all(times == 1 for times in trained.values())
    assert trained.keys() == due(log, seen, rows.masked)
    masked = sum(n for name, n in rows.counts.items() if name.startswith("masked_"))
    assert rows.counts["sampled"] == rows.counts["trained"] + masked
    shuffled = list(log.calls.items())
    random.Random(len(shuffled)).shuffle(shuffled)
    assert rows_of(replace(log, calls=dict(shuffled))) == rows
    return rows


def retried_by(log: Log, call: Call) -> list[int]:
    """The calls whose client has this answer instead of theirs."""
    return [call.retry, *retried_by(log, log.calls[call.retry])] if call.retry else []


def due(log: Log, seen: dict[int, Seen], masked: bool) -> set[tuple[int, int]]:
    """The tokens that must be trained on, by rules said in another way than in rows.py."""
    done = {n: call for n, call in log.calls.items() if call.state is State.DONE}
    lost = [
        call
        for n, call in log.calls.items()
        if n not in done
        and call.sent is not Sent.NOTHING
        and not any(m > n and each.req_digest == call.req_digest for m, each in done.items())
    ]
    assert masked == bool(lost), "a lost turn masks its session, and nothing else does"
    if masked:
        return set()
    found = set()
    for n, call in done.items():
        continued = any(each.parent == n and is_clean(each, done) for each in done.values())
        superseded = not continued and any(n in retried_by(log, each) for each in done.values())
        hung_up = call.sent is Sent.HUNG_UP and not continued
        if superseded or hung_up or seen[n].fault in ("short", "versions", "prompt_ids"):
            continue
        first = 1 if seen[n].fault in ("nan", "infinite") else 0
        found |= {(n, place) for place in range(first, len(seen[n].out))}
    return found

"""A turn goes from a request to its committed answer.

1. begin (`lua/begin.lua`): the call is open in Redis, which says what it continues, or its answer.
   Meanwhile a permit is asked for, and the engine renders what most likely comes next.
2. prompt: the ids of what it continues, and those of its tail; or the whole conversation's.
3. sample: an engine goes on from these ids. What was aborted goes on, by ids, where it stopped.
4. parse: the engine says what the tokens mean.
5. commit: ids, log-probabilities and versions are in Redis. Only now may the answer leave.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeVar

from gateway import canonical
from gateway.calls import Call, Sent, common
from gateway.dialects.dialect import Question, Reply, answered
from gateway.engines.engine import Engine
from gateway.engines.models import Answer, Chat, Part
from gateway.engines.pool import Pool
from gateway.errors import EngineFailed, RequestRefused
from gateway.log import Asked, Fresh, Join, Replay, Session, SessionLog
from gateway.metrics import Tally
from gateway.packing import Ids, floats_of, ids_of, runs, spread
from gateway.settings import GatewaySettings
from ground import RedisFull, RedisUnavailable, tracing
from ground.backoff import backoff
from ground.tasks import ended
from limiter import GateUnavailable, LimitTimeout, Permit

log = logging.getLogger(__name__)

T = TypeVar("T")

_PAUSE, _LONGEST_PAUSE = 0.1, 5.0  # seconds between tries that bring no token
_NOT_SAMPLING = {"max_tokens", "thinking", "chat_template_kwargs"}


@dataclass(frozen=True)
class Prompt:
    """Ids that the engine reads, and how they are stored: behind whose, and how many of them."""

    ids: Ids
    parent: int | None = None
    keep: int = 0


@dataclass
class Sampled:
    """The parts of one answer, joined; one at the end may be of another engine than the first."""

    part: Part = field(default_factory=Part)
    lacks: str = ""
    parts: list[Part] = field(default_factory=list)

    def add(self, part: Part) -> None:
        """Add a part behind what is there. Without a log-probability for each id, there is none for
        any."""
        whole = self.part
        if len(part.lps) != len(part.ids):
            self.lacks = "logprobs"
        if part.ids:
            self.parts.append(part)
        whole.text = part.text if len(self.parts) <= 1 else None
        whole.answer = part.answer if len(self.parts) <= 1 else None
        whole.ids += part.ids
        whole.lps += part.lps
        whole.finish, whole.stop, whole.engine = part.finish, part.stop, part.engine

    async def settle(self) -> None:
        """Join the versions that sampled the parts, when all are known."""
        for part in self.parts:
            await part.settled()
            self.part.spans += part.spans
            self.part.bracket = part.bracket or self.part.bracket


@dataclass(frozen=True)
class Answered:
    """A committed answer, and what to note when it has left."""

    reply: Reply
    sent: Callable[[Sent], None]


class Turns:
    """A process has one of these, which answers the requests of all its sessions."""

    def __init__(
        self, sessions: SessionLog, pool: Pool, settings: GatewaySettings, tally: Tally
    ) -> None:
        self._log = sessions
        self._pool = pool
        self._settings = settings
        self._tally = tally
        self._side = {name.strip() for name in settings.gateway_side_models.split(",")} - {""}
        self._here: dict[tuple[str, int], asyncio.Future[Answered]] = {}

    async def answer(
        self, session: Session, question: Question, digest: bytes, dialect: str,
        *, retry: bool = False, key: str = "", trace: str = "",
    ) -> Answered:  # fmt: skip
        """The answer, committed. A retry gets the answer that its first try got. `trace` is the
        span that the turn is part of; by default the current one."""
        base = canonical.root(question.chat.tools, question.chat.kwargs, question.model)
        hashes = canonical.chain(base, question.messages)
        # What the client began of this answer is no turn that was answered before.
        before = question.messages[: len(hashes) - question.chat.continues]
        known, places = canonical.turns(before, hashes)
        asked = Asked(digest, tuple(known), retry, key)
        while True:
            async with self._ahead(session, question, places) as ahead:
                if not (retry or key or asked.waited):  # they may be answered already
                    ahead.go()
                begun = await self._log.begin(session, asked)
                if isinstance(begun, Fresh):
                    ahead.go()
                    turn = _Turn(
                        session, question, begun, dialect, digest, base, hashes, ahead,
                        time.monotonic(),
                    )  # fmt: skip
                    return await self._fresh(turn, trace)
            if isinstance(begun, Replay):
                self._tally.count("replayed")
                return await self._replayed(session, question, begun)
            self._tally.count("joined")
            await self._joined(session, begun)
            asked = replace(asked, waited=True)

    async def count(self, session: Session, question: Question) -> int:
        """The tokens of the request's prompt, as an engine renders it in this session."""
        chat = _with_kwargs(question.chat, session.sampling)
        return len((await self._asked(session, lambda each: each.render(chat))).ids)

    async def _joined(self, session: Session, join: Join) -> None:
        here = self._here.get((session.sid, join.call))
        if here is not None:
            await asyncio.wait([here])
        else:
            await self._log.joined(session, join.call, join.wait)

    async def _replayed(self, session: Session, question: Question, replay: Replay) -> Answered:
        """The stored answer; or the same tokens, parsed again."""
        call, prompt = replay.call, ids_of()
        if question.ids or replay.answer is None:
            prompt = (await self._log.ids(session, call.id))[: call.begin]
        if replay.answer is not None:
            reply = replace(Reply.load(replay.answer), prompt=tuple(prompt))
        else:
            part = Part(ids=call.out.tolist(), lps=list(call.lps), finish=call.finish)
            part.stop = _id_or_text(call.stop)
            reply = await self._reply(session, question, call.id, call.t1 // 1000, prompt, part)
        return Answered(reply, lambda sent: self._log.sent(session, call.id, sent))

    async def _fresh(self, turn: _Turn, trace: str) -> Answered:
        session, call = turn.session, turn.begun.call
        done: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
        self._here[session.sid, call] = done
        try:
            about = {"penstock.session": session.sid}
            with tracing.span(f"turn {session.task}", about, parent=trace):
                reply = await self._committed(turn)
        except BaseException:
            self._log.broke(session, call, turn.begun.fence)
            done.cancel()
            raise
        finally:
            del self._here[session.sid, call]
        answered = Answered(reply, lambda sent: self._log.sent(session, call, sent))
        done.set_result(answered)
        return answered

    async def _committed(self, turn: _Turn) -> Reply:
        session, question, engine = turn.session, turn.question, turn.ahead.engine
        if question.chat.tools and question.chat.calls and not engine.parses_tools:
            raise RequestRefused(
                f"the engine {engine.url} parses no tool calls: start it with its tool parser, and "
                "vLLM with --enable-scale-out", "tools",
            )  # fmt: skip
        prompt, sampled = await self._sample(turn)
        part = sampled.part
        reply = await self._reply(
            session, question, turn.begun.call, int(time.time()), prompt.ids, part
        )
        await sampled.settle()
        self._tally.sampled(len(prompt.ids) - prompt.keep, len(part.ids))
        call = _call(turn, prompt, sampled, reply, question.model not in self._side)
        reached = canonical.chain(turn.before, [answered(reply.answer, turn.began_by_client)])[-1]
        await self._commit(session, turn.begun.fence, call, reached, reply.dump())
        return reply

    def _ahead(self, session: Session, question: Question, places: list[int]) -> _Ahead:
        """The tail behind the newest answer is rendered, if the session keeps to tails."""
        chat, engine = _with_kwargs(question.chat, session.sampling), self._pool.pick(session.sid)
        tails = places and session.sampling.get("thinking") != "template"
        start = places[0] + 1 if tails else 0
        return _Ahead(
            engine, chat, start,
            lambda: self._permit(session, engine), lambda: self._rendered(session, chat, start),
        )  # fmt: skip

    async def _rendered(self, session: Session, chat: Chat, start: int) -> list[int] | None:
        """Ids of the messages from `start` on; None if these cannot be rendered alone."""
        if start:
            return await self._asked(session, lambda each: each.tail.render(chat, start))
        return (await self._asked(session, lambda each: each.render(chat))).ids

    async def _prompt(self, engine: Engine, turn: _Turn) -> Prompt:
        """The prompt by ids, behind the call that the request continues, if its tail can be
        rendered alone."""
        hits, ahead = turn.begun.hits, turn.ahead
        place = next((n for n, hit in enumerate(hits) if hit is not None), None)
        parent = hits[place] if place is not None else None
        held = await self._log.ids(turn.session, parent) if parent is not None else ids_of()
        ids = await ahead.rendering if place == 0 or not ahead.start else None
        if ahead.start and ids is not None:
            delta = [*engine.tail.closing(held[-len(engine.tail.close) :]), *ids]
            return Prompt(held + ids_of(delta), parent, len(held))
        if ids is None:
            ids = (await self._asked(turn.session, lambda each: each.render(ahead.chat))).ids
        whole = ids_of(ids)
        keep = common(held, whole)
        self._tally.count("rendered_whole")
        return Prompt(whole, parent if keep else None, keep)

    async def _asked(self, session: Session, ask: Callable[[Engine], Awaitable[T]]) -> T:
        """The answer of an engine, be it another one than the first."""
        failures = 0
        while True:
            engine = self._pool.pick(session.sid)
            try:
                answer = await ask(engine)
                self._pool.answered(engine)
                return answer
            except EngineFailed as failure:
                failures += 1
                self._tally.count("engine_failed")
                self._pool.rest(engine, failure)
                if failures >= self._settings.gateway_attempts:
                    raise
            await asyncio.sleep(backoff(failures, _PAUSE, _LONGEST_PAUSE))

    def _most(self, question: Question, session: Session, engine: Engine, prompt: int) -> int:
        room = engine.model_len - prompt if engine.model_len else 1 << 20
        if room < 1:
            raise RequestRefused(
                f"This model's maximum context length is {engine.model_len} tokens. However, your "
                f"messages resulted in {prompt} tokens.", "messages", too_long=True,
            )  # fmt: skip
        return min(room, *(most for most in (question.most, session.sampling.get("max_tokens"))
                           if most is not None), 1 << 20)  # fmt: skip

    async def _sample(self, turn: _Turn) -> tuple[Prompt, Sampled]:
        """The prompt, and an answer to it that is whole, whichever engines abort or die on the
        way. The prompt is rendered while the first permit is waited for."""
        engine, chat, asking = turn.ahead.engine, turn.ahead.chat, turn.ahead.permit
        sampled, failures, tries = Sampled(), 0, 0
        params = _params(turn.session.sampling, turn.question)
        prompt: Prompt | None = None
        ids: list[int] = []
        # Half a text that was to end at a string, or under a grammar, cannot be gone on with.
        joins = not (params.get("stop") or chat.constraints)
        while True:
            async with asking as permit:
                if prompt is None:
                    prompt = await self._prompt(engine, turn)
                    ids = prompt.ids.tolist()
                    most = self._most(turn.question, turn.session, engine, len(ids))
                await permit.granted()
                while True:
                    rid = f"{turn.session.sid}-{turn.begun.call:06d}-{tries:03d}"
                    tries += 1
                    part = await engine.generate(
                        ids + sampled.part.ids, chat,
                        {**params, "max_tokens": most - len(sampled.part.ids)}, rid,
                    )  # fmt: skip
                    if part.failure is None and part.finish != "abort":
                        self._pool.answered(engine)
                        sampled.add(part)
                        return prompt, sampled
                    self._tally.count("aborted" if part.failure is None else "engine_failed")
                    if part.ids and joins:
                        failures = 0
                        sampled.add(part)
                        if part.ids[-1:] == list(engine.tail.close[:1]):
                            sampled.part.finish, sampled.part.stop = "stop", part.ids[-1]
                            return prompt, sampled
                        if len(sampled.part.ids) >= most:
                            sampled.part.finish = "length"
                            return prompt, sampled
                    else:
                        failures += 1
                    if part.failure is not None:
                        permit.failed(part.failure)
                        break
                    if failures >= self._settings.gateway_attempts:
                        raise EngineFailed(
                            engine.url, "it aborts each answer before its first token"
                        )
                    if failures:
                        await asyncio.sleep(backoff(failures, _PAUSE, _LONGEST_PAUSE))
            log.warning("a generation broke off", extra={"reason": str(part.failure)})
            self._pool.rest(engine, part.failure)
            if failures >= self._settings.gateway_attempts:
                raise part.failure
            engine = self._pool.pick(turn.session.sid)
            if failures:
                await asyncio.sleep(backoff(failures, _PAUSE, _LONGEST_PAUSE))
            asking = self._permit(turn.session, engine)

    def _permit(self, session: Session, engine: Engine) -> _Permit:
        """The right to sample there; it is held over what an engine aborts."""
        gate, wait = self._pool.gate(engine), self._settings.gateway_engine_wait
        return _Permit(engine, gate.acquire(timeout=wait, share=session.run))

    async def _reply(
        self, session: Session, question: Question, call: int, created: int, prompt: Any, part: Part
    ) -> Reply:
        """The reply to the client, by the meaning of the tokens."""
        chat = question.chat
        answer = await self._asked(session, lambda engine: engine.parse(part, prompt, chat))
        ended = part.ids[-1:] == list(self._pool.first.tail.close[:1])
        stop = None
        if part.finish == "stop" and not ended:
            answer, stop = _cut(answer, _stops(session.sampling, question))
        finish = "tool_calls" if answer.calls and part.finish == "stop" else part.finish
        tokens: tuple[tuple[int, float | None], ...] = ()
        if question.logprobs or question.ids:
            lps = (None if math.isnan(lp) else lp for lp in part.lps)
            tokens = tuple(zip(part.ids, lps, strict=False))
        return Reply(
            f"{session.sid}-{call}", created, question.model, answer, finish, stop, len(prompt),
            len(part.ids), tokens, tuple(prompt) if question.ids else (),
        )  # fmt: skip

    async def _commit(
        self, session: Session, fence: str, call: Call, reached: bytes, answer: bytes
    ) -> None:
        """Commit the call, again and again while Redis is away or full, until its time is over."""
        deadline = time.monotonic() + self._settings.gateway_commit
        while True:
            try:
                await self._log.commit(session, fence, call, reached, answer)
                return
            except (RedisUnavailable, RedisFull):
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(_PAUSE)


@dataclass(frozen=True)
class _Turn:
    """The parts of one turn."""

    session: Session
    question: Question
    begun: Fresh
    dialect: str
    digest: bytes
    base: bytes
    hashes: list[bytes]
    ahead: _Ahead
    began: float

    @property
    def before(self) -> bytes:
        """The hash of what stands before the answer, without what the client began of it."""
        kept = len(self.hashes) - self.question.chat.continues
        return self.hashes[kept - 1] if kept else self.base

    @property
    def began_by_client(self) -> str:
        """The beginning of the answer that the client wrote."""
        return self.question.messages[-1].content if self.question.chat.continues else ""


class _Ahead:
    """The steps that need not wait until Redis has noted the call. What is not used is given back:
    an answer that is there already costs no token.

    start      the first message that is rendered; 0: the whole conversation is
    rendering  the ids, once it goes; None if these messages cannot be rendered alone
    permit     the right to sample, once it goes
    """

    rendering: asyncio.Task[list[int] | None]
    permit: _Permit

    def __init__(
        self,
        engine: Engine,
        chat: Chat,
        start: int,
        permit: Callable[[], _Permit],
        render: Callable[[], Coroutine[Any, Any, list[int] | None]],
    ) -> None:
        self.engine, self.chat, self.start = engine, chat, start
        self._permit, self._render = permit, render
        self._goes = False

    def go(self) -> None:
        """Begin, if it has not begun."""
        if not self._goes:
            self._goes = True
            self.permit, self.rendering = self._permit(), asyncio.create_task(self._render())
            # If nobody needs it, its failure is nobody's.
            self.rendering.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *failure: Any) -> None:
        if self._goes:
            if not self.rendering.done():
                await ended([self.rendering])
            await self.permit.__aexit__(*failure)


class _Permit:
    """A permit that is asked for, and what its release reports of the engine."""

    def __init__(self, engine: Engine, asking: Coroutine[Any, Any, Permit]) -> None:
        self._engine = engine
        self._asking = asyncio.create_task(asking)
        self._held: Permit | None = None
        self._over = False

    async def granted(self) -> None:
        """Wait until the permit is there."""
        try:
            self._held = await self._asking
        except (LimitTimeout, GateUnavailable) as full:
            raise EngineFailed(self._engine.url, str(full), overloaded=True) from None

    def failed(self, failure: EngineFailed) -> None:
        """The engine did not do it."""
        assert self._held is not None  # noqa: S101 - it was granted
        if failure.overloaded:
            self._held.throttled(failure.after)
        else:
            self._held.overloaded()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._over:
            return
        self._over = True
        if not self._asking.done():
            self._asking.cancel()
            await asyncio.wait([self._asking])
        if not self._asking.cancelled() and self._asking.exception() is None:
            permit = self._asking.result()
            if kind is not None or self._held is None:
                permit.unreported()
            permit.release()


def _with_kwargs(chat: Chat, sampling: Mapping[str, Any]) -> Chat:
    """The session's arguments of the template stand over the agent's."""
    kwargs = sampling.get("chat_template_kwargs")
    return replace(chat, kwargs={**chat.kwargs, **kwargs}) if kwargs else chat


def _params(sampling: Mapping[str, Any], question: Question) -> dict[str, Any]:
    """The session's, and the agent's stops. Nothing set means the model's own distribution."""
    params: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0, "top_k": -1}
    params |= {name: value for name, value in sampling.items() if name not in _NOT_SAMPLING}
    if stops := _stops(sampling, question):
        params["stop"] = stops
    return params


def _stops(sampling: Mapping[str, Any], question: Question) -> list[str]:
    """The texts that end an answer: the session's, and the agent's."""
    return [*sampling.get("stop", ()), *question.stops]


def _cut(answer: Answer, stops: Sequence[str]) -> tuple[Answer, str | None]:
    """The answer up to the text that ended it, which its tokens keep. An answer may end so while it
    thinks."""
    text = answer.content or answer.reasoning
    found = [(text.index(stop), stop) for stop in stops if stop in text]
    if not found:
        return answer, None
    place, stop = min(found)
    if answer.content:
        return replace(answer, content=text[:place]), stop
    return replace(answer, reasoning=text[:place]), stop


def _id_or_text(stop: str) -> int | str | None:
    return int(stop) if stop.isdigit() else stop or None


def _call(turn: _Turn, prompt: Prompt, sampled: Sampled, reply: Reply, train: bool) -> Call:
    part, begun = sampled.part, turn.begun
    lps = [math.nan] * len(part.ids) if sampled.lacks else part.lps
    return Call(
        id=begun.call, parent=prompt.parent, keep=prompt.keep, delta=prompt.ids[prompt.keep :],
        out=ids_of(part.ids), lps=floats_of(lps),
        spans=tuple((n, version) for n, version in runs(spread(part.spans))),
        bracket=part.bracket, finish=reply.finish,
        stop="" if part.stop is None else str(part.stop), req_digest=turn.digest,
        retry=begun.retry, lacks=sampled.lacks, train=train,
        constrained=bool(turn.question.chat.constraints), foreign=begun.foreign,
        dialect=turn.dialect, engine=part.engine, t0=begun.at,
        t1=begun.at + int((time.monotonic() - turn.began) * 1000), asked=turn.question.asked,
    )  # fmt: skip

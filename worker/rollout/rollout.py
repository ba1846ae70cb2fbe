"""Multi-turn rollouts: the model speaks, its tools answer, until one of them ends it.

A trajectory that broke on our side comes back masked, with its reason: it is not
an exception, and it is not a wrong answer.
"""

import asyncio
import inspect
import json
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, get_args, runtime_checkable

from ground import tracing
from ground.tasks import cancellations, heed_cancellation
from limiter import Gate
from worker.rollout.chat import ABORTED, CallStyle, Chat, Reply, TooLong
from worker.rollout.exact import GatewayRefusal, Sessions
from worker.rollout.request import THOUGHTS, Message, RolloutRequest, text_of
from worker.rollout.toolbox import Tool, Toolbox, schemas_of
from worker.rollout.trajectory import (
    CountTokens,
    Masked,
    StopReason,
    TokenCount,
    Trajectory,
    TurnMetrics,
    guess,
)

if TYPE_CHECKING:
    from openai import AsyncOpenAI

log = logging.getLogger("penstock.rollout")


@runtime_checkable
class Reasoned(Protocol):
    """A `Score` of cases, or the `Grade` of a trainer's grader."""

    @property
    def value(self) -> float | None: ...
    @property
    def reason(self) -> str: ...


Graded = float | Reasoned | None
Grade = Callable[[Trajectory], Graded | Awaitable[Graded]]


class Rollout:
    """How trajectories are made: the model, the tools, the grade.

        rollout = Rollout(AsyncOpenAI(base_url=…), "qwen", [tool], score=grade)
        trajectory = await rollout.run(rollout.request(messages, max_seq_len=8192))

    `score` grades a trajectory that came to an end. If it raises, or gives None or a masked
    `Score` or `Grade`, the trajectory is masked. `count_tokens` is your tokenizer's count of a
    text. Without it, the server's own counts are used, and an estimate for new text.
    `calls_per_turn` run side by side, and the model gets an error for further ones. A tool
    that is silent for `tool_timeout` seconds masks the trajectory.

    `version` tells the newest version of the policy. With it trajectories know which version made
    which tokens, and one whose answer the engine aborts is interrupted, not masked.

    With a `task` the client is a gateway's: its URL ends in `/v1`, and its key is the gateway's
    token. Each trajectory is a session there, and has the exact tokens as `rows`. At its end they
    are put into the buffer of that task, with the score. Gates and versions are the gateway's.

    Under a `gate` each request to the server holds a permit, and its release reports 429, 503,
    other 5xx and timeouts: an adaptive gate finds what the server takes. Penstock retries then.
    """

    def __init__(
        self,
        client: "AsyncOpenAI",
        model: str,
        tools: Iterable[Tool] = (),
        *,
        score: Grade | None = None,
        call_style: CallStyle = "native",
        count_tokens: CountTokens = guess,
        calls_per_turn: int = 16,
        tool_timeout: float = 900.0,
        version: Callable[[], int] | None = None,
        gate: Gate | None = None,
        task: str | None = None,
    ) -> None:
        if task is not None and (gate is not None or version is not None):
            raise ValueError(
                "with `task` the gateway has the gates and versions: leave out"
                f" {'gate' if gate is not None else 'version'}"
            )
        if call_style not in get_args(CallStyle):
            raise ValueError(f"call_style is one of {get_args(CallStyle)}, not {call_style!r}")
        if calls_per_turn < 1 or not tool_timeout > 0:
            given = f"{calls_per_turn} and {tool_timeout}"
            raise ValueError(f"calls_per_turn is 1 or more, tool_timeout above 0; not {given}")
        if score is not None and not callable(score):
            raise TypeError(f"score is a function of a trajectory, not {score!r:.60}")
        self._chat = Chat(client, model, call_style, partials=version is not None, gate=gate)
        self._sessions = None if task is None else Sessions(client, task)
        self._version = version
        self._interrupts = 0
        listed = list(tools)
        self._tools = {tool.name: tool for tool in listed}
        if len(self._tools) < len(listed):
            raise ValueError(f"two tools have one name: {[tool.name for tool in listed]}")
        self.tool_schemas = schemas_of(listed)
        self.call_style = call_style
        self._score = score
        self._count = count_tokens
        self._calls_per_turn, self._tool_timeout = calls_per_turn, tool_timeout

    def request(
        self, messages: list[Message], *, tools: Iterable[str] | None = None, **fields: Any
    ) -> RolloutRequest:
        """A request with the schemas of the tools named; of all, where none are."""
        names = list(self.tool_schemas) if tools is None else list(tools)
        self._require(names)
        schemas = [self.tool_schemas[name] for name in names]
        return RolloutRequest(messages=messages, tool_schemas=schemas, **fields)

    def interrupt(self) -> None:
        """Trajectories that are under way stop before they ask the model again. Tools and answers
        that are under way finish first. The `stop_reason` is `interrupted`."""
        self._interrupts += 1

    async def run(
        self, request: RolloutRequest, *, partial: Mapping[str, Any] | None = None
    ) -> Trajectory:
        """Play it to its end. Cancelling it releases the tools.

        `partial` is what `Trajectory.partial()` returned for an interrupted one, in any process.
        It is continued. Its tools are created again, so they must store their own state.
        """
        with tracing.span("rollout", {"penstock.request": request.request_id}) as span:
            trajectory = await self._played(request, partial)
            span.set("penstock.stop_reason", str(trajectory.stop_reason))
            return trajectory

    async def _played(
        self, request: RolloutRequest, partial: Mapping[str, Any] | None
    ) -> Trajectory:
        self._require([schema.function.name for schema in request.tool_schemas])
        trajectory, interrupts = Trajectory(request, list(request.messages)), self._interrupts
        cancelled = cancellations()
        if partial is not None:
            trajectory.go_on(partial)
        toolbox = Toolbox(self._tools, request, self._calls_per_turn, self._tool_timeout)
        chat, session = self._chat, None
        try:
            if self._sessions is not None:
                session = await self._sessions.open(request)
                chat = chat.keyed(session.client)
            await toolbox.create()
            trajectory.stop_reason = await self._converse(chat, trajectory, toolbox, interrupts)
            if trajectory.stop_reason is StopReason.INTERRUPTED:
                trajectory.mask("interrupted", StopReason.INTERRUPTED)
                return trajectory
            trajectory.reward_scores = await toolbox.rewards()
            trajectory.score = await self._graded(trajectory)
        except GatewayRefusal:
            raise
        except Masked as failure:
            trajectory.mask(str(failure))
            log.warning("trajectory %s is masked: %s", request.request_id, failure)
        except (Exception, asyncio.CancelledError) as failure:
            if cancellations() > cancelled:
                raise
            # Nobody foresaw it. It costs this one trajectory, and not the batch.
            trajectory.mask(f"rollout: {type(failure).__name__}: {failure}")
            log.exception("trajectory %s is masked", request.request_id)
        finally:
            # Shielded: a session that is not released is held until its time to live.
            await asyncio.shield(toolbox.release())
        heed_cancellation(cancelled)  # a tool or a client may have made another error of it
        if session is not None:
            await session.finalize(trajectory)
        return trajectory

    def _require(self, names: list[str]) -> None:
        if unknown := sorted(set(names) - set(self._tools)):
            there = ", ".join(self._tools) or "none"
            raise ValueError(f"a request names tools that are not here: {unknown}; here: {there}")

    async def _converse(
        self, chat: Chat, trajectory: Trajectory, toolbox: Toolbox, interrupts: int
    ) -> StopReason:
        request = trajectory.request
        tokens = TokenCount(self._count, request.max_seq_len, trajectory.seq_len)
        if not trajectory.seq_len:
            tokens.add(_text_of(request))
        while trajectory.answers < request.max_turns:
            trajectory.seq_len = tokens.seq_len
            if tokens.full:
                return StopReason.MAX_SEQ_LEN
            if self._interrupts != interrupts:
                return StopReason.INTERRUPTED
            version = self._version() if self._version else None
            try:
                reply = await chat.ask(
                    trajectory.messages, request, toolbox.schemas, tokens.room,
                    unfinished=trajectory.unfinished,
                )  # fmt: skip
            except TooLong:
                return StopReason.MAX_SEQ_LEN
            turn = _noted(trajectory, reply, tokens)
            if version is not None:
                trajectory.made(turn.prompt_tokens, turn.completion_tokens, version)
            if trajectory.unfinished:
                return StopReason.INTERRUPTED
            if tokens.full:
                return StopReason.MAX_SEQ_LEN
            if reply.finish_reason == "length":
                return StopReason.LENGTH
            if not reply.calls:
                return StopReason.STOP
            await self._answer(trajectory, toolbox, reply, turn, tokens)
        return StopReason.MAX_TURNS

    async def _answer(
        self,
        trajectory: Trajectory,
        toolbox: Toolbox,
        reply: Reply,
        turn: TurnMetrics,
        tokens: TokenCount,
    ) -> None:
        began = asyncio.get_running_loop().time()
        answers, turn.calls = await toolbox.answer(reply.calls)
        turn.tool_seconds = asyncio.get_running_loop().time() - began
        trajectory.messages += answers
        for answer in answers:
            tokens.add(answer["content"])
        trajectory.seq_len = tokens.seq_len

    async def _graded(self, trajectory: Trajectory) -> float | None:
        if self._score is None:
            return None
        try:
            graded = self._score(trajectory)
            if inspect.isawaitable(graded):
                graded = await graded
        except Exception as failure:
            raise Masked(f"score: {type(failure).__name__}: {failure}") from failure
        value: Any = graded
        if isinstance(graded, Reasoned):
            value = graded.value
            if value is None:
                raise Masked(f"score: {graded.reason}")
        if value is None:
            raise Masked("score: it is not known")
        return _finite(value)


def _finite(value: Any) -> float:
    """The number; nothing else may reach a mean, or a line of JSON."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise Masked(f"score: {value!r:.60} is no number")
    return number


def _noted(trajectory: Trajectory, reply: Reply, tokens: TokenCount) -> TurnMetrics:
    """The answer taken into the conversation, its length and its metrics."""
    before = tokens.seq_len
    if reply.usage:
        tokens.counted(*reply.usage)
    else:
        begun = _words_of(trajectory.messages[-1]) if trajectory.unfinished else ""
        tokens.add(_words_of(reply.message).removeprefix(begun))
    prompt, completion = reply.usage or (before, tokens.seq_len - before)
    turn = TurnMetrics(reply.finish_reason, prompt, completion, reply.seconds)
    trajectory.turns.append(turn)
    if trajectory.unfinished:
        del trajectory.messages[-1]  # the reply's message is the whole
    trajectory.unfinished = reply.finish_reason == ABORTED
    if trajectory.unfinished:
        reply.message.pop("tool_calls", None)  # they may be cut off
    else:
        trajectory.answers += 1
    trajectory.messages.append(reply.message)
    trajectory.seq_len = tokens.seq_len
    return turn


def _words_of(answer: Message) -> str:
    thoughts = next(filter(None, map(answer.get, THOUGHTS)), "")
    calls = json.dumps(answer["tool_calls"]) if "tool_calls" in answer else ""
    return f"{thoughts}{answer['content']}{calls}"


def _text_of(request: RolloutRequest) -> str:
    said = "\n".join(f"{message['role']}\n{text_of(message)}" for message in request.messages)
    schemas = (schema.model_dump_json(exclude_none=True) for schema in request.tool_schemas)
    return "\n".join((said, *schemas))

"""The tools of one trajectory: made at its start, called side by side, released at its end.

Any object of verl's tool interface will do. A tool that raises, or whose metrics say `traj_masked`
or an `error_kind` of `infrastructure`, masks the trajectory. The model's next turns would answer to
a failure that is not its own.
"""

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from ground import tracing
from ground.tasks import heed_cancellation
from worker.rollout.calls import Call, encodable
from worker.rollout.request import Message, RolloutRequest
from worker.rollout.trajectory import CallMetrics, Masked
from worker.tool.schemas import OpenAIFunctionToolSchema

log = logging.getLogger("penstock.rollout")


class Tool(Protocol):
    """verl's interface: `worker.tool` has one, and yours may be another."""

    name: str
    tool_schema: Any

    async def create(self, instance_id: str | None = None, **kwargs: Any) -> Any: ...

    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs: Any) -> Any: ...

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> Any: ...

    async def release(self, instance_id: str, **kwargs: Any) -> Any: ...


class Toolbox:
    """The tools of one trajectory, all under its `request_id`."""

    def __init__(
        self, tools: Mapping[str, Tool], request: RolloutRequest, most: int, patience: float
    ) -> None:
        wanted = [schema.function.name for schema in request.tool_schemas]
        self._tools = {name: tools[name] for name in wanted}
        self._request = request
        self._most, self._patience = most, patience
        self._made: list[str] = []
        self.schemas = {schema.function.name: schema for schema in request.tool_schemas}

    async def create(self) -> None:
        for name, tool in self._tools.items():
            self._made.append(name)  # before: one that fails half-way is released too
            given = self._request.kwargs_of(name).create_kwargs
            await self._guarded(name, tool.create(self._request.request_id, **given))

    async def answer(self, calls: list[Call]) -> tuple[list[Message], list[CallMetrics]]:
        """A message to each call, in their order. Raises `Masked` once all have ended."""
        tasks = [self._answer(call, place) for place, call in enumerate(calls)]
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        done: list[tuple[str, CallMetrics]] = []
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
            done.append(answer)
        messages = [_message(call, text) for call, (text, _) in zip(calls, done, strict=True)]
        return messages, [metrics for _, metrics in done]

    async def rewards(self) -> dict[str, Any]:
        return {
            name: await self._guarded(
                name,
                tool.calc_reward(
                    self._request.request_id, **self._request.kwargs_of(name).calc_reward_kwargs
                ),
            )
            for name, tool in self._tools.items()
        }

    async def release(self) -> None:
        """Release every tool that was made. A failure is only logged: no retry would help."""
        for name in self._made:
            given = self._request.kwargs_of(name).release_kwargs
            try:
                async with asyncio.timeout(self._patience):
                    await self._tools[name].release(self._request.request_id, **given)
            except (Exception, asyncio.CancelledError):  # a user's code, which may raise either
                heed_cancellation()
                log.exception("tool %s could not be released", name)

    async def _answer(self, call: Call, place: int) -> tuple[str, CallMetrics]:
        problem = call.problem
        if place >= self._most:
            problem = f"only {self._most} calls run in one turn; make this one in the next"
        if problem:
            return f"Error: {problem}", CallMetrics(call.name, refused=True)
        began = time.monotonic()
        given = self._request.kwargs_of(call.name).execute_kwargs
        about = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": call.name}
        with tracing.span(f"execute_tool {call.name}", about):
            said = await self._guarded(
                call.name,
                self._tools[call.name].execute(self._request.request_id, call.arguments, **given),
            )
        text, reward, metrics = _read(call.name, said)
        if metrics.get("traj_masked") or metrics.get("error_kind") == "infrastructure":
            why = metrics.get("traj_exit_reason") or metrics.get("error_reason") or "infrastructure"
            raise Masked(f"tool {call.name}: {why}")
        return text, CallMetrics(
            call.name, time.monotonic() - began, reward=reward, metrics=metrics
        )

    async def _guarded(self, name: str, work: Any) -> Any:
        try:
            async with asyncio.timeout(self._patience) as deadline:
                return await work
        except Exception as failure:
            if deadline.expired():
                raise Masked(f"tool {name}: no answer within {self._patience:g} s") from None
            log.warning("tool %s failed", name, exc_info=True)
            raise Masked(f"tool {name}: {type(failure).__name__}: {failure}") from failure


def schemas_of(tools: Iterable[Tool]) -> dict[str, OpenAIFunctionToolSchema]:
    """The tools' schemas, whichever library's models they are."""
    return {
        tool.name: OpenAIFunctionToolSchema.model_validate(tool.tool_schema.model_dump())
        for tool in tools
    }


def _read(tool: str, said: Any) -> tuple[str, float | None, dict[str, Any]]:
    """The text, reward and metrics that `execute` returned. Raises `Masked` if it is not that."""
    if not isinstance(said, tuple | list) or len(said) != 3:
        wrong = f"execute returned a {type(said).__name__}, not (response, reward, metrics)"
        raise Masked(f"tool {tool}: {wrong}")
    response, reward, metrics = said
    text = response if isinstance(response, str | None) else getattr(response, "text", response)
    if not isinstance(text, str | None):
        raise Masked(f"tool {tool}: its response is a {type(response).__name__}, without a text")
    if not isinstance(metrics, Mapping | None):
        raise Masked(f"tool {tool}: its metrics are a {type(metrics).__name__}, not a dict")
    return text or "", reward, dict(metrics or {})


def _message(call: Call, text: str) -> Message:
    message: Message = {"role": "tool", "content": encodable(text)}
    return message | {"tool_call_id": call.id} if call.id else message

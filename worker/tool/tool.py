"""verl's Sandbox Fusion tool, on the queue.

A model's call becomes a `CodeRequest`, runs under one permit on a worker, and comes
back as text. The object lives in the host's process and is cheap to make: hosts make
many, also where there is no Redis; the first call looks for one.

    host of today (0.9)       create, execute(…, agent_data=…), release, for each call
    host until 0.6            create once a trajectory, execute …, calc_reward, release
"""

import asyncio
import contextlib
import logging
import threading
import weakref
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from ground import PenstockError
from ground.redis.connect import AnyRedis, target_of
from ground.redis.url import RedisTarget
from jail.models import CodeRequest, CodeResult
from limiter import GateError, TokenBucket
from worker.errors import DeadlineExceeded
from worker.queue.code_queue import CodeQueue
from worker.tool.call import Answer, CallRefused, program, read_call
from worker.tool.config import ToolConfig, redis_here
from worker.tool.pools import ExecutionPool, init_execution_pool
from worker.tool.schemas import CODE_INTERPRETER, OpenAIFunctionToolSchema, ToolResponse
from worker.tool.sessions import Sessions
from worker.tool.verl_host import BaseTool, traced

log = logging.getLogger("penstock.tool")

_LEAST = 0.001  # seconds for a call whose turn comes at the end of its time
_NO_CLOCK = contextlib.nullcontext()  # for a call that need not wait for its turn


class SandboxFusionTool(BaseTool):
    """The tool runs a model's code, and never returns None.

    A model's mistake is answered with words that it can act on. A failure of the
    infrastructure is reported too, and marks the trajectory to be masked: in the metrics,
    and in `agent_data.extra_fields["extras"]`, as verl drops metrics.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        tool_schema: Any = None,
        redis: AnyRedis | None = None,
    ) -> None:
        # Not the base's own __init__, which prints the schema for every trajectory.
        self.config = dict(config or {})
        self._config = ToolConfig.read(config)
        self._redis = redis or self._config.redis_url
        self._workers = _Workers(self._config, self._redis)
        self._sessions = Sessions(self._redis)
        if isinstance(tool_schema, dict):
            tool_schema = OpenAIFunctionToolSchema.model_validate(tool_schema)
        self.tool_schema = CODE_INTERPRETER.model_copy(deep=True)
        self.tool_schema = self.get_openai_tool_schema() if tool_schema is None else tool_schema
        self.name = self.tool_schema.function.name
        # Names that recipes' subclasses of verl's tool read.
        self.num_workers = self._config.num_workers
        self.rate_limit = self._config.rate_limit
        self.default_timeout = self._config.default_timeout
        self.default_language = self._config.default_language
        self.enable_global_rate_limit = self._config.enable_global_rate_limit
        self.sandbox_fusion_url = self._config.sandbox_fusion_url
        self.memory_limit_mb = self._config.memory_limit_mb
        self.execution_pool: ExecutionPool = init_execution_pool(
            self.num_workers, enable_global_rate_limit=False
        )
        self._instance_dict: dict[str, dict[str, Any]] = {}

    def get_openai_tool_schema(self) -> Any:
        """Return the schema that the model is shown; a subclass may override it, for a YAML that
        has no schema."""
        return self.tool_schema

    async def create(
        self, instance_id: str | None = None, ground_truth: Any = None, **kwargs: Any
    ) -> tuple[str, ToolResponse]:
        """Begin an instance: a trajectory, or a single call, as the host has it."""
        given = kwargs.get("create_kwargs") or {}
        if ground_truth is None:
            ground_truth = given.get("ground_truth")
        instance_id = instance_id or str(uuid4())
        self._instance_dict[instance_id] = {
            "response": "",
            "ground_truth": ground_truth,
            "reward": [],
            "session": None,
        }
        return instance_id, ToolResponse()

    @traced
    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float | None, dict[str, Any]]:
        """Run `parameters["code"]`; what to show, no reward, and how it went."""
        agent_data = kwargs.get("agent_data")
        session = self._session(instance_id, agent_data) if self._config.stateful else None
        answer = await self._answer(parameters, session)
        self._keep(instance_id, answer)
        extra_fields = getattr(agent_data, "extra_fields", None)
        if isinstance(extra_fields, dict):
            answer.mark(extra_fields)
        return ToolResponse(text=answer.text), None, answer.metrics

    def execute_code(
        self, instance_id: str, code: str, timeout: Any = 30, language: str = "python"
    ) -> ToolResponse:
        """Do as `execute`, for a thread: recipes hand this to `execution_pool.execute.remote`."""
        try:
            session = self._session(instance_id, None) if self._config.stateful else None
            request = program(code, timeout, language, self._config, session)
            answer = self._of_result(request, self._workers.run_in_thread(request))
        except Exception as failure:  # noqa: BLE001 - `_of_failure` sorts the kinds
            answer = self._of_failure(failure)
        self._keep(instance_id, answer)
        return ToolResponse(text=answer.text)

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> list[str]:
        """Return what the instance's programs printed, in order."""
        return list(self._instance_dict.get(instance_id, {}).get("reward", []))

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        """End an instance, and the session that it had. Harmless when repeated; never raises:
        it would fail the batch."""
        self._instance_dict.pop(instance_id, None)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy in another process is a new one: connections and calls stay here."""
        redis: Any = self._redis
        if redis == self._config.redis_url:
            return type(self), (self.config, self.tool_schema)
        # A client stays here; where it leads to can be sent.
        sendable = redis if isinstance(redis, str | RedisTarget) else target_of(redis)
        return type(self), (self.config, self.tool_schema, sendable)

    async def _answer(self, parameters: Any, session: str | None) -> Answer:
        try:
            request = read_call(parameters, self._config, session)
            return self._of_result(request, await self._workers.run(request))
        except Exception as failure:  # noqa: BLE001 - `_of_failure` sorts the kinds
            return self._of_failure(failure)

    def _session(self, instance_id: str, agent_data: Any) -> str:
        """The trajectory's session: a host of today makes an instance for each call, and names
        both. The one that lasts as long as the trajectory keeps the session."""
        if trajectory := getattr(agent_data, "request_id", None):
            return self._sessions.kept_by_host(trajectory, agent_data)
        instance = self._instance_dict.get(instance_id)
        return instance_id if instance is None else self._sessions.kept_by(instance, instance_id)

    def _of_result(self, request: CodeRequest, result: CodeResult) -> Answer:
        if request.instance_id is not None:
            self._sessions.check(request.instance_id, result)
        if result.error_reason == "language" and request.language != self.default_language:
            why = f"the language {request.language!r} does not run here: {result.message}"
            raise CallRefused(why)  # the model chose it, and would choose a mask by it
        return Answer.of_result(result, request.run_timeout, self._config.max_output)

    def _of_failure(self, failure: Exception) -> Answer:
        """Every failure is an answer: the host takes one that is raised for the model's mistake."""
        if isinstance(failure, CallRefused):
            return Answer.of_refusal(str(failure), self._config.max_output)
        if isinstance(failure, PenstockError):
            log.error("a call could not be run: %s", failure)
        else:
            log.error("a call could not be run: Penstock failed", exc_info=failure)
        return Answer.of_failure(failure, self._config.max_output)

    def _keep(self, instance_id: str, answer: Answer) -> None:
        instance = self._instance_dict.get(instance_id)
        if instance is not None and not answer.masked:
            instance["reward"].append(answer.text.strip())


class _Workers:
    """A tool's way to the workers: their queue, which the first call opens."""

    def __init__(self, config: ToolConfig, redis: AnyRedis | None) -> None:
        self._config = config
        self._redis = redis
        self._turns: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]
        self._turns = weakref.WeakKeyDictionary()
        self._opening = threading.Lock()
        self._queue: CodeQueue | None = None

    async def run(self, request: CodeRequest) -> CodeResult:
        """The result; at most `num_workers` programs of an event loop run at once. The time that a
        call waits for its turn is part of its `max_wait`."""
        loop, most = asyncio.get_running_loop(), self._config.max_wait
        ends = loop.time() + most
        turns = self._turns.get(loop)
        if turns is None:
            turns = self._turns[loop] = asyncio.Semaphore(self._config.num_workers)
        clock: contextlib.AbstractAsyncContextManager[object]
        clock = asyncio.timeout_at(ends) if turns.locked() else _NO_CLOCK
        try:
            async with clock:
                await turns.acquire()
        except TimeoutError:
            what = "no job yet, earlier calls of this process took all of num_workers"
            raise DeadlineExceeded("", most, what=what) from None
        try:
            queue = await asyncio.to_thread(self._open) if self._queue is None else self._queue
            return await queue.run(request, timeout=max(ends - loop.time(), _LEAST))
        finally:
            turns.release()

    def run_in_thread(self, request: CodeRequest) -> CodeResult:
        return self._open().sync.run(request, timeout=self._config.max_wait)

    def _open(self) -> CodeQueue:
        """The queue; blocks at its first use, which also writes the gate's limit."""
        with self._opening:
            if self._queue is not None:
                return self._queue
            config, target = self._config, redis_here(self._redis)
            queue = CodeQueue(target, config.destination, share=config.share)
            if config.enable_global_rate_limit:
                _ensure_gate(TokenBucket(target, config.gate, limit=config.rate_limit, patience=1))
            if config.sandbox_fusion_url:
                log.info(
                    "the workers decide where programs run: start them with "
                    "PENSTOCK_SANDBOX_FUSION_URL=%s",
                    config.sandbox_fusion_url,
                )
            self._queue = queue
            return queue


def _ensure_gate(gate: TokenBucket) -> None:
    """Write its limit where it has none. The permits are the workers' to take."""
    try:
        gate.sync.status()
    except GateError as failure:  # the queue is on the same Redis, and will raise
        log.warning("the gate's limit is not set: %s", failure)

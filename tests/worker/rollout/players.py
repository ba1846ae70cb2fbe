"""Tools and rollouts for the tests: a code interpreter on the queue, and a scripted model."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from openai import AsyncOpenAI

from tests.harness.scripted_model import ScriptedModel, scripted_model
from worker import CodeQueue, CodeRequest
from worker.rollout import Rollout
from worker.tool.schemas import CODE_INTERPRETER, ToolResponse


class QueueTool:
    """verl's interface over a `CodeQueue`, as small as it can be."""

    name = "code_interpreter"
    tool_schema = CODE_INTERPRETER

    def __init__(self, queue: Any) -> None:
        self._queue = queue
        self.outputs: dict[str, list[str]] = {}
        self.released: list[str] = []

    async def create(self, instance_id: str | None = None, **_: Any) -> tuple[str, ToolResponse]:
        self.outputs[str(instance_id)] = []
        return str(instance_id), ToolResponse()

    async def execute(self, instance_id: str, parameters: dict[str, Any], **_: Any) -> Any:
        result = await self._queue.run(CodeRequest(code=parameters["code"]))
        text = result.stdout + result.stderr
        self.outputs[instance_id].append(text.strip())
        metrics = {"error_kind": result.error_kind, "error_reason": result.error_reason}
        return ToolResponse(text=text), None, metrics

    async def calc_reward(self, instance_id: str, **_: Any) -> list[str]:
        return self.outputs[instance_id]

    async def release(self, instance_id: str, **_: Any) -> None:
        self.released.append(instance_id)


def code(program: str) -> tuple[str, str]:
    """A call of the code interpreter, as `called` takes it."""
    return "code_interpreter", json.dumps({"code": program})


def in_text(program: str) -> str:
    """The same as a model writes it."""
    call = {"name": "code_interpreter", "arguments": {"code": program}}
    return f"<tool_call>\n{json.dumps(call)}\n</tool_call>"


def completed(message: Any, finish_reason: str = "stop", **more: Any) -> Any:
    """An answer of the model's server with this message, whatever it is."""
    choice = {"index": 0, "message": message, "finish_reason": finish_reason}
    return 200, {"object": "chat.completion", "choices": [choice], **more}


def user(words: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": words}]


def assistant_turns(request: dict[str, Any]) -> int:
    """How often the model has spoken in this conversation."""
    return sum(message["role"] == "assistant" for message in request["messages"])


@asynccontextmanager
async def playing(model: ScriptedModel, *tools: Any, **options: Any) -> AsyncIterator[Rollout]:
    async with AsyncOpenAI(base_url=model.url, api_key="-", max_retries=0) as client:
        yield Rollout(client, "scripted", tools, **options)


@contextmanager
def script(*answers: Any) -> Iterator[ScriptedModel]:
    """A model that gives these answers, one a turn; the last one again and again."""

    def answer(request: dict[str, Any], _: int) -> Any:
        return answers[min(assistant_turns(request), len(answers) - 1)]

    with scripted_model(answer) as model:
        yield model


def queue_of(redis: Any, **options: Any) -> CodeQueue:
    return CodeQueue(redis, "code", **options)

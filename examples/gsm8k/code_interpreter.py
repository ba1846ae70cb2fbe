"""A tool of one's own, by verl's interface: the model's code runs on the queue."""

from typing import Any

from worker import CodeQueue, CodeRequest, RequestRefused
from worker.tool.schemas import CODE_INTERPRETER, ToolResponse


class CodeInterpreter:
    name = "code_interpreter"
    tool_schema = CODE_INTERPRETER

    def __init__(self, queue: CodeQueue) -> None:
        self._queue = queue
        self._outputs: dict[str, list[str]] = {}

    async def create(self, instance_id: str, **_: Any) -> tuple[str, ToolResponse]:
        self._outputs[instance_id] = []
        return instance_id, ToolResponse()

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **_: Any
    ) -> tuple[ToolResponse, None, dict[str, Any]]:
        try:
            request = CodeRequest(code=str(parameters["code"]))
        except RequestRefused as refusal:  # too long, or no text: the model is to know
            return ToolResponse(text=f"Error: {refusal}"), None, {}
        result = await self._queue.run(request, timeout=120)
        self._outputs[instance_id].append(result.stdout.strip())
        # An `infrastructure` failure masks the trajectory; the model sees all the others.
        metrics = {"error_kind": result.error_kind, "error_reason": result.error_reason}
        return ToolResponse(text=result.stdout + result.stderr), None, metrics

    async def calc_reward(self, instance_id: str, **_: Any) -> list[str]:
        return self._outputs[instance_id]

    async def release(self, instance_id: str, **_: Any) -> None:
        self._outputs.pop(instance_id, None)

"""The tool as a function, for verl's `function_tool_path`: name this very file there.

A function of verl's has no trajectory: it keeps no state, and can report a failure on our
side only in words. Prefer `SandboxFusionTool` where trajectories are masked.
Its settings are the tool's defaults; Redis is that of PENSTOCK_REDIS_URL.
"""

import sys
from functools import cache
from typing import Any

from worker.tool.schemas import CODE_INTERPRETER
from worker.tool.tool import SandboxFusionTool


async def code_interpreter(code: Any = None, **given: Any) -> tuple[str, float, dict[str, Any]]:
    """A tool for executing code.

    Args:
        code: The code to execute.
        given: `timeout` and `language`, where the schema offers them; the rest is ignored.
    """
    tool = _tool()
    instance_id, _ = await tool.create()
    try:
        response, _, metrics = await tool.execute(instance_id, {**given, "code": code})
    finally:
        await tool.release(instance_id)
    return response.text or "", 0.0, metrics


@cache
def _tool() -> SandboxFusionTool:
    return SandboxFusionTool()


if __name__ != "worker.tool.function_form":  # verl loads it by its path, under another name
    verl = sys.modules["verl.tools.function_tool"]
    verl.function_tool(CODE_INTERPRETER.function.name, schema=CODE_INTERPRETER.model_dump())(
        code_interpreter
    )

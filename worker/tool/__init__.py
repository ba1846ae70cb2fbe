"""Trainers give this tool to a model: it runs the model's code on the queue.

Everything is imported when it is first named: verl imports this package for its plug-in
in every process, before verl itself is fully loaded.
"""

from typing import TYPE_CHECKING

from ground.lazy import lazily as _lazily

if TYPE_CHECKING:
    from worker.tool.children import ExecutionLost
    from worker.tool.pools import ExecutionWorker, PoolMode, TokenBucketWorker, init_execution_pool
    from worker.tool.schemas import (
        OpenAIFunctionCallSchema,
        OpenAIFunctionParametersSchema,
        OpenAIFunctionParsedSchema,
        OpenAIFunctionPropertySchema,
        OpenAIFunctionSchema,
        OpenAIFunctionToolCall,
        OpenAIFunctionToolSchema,
        ToolResponse,
    )
    from worker.tool.tool import SandboxFusionTool

__all__ = [
    "ExecutionLost",
    "ExecutionWorker",
    "OpenAIFunctionCallSchema",
    "OpenAIFunctionParametersSchema",
    "OpenAIFunctionParsedSchema",
    "OpenAIFunctionPropertySchema",
    "OpenAIFunctionSchema",
    "OpenAIFunctionToolCall",
    "OpenAIFunctionToolSchema",
    "PoolMode",
    "SandboxFusionTool",
    "TokenBucketWorker",
    "ToolResponse",
    "init_execution_pool",
]


_LAZY = {
    "ExecutionLost": "worker.tool.children",
    "ExecutionWorker": "worker.tool.pools",
    "PoolMode": "worker.tool.pools",
    "init_execution_pool": "worker.tool.pools",
    "TokenBucketWorker": "worker.tool.pools",
    "OpenAIFunctionCallSchema": "worker.tool.schemas",
    "OpenAIFunctionParametersSchema": "worker.tool.schemas",
    "OpenAIFunctionParsedSchema": "worker.tool.schemas",
    "OpenAIFunctionPropertySchema": "worker.tool.schemas",
    "OpenAIFunctionSchema": "worker.tool.schemas",
    "OpenAIFunctionToolCall": "worker.tool.schemas",
    "OpenAIFunctionToolSchema": "worker.tool.schemas",
    "ToolResponse": "worker.tool.schemas",
    "SandboxFusionTool": "worker.tool.tool",
}

# Where a class path is misspelt, verl shows these words and nothing else.
__getattr__ = _lazily(__name__, _LAZY, f"; it has {', '.join(__all__)}")

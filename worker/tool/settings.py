"""The settings of the tool's process, read from its environment."""

from pydantic import Field

from ground import Settings


class ToolSettings(Settings):
    """Settings of a trainer's process that has verl."""

    verl_tool_path: bool = Field(
        False,
        description="Bring back the module `verl.tools.sandbox_fusion_tools`, which verl 0.8"
        " removed, as an alias of `worker.tool`.",
    )

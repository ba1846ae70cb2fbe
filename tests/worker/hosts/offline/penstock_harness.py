"""A harness of verifiers that needs no model: it calls `run_code`, and nothing else."""

from typing import Any

import verifiers.v1 as vf
from mcp.client import Client

__all__ = ["Harness"]

PROGRAMS = ["x = 6", "print(x * 7)"]
told: list[str] = []
between: list[Any] = []  # called after each program


class Harness(vf.Harness[vf.HarnessConfig]):
    SUPPORTS_MCP = True
    NEEDS_CONTAINER = False
    EXECUTES_CODE = False

    async def launch(
        self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str,
        mcp_urls: dict[str, str], data: Any, **_: Any,
    ) -> Any:  # fmt: skip
        for url in mcp_urls.values():
            async with Client(url) as tools:
                for code in PROGRAMS:
                    said = await tools.call_tool("run_code", {"code": code})
                    told.append(said.content[0].text)
                    for call in between:
                        await call()
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")

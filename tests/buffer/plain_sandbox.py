"""A sandbox without walls, for programs that a test wrote itself."""

import asyncio
import sys

from worker import CodeRequest, CodeResult, CommandResult


class Plain:
    """`PENSTOCK_SANDBOX=tests.buffer.plain_sandbox.Plain`."""

    name, languages = "plain", frozenset({"python"})

    def __init__(self, settings: object) -> None: ...

    async def run(self, request: CodeRequest) -> CodeResult:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", request.code, stdout=pipe, stderr=pipe
        )
        out, err = await process.communicate()
        ended = CommandResult(
            status="Finished",
            return_code=process.returncode,
            stdout=out.decode(),
            stderr=err.decode(),
        )
        return CodeResult(status="Failed" if process.returncode else "Success", run_result=ended)

    async def close(self) -> None: ...

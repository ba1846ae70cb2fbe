"""Our tool, as a host of today calls it: create, execute, release."""

from collections.abc import Awaitable, Callable

import calling

from worker.tool import SandboxFusionTool


def make(room: int) -> Callable[[], Awaitable[object]]:
    tool = SandboxFusionTool({"num_workers": room, "rate_limit": room})

    async def call() -> None:
        instance, _ = await tool.create()
        response, _, _ = await tool.execute(instance, {"code": calling.CODE})
        await tool.release(instance)
        if response.text != "220000.0\n":
            raise RuntimeError(response.text)

    return call


if __name__ == "__main__":
    calling.main(make)

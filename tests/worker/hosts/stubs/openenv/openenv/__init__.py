"""As much of openenv as our adapter and its page use: a stand-in, for tests without it."""

import json
from dataclasses import dataclass
from typing import Any, Self

from websockets.asyncio.client import connect


@dataclass
class Result:
    observation: dict[str, Any]
    reward: float | None
    done: bool


class GenericEnvClient:
    def __init__(self, base_url: str) -> None:
        self._url = base_url.replace("http://", "ws://") + "/ws"

    async def __aenter__(self) -> Self:
        self._line = await connect(self._url)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._line.close()

    async def reset(self, **row: Any) -> Result:
        return await self._asked("reset", row)

    async def step(self, action: dict[str, Any]) -> Result:
        return await self._asked("step", action)

    async def _asked(self, kind: str, data: dict[str, Any]) -> Result:
        await self._line.send(json.dumps({"type": kind, "data": data}))
        said = json.loads(await self._line.recv())
        if "message" in said:
            raise RuntimeError(f"Server error: {said['message']} (code: EXECUTION_ERROR)")
        return Result(said, said.pop("reward"), said.pop("done"))

import importlib.metadata
from pathlib import Path
from typing import Any, Self

from nemo_gym.sandbox.providers.base import SandboxSpec


class AsyncSandbox:
    def __init__(self, config: dict[str, dict[str, Any]]) -> None:
        [(name, given)] = config.items()
        group = importlib.metadata.entry_points(group="nemo_gym.sandbox_providers", name=name)
        [entry] = group
        self._provider = entry.load()(**given)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self, spec: SandboxSpec) -> Self:
        self._handle = await self._provider.create(spec)
        return self

    async def exec(self, command: str, **given: Any) -> Any:
        return await self._provider.exec(self._handle, command, **given)

    async def upload(self, local: Path | str, remote: str) -> None:
        await self._provider.upload_file(self._handle, Path(local), remote)

    async def download(self, remote: str, local: Path | str) -> None:
        await self._provider.download_file(self._handle, remote, Path(local))

    async def status(self) -> Any:
        return await self._provider.status(self._handle)

    async def stop(self) -> None:
        await self._provider.close(self._handle)
        await self._provider.aclose()

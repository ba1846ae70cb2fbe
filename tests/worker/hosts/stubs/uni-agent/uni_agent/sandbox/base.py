import abc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict


@dataclass
class ExecResult:
    exit_code: int
    stdout: str
    stderr: str


class SandboxConfig(BaseModel):
    model_config = ConfigDict(extra="forbid")

    provider: str
    runtime_timeout: float = 3600.0
    image: str = "python:3.12"
    sandbox_kwargs: dict[str, Any] = {}


class Sandbox(abc.ABC):
    provider = ""
    supports_shell = False

    @classmethod
    def from_config(cls, config: SandboxConfig) -> Self:
        return cls()

    @abc.abstractmethod
    async def start(self) -> None: ...

    @abc.abstractmethod
    async def stop(self) -> None: ...

    @abc.abstractmethod
    async def _exec(self, argv: list[str], **options: Any) -> ExecResult: ...

    async def __aenter__(self, retry: int = 3) -> Self:
        raise NotImplementedError("retries, with a limit of its own")

    async def __aexit__(self, *failure: object) -> None:
        await self.stop()

    @asynccontextmanager
    async def entered(self, **options: Any) -> AsyncIterator[Self]:
        await self.__aenter__(**options)
        try:
            yield self
        finally:
            await self.stop()

    async def is_alive(self) -> bool:
        return True

    async def exec(
        self,
        argv: list[str],
        *,
        timeout: float | None = None,  # noqa: ASYNC109
        workdir: str | None = None,
        env: dict[str, str] | None = None,
    ) -> ExecResult:
        try:
            return await self._exec(argv, timeout=timeout, workdir=workdir, env=env)
        except Exception as problem:
            if isinstance(problem, TimeoutError):
                return ExecResult(-1, "", f"exec timed out after {timeout}s: {problem}")
            if not await self.is_alive():
                raise
            return ExecResult(127, "", str(problem))

    async def exec_shell(self, script: str, **options: Any) -> ExecResult:
        return await self.exec(["bash", "-c", script], **options)

    async def upload(self, local_path: Path | str, remote_path: str) -> None:
        await self.write_file(remote_path, Path(local_path).read_bytes())  # type: ignore[attr-defined]

    async def download(self, remote_path: str, local_path: Path | str) -> None:
        Path(local_path).write_bytes(await self.read_file(remote_path))  # type: ignore[attr-defined]

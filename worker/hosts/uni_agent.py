"""uni-agent's adapter: session sandboxes as its provider `penstock`.

    export VERL_USE_EXTERNAL_MODULES=worker.hosts.uni_agent     # verl imports it in each process

    sandbox: {provider: penstock, image: python:3.12}           # of a task's config

A start waits in the fleet's line, and what a killed process leaves is ended. A sandbox that fails
raises, also in `exec`: it is no command's exit code, and the episode is aborted.
"""

from collections.abc import Mapping
from typing import Any, Self

from uni_agent.sandbox.base import ExecResult, Sandbox, SandboxConfig
from uni_agent.sandbox.registry import register_sandbox

from jail.errors import SandboxFailure
from worker.hosts.process_lifecycle import lifecycle_here
from worker.lifecycle.lifecycle import SandboxLifecycle
from worker.lifecycle.provider import SandboxSpec
from worker.lifecycle.sandbox import OpenSandbox


@register_sandbox("penstock")
class PenstockSandbox(Sandbox):
    """A session sandbox of `provider`, by default that of PENSTOCK_SESSION_PROVIDER."""

    def __init__(
        self,
        *,
        image: str = "",
        runtime_timeout: float = 3600.0,
        provider: str = "",
        env: Mapping[str, str] | None = None,
        cpu: float | None = None,
        memory_mb: int | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._spec = SandboxSpec(
            image, dict(env or {}), cpu, memory_mb, dict(options or {}), ttl=runtime_timeout
        )
        self._provider = provider
        self._lifecycle: SandboxLifecycle | None = None
        self._sandbox: OpenSandbox | None = None
        self._failed = False

    @classmethod
    def from_config(cls, config: SandboxConfig) -> Self:
        """Fields that the task's config does not name keep their defaults here: without an
        image, a local sandbox has this machine's programs."""
        given = {
            name: getattr(config, name)
            for name in ("image", "runtime_timeout")
            if name in config.model_fields_set
        }
        return cls(**given, **config.sandbox_kwargs)

    async def __aenter__(self, retry: int = 3) -> Self:
        """Start the sandbox once, with Penstock's attempts and time limit. The base's time limit
        would run while the start waits in line, and its cap is of one process."""
        await self.start()
        return self

    async def start(self) -> None:
        if self._sandbox is not None:
            return
        self._lifecycle = lifecycle_here(self._provider)
        self._failed = False
        self._sandbox = await self._lifecycle.start(self._spec)

    async def stop(self) -> None:
        """Never raises; what cannot be confirmed gone is left to the reaper."""
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None and self._lifecycle is not None:
            await self._lifecycle.stop(sandbox)

    async def is_alive(self) -> bool:
        """Whether it lives; False of one that has failed, so that `exec` raises what happened."""
        return self._sandbox is not None and not self._failed and await self._sandbox.is_alive()

    async def _exec(
        self,
        argv: list[str],
        *,
        timeout: float | None = None,  # noqa: ASYNC109
        workdir: str | None = None,
        env: dict[str, str] | None = None,
    ) -> ExecResult:
        seconds = timeout or self._spec.ttl or 3600.0
        try:
            ran = await self._at_hand.exec(argv, timeout=seconds, cwd=workdir or "", env=env)
        except SandboxFailure:
            self._failed = True
            raise
        out, err = (text.decode(errors="replace") for text in (ran.stdout, ran.stderr))
        if ran.timed_out:  # as the base answers, with what was printed until then
            return ExecResult(-1, out, f"{err}exec timed out after {seconds:g}s")
        return ExecResult(ran.exit_code or 0, out, err)

    async def read_file(self, path: str) -> bytes:
        """Read a whole file. Raises as `open` does."""
        return await self._at_hand.read_file(path)

    async def write_file(self, path: str, content: bytes | str) -> None:
        await self._at_hand.write_file(path, content)

    @property
    def _at_hand(self) -> OpenSandbox:
        if self._sandbox is None:
            raise RuntimeError("the sandbox is not started; call start() first")
        return self._sandbox

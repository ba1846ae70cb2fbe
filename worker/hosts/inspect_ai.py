"""Session sandboxes for inspect-ai: `inspect eval task.py --sandbox penstock`.

inspect-ai loads this file by its entry point. A sandbox that fails raises
`SandboxUnavailableError`: the sample errs, and is not scored.
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, overload

from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentLimits,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
    sandboxenv,
)
from pydantic import BaseModel, ConfigDict

from ground.process import on_process_loop
from jail.errors import SandboxFailure
from worker.hosts.process_lifecycle import lifecycle_here
from worker.lifecycle.lifecycle import SandboxLifecycle
from worker.lifecycle.provider import FileRefused, SandboxSpec
from worker.lifecycle.reaper.reaper import Reaper
from worker.lifecycle.sandbox import OpenSandbox

Config = BaseModel | str | None


class PenstockSandboxConfig(BaseModel):
    """A task's wishes for its sandboxes, in `SandboxEnvironmentSpec("penstock", config)` or in a
    JSON file, `--sandbox penstock:sandbox.json`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    provider: str = ""  # empty: PENSTOCK_SESSION_PROVIDER
    image: str = ""  # empty: the provider's own; of `local`, this machine
    env: dict[str, str] = {}
    cpu: float | None = None
    memory_mb: int | None = None
    options: dict[str, Any] = {}  # the provider's own

    def __hash__(self) -> int:
        return hash(self.model_dump_json())

    def spec(self) -> SandboxSpec:
        return SandboxSpec(self.image, self.env, self.cpu, self.memory_mb, self.options)


@sandboxenv(name="penstock")
class PenstockSandbox(SandboxEnvironment):
    """A session sandbox for one sample."""

    def __init__(self, sandbox: OpenSandbox, lifecycle: SandboxLifecycle) -> None:
        super().__init__()
        self.sandbox = sandbox
        self._lifecycle = lifecycle

    @classmethod
    async def task_init(cls, task_name: str, config: Config) -> None:
        """Read the settings before the task: a missing one ends it, and not each sample."""
        lifecycle_here(_read(config).provider)

    @classmethod
    async def sample_init(
        cls, task_name: str, config: Config, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        asked = _read(config)
        lifecycle = lifecycle_here(asked.provider)
        with _in_inspects_words():
            return {"default": cls(await lifecycle.start(asked.spec()), lifecycle)}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: Config,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        for environment in environments.values():
            ours = environment.as_type(cls)
            await ours._lifecycle.stop(ours.sandbox)

    @classmethod
    async def cli_cleanup(cls, id: str | None) -> None:
        """Serve `inspect sandbox cleanup penstock [NAME]`: end that one, or those whose owners have
        died."""
        lifecycle = lifecycle_here()
        reaper = Reaper(lifecycle.target, run=lifecycle.run, ours=lifecycle.provider)

        async def work() -> None:
            if id:
                await reaper.end(lifecycle.run, [id], "inspect sandbox cleanup")
            else:
                await reaper.look(wait=False)

        try:
            await on_process_loop(work())
        finally:
            await reaper.close()

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        return PenstockSandboxConfig(**config)

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,  # noqa: ASYNC109 - inspect-ai's
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """A command that runs out of time is not tried again: here it really took that long."""
        if user is not None:
            raise SandboxUserUnsupportedError(
                f"user {user!r:.100}: the commands of a sandbox have one user, that of its image"
            )
        longest = self._lifecycle.settings.sandbox_ttl if timeout is None else timeout
        with _in_inspects_words():
            ended = await self.sandbox.exec(
                cmd,
                timeout=longest,
                cwd=cwd or "",
                env=env,
                stdin=input or b"",
            )
        if ended.timed_out:
            raise TimeoutError(f"{cmd[0]!r:.100} did not end within {longest:g} s")
        out, err = _text(ended.stdout), _text(ended.stderr)
        code = ended.exit_code or 0
        # Words that no program can be given, which the model wrote, are no error of the sample.
        if ended.refused == "not_executable" and "permission denied" in err.lower():
            raise PermissionError(err.strip())
        code = 128 - code if code < 0 else code  # of a signal, as a shell has it
        return ExecResult(code == 0, code, out, err)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        with _in_inspects_words():
            await self.sandbox.write_file(file, contents)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        try:
            with _in_inspects_words():
                content = await self.sandbox.read_file(file)
        except OSError as refused:
            if refused.errno == errno.EFBIG:  # the sandbox passes less than inspect-ai reads
                raise OutputLimitExceededError(refused.strerror or "", None) from None
            raise
        if len(content) > SandboxEnvironmentLimits.MAX_READ_FILE_SIZE:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
        return content.decode() if text else content


@contextmanager
def _in_inspects_words() -> Iterator[None]:
    """The error of a file: what inspect-ai shows to the model. Of a sandbox: what ends the
    sample."""
    try:
        yield
    except SandboxFailure as failure:
        raise SandboxUnavailableError(str(failure)) from failure
    except (FileRefused, NotADirectoryError) as refused:
        raise PermissionError(refused.errno, refused.strerror, refused.filename) from None


def _read(config: Config) -> PenstockSandboxConfig:
    if config is None:
        return PenstockSandboxConfig()
    if isinstance(config, str):
        return PenstockSandboxConfig.model_validate_json(Path(config).read_bytes())
    if not isinstance(config, PenstockSandboxConfig):
        raise TypeError(f"the sandbox `penstock` takes a PenstockSandboxConfig, not {config!r:.60}")
    return config


def _text(output: bytes) -> str:
    limit = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
    text = output[:limit].decode(errors="replace")
    if len(output) > limit:
        raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, text)
    return text

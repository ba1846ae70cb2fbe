"""Code jobs in session sandboxes: `PENSTOCK_SANDBOX=worker.lifecycle.code.sessions`.

A `CodeRequest` with an `instance_id` runs in the session of that name, whichever worker
takes the job: its files and background processes are there at the next turn. One without
has a sandbox to itself, for that one program.
"""

import base64
import shlex
import time
from contextlib import AbstractAsyncContextManager

from worker.errors import SandboxUnfit
from worker.lifecycle.lifecycle import SandboxLifecycle
from worker.lifecycle.provider import ExecResult
from worker.lifecycle.sandbox import OpenSandbox
from worker.lifecycle.settings import LifecycleSettings
from worker.models import CodeRequest, CodeResult, CommandResult
from worker.settings import WorkerSettings

_COMMANDS = {"python": ("main.py", "python3 main.py"), "bash": ("main.sh", "bash main.sh")}


class SessionSandbox:
    """A `worker.Sandbox` over a lifecycle."""

    def __init__(self, lifecycle: SandboxLifecycle) -> None:
        self._lifecycle = lifecycle
        self.name = lifecycle.provider.name
        self.languages = frozenset(_COMMANDS)

    async def run(self, request: CodeRequest) -> CodeResult:
        if request.language not in _COMMANDS:
            raise SandboxUnfit(
                f"session sandboxes run {', '.join(sorted(_COMMANDS))}, not {request.language}",
                reason="language",
            )
        began = time.monotonic()
        async with self._sandbox(request) as sandbox:
            file, command = _COMMANDS[request.language]
            for name, content in request.files.items():
                await sandbox.write_file(name, base64.b64decode(content))
            await sandbox.write_file(file, request.code)
            ran_from = time.monotonic()
            ended = await sandbox.exec(
                shlex.split(command), timeout=request.run_timeout, stdin=request.stdin or ""
            )
            took = time.monotonic() - ran_from
            files = await _fetched(sandbox, request.fetch_files)
        return CodeResult(
            status="Success" if ended.exit_code == 0 else "Failed",
            run_result=_command_result(ended, took),
            files=files,
            isolation=self.name,
            running_seconds=time.monotonic() - began,
            correlation_id=request.correlation_id,
        ).bounded()

    async def close(self) -> None:
        self._lifecycle.registry.close()

    def _sandbox(self, request: CodeRequest) -> AbstractAsyncContextManager[OpenSandbox]:
        if request.instance_id is not None:
            return self._lifecycle.session(request.instance_id)
        return self._lifecycle.open()


def sessions(settings: WorkerSettings) -> SessionSandbox:
    """What `PENSTOCK_SANDBOX` names: sandboxes of `PENSTOCK_SESSION_PROVIDER`, by default local."""
    provider = LifecycleSettings.load().session_provider
    return SessionSandbox(SandboxLifecycle.from_settings(provider))


async def _fetched(sandbox: OpenSandbox, names: list[str]) -> dict[str, str]:
    """Those that are there."""
    found = {}
    for name in names:
        try:
            found[name] = base64.b64encode(await sandbox.read_file(name)).decode()
        except FileNotFoundError:
            continue  # as Sandbox Fusion does
    return found


def _command_result(ended: ExecResult, took: float) -> CommandResult:
    return CommandResult(
        status="TimeLimitExceeded" if ended.timed_out else "Finished",
        execution_time=took,
        return_code=ended.exit_code,
        stdout=ended.stdout.decode(errors="replace"),
        stderr=ended.stderr.decode(errors="replace"),
    )

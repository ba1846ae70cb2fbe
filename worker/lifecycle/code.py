"""Code jobs in session sandboxes: `PENSTOCK_SANDBOX=worker.lifecycle.code.sessions`.

A `CodeRequest` with an `instance_id` runs in the session of that name, whichever worker
takes the job: its files, its background processes and, in Python, its variables are there
at the next turn. One without has a sandbox to itself, for that one program.
"""

import base64
import hashlib
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import cache
from importlib.resources import files

from jail.errors import SandboxUnfit
from jail.limits import DEFAULTS
from jail.models import OUTPUT_LIMIT, CodeRequest, CodeResult, CommandResult
from worker.lifecycle.errors import CommandFailed, SandboxLost
from worker.lifecycle.lifecycle import SandboxLifecycle
from worker.lifecycle.provider import FILE_ERRORS, ExecResult
from worker.lifecycle.sandbox import OpenSandbox
from worker.lifecycle.settings import LifecycleSettings
from worker.settings import WorkerSettings

Opener = Callable[[], AbstractAsyncContextManager[OpenSandbox]]
_COMMANDS = {"python": ("py", "python3"), "bash": ("sh", "bash")}
SESSION_LANGUAGES = frozenset(_COMMANDS)


class SessionSandbox:
    """A `worker.Sandbox` over a lifecycle. Memory is limited as the provider limits a sandbox."""

    keeps_sessions = True

    def __init__(self, lifecycle: SandboxLifecycle) -> None:
        self._lifecycle = lifecycle
        self.name = lifecycle.provider.name
        self.languages = SESSION_LANGUAGES

    async def run(self, request: CodeRequest) -> CodeResult:
        if request.language not in _COMMANDS:
            raise SandboxUnfit(
                f"session sandboxes run {', '.join(sorted(_COMMANDS))}, not {request.language}",
                reason="language",
            )
        try:
            async with self._sandbox(request) as sandbox:
                shared = request.instance_id is not None
                return await run_in(sandbox, request, self._lifecycle.open if shared else None)
        except (SandboxLost, CommandFailed) as failure:
            if request.instance_id is None:
                raise
            # Tried again, it would run without what the session did before it, or twice.
            lost = isinstance(failure, SandboxLost)
            reason = "session_lost" if lost else failure.reason
            raise SandboxUnfit(str(failure), reason=reason, may_be_running=not lost) from failure

    def outlives(self, request: CodeRequest) -> float:
        """A command in a sandbox continues when nobody waits for it any more."""
        return request.run_timeout

    async def close(self) -> None:
        await self._lifecycle.close()

    def _sandbox(self, request: CodeRequest) -> AbstractAsyncContextManager[OpenSandbox]:
        if request.instance_id is not None:
            return self._lifecycle.session(request.instance_id)
        return self._lifecycle.open()


def sessions(settings: WorkerSettings) -> SessionSandbox:
    """The sandboxes that `PENSTOCK_SANDBOX` names: those of `PENSTOCK_SESSION_PROVIDER`, by default
    local."""
    provider = LifecycleSettings.load().session_provider
    return SessionSandbox(SandboxLifecycle.from_settings(provider))


async def run_in(
    sandbox: OpenSandbox, request: CodeRequest, open_new: Opener | None = None
) -> CodeResult:
    """The program's end, in a sandbox that is open. Raises what `sandbox.exec` raises.

    `open_new` opens another sandbox of its kind, if programs may have run in this one before. Files
    that a new one takes are refused here by what those programs have done."""
    began = ran_from = time.monotonic()
    try:
        await _write_files(sandbox, request)
    except SandboxUnfit as refused:
        if open_new is None or await _refuses(open_new, request):
            raise
        ended = _not_run(refused)
    else:
        ran_from = time.monotonic()
        ended = await _ended(sandbox, request)
    took = time.monotonic() - ran_from
    files = await _fetched(sandbox, request.fetch_files)
    return CodeResult(
        status="Success" if ended.exit_code == 0 else "Failed",
        run_result=_command_result(ended, took),
        executor_pod_name=sandbox.name,
        files=files,
        isolation=sandbox.provider.name,
        running_seconds=time.monotonic() - began,
        correlation_id=request.correlation_id,
    ).bounded(max(OUTPUT_LIMIT, request.KEEPS))


async def _write_files(sandbox: OpenSandbox, request: CodeRequest) -> None:
    for name, content in request.files.items():
        try:
            await sandbox.write_file(name, base64.b64decode(content))
        except FILE_ERRORS as problem:
            raise SandboxUnfit(
                f"files: {name!r} cannot be written ({problem})", reason="refused"
            ) from None


async def _refuses(open_new: Opener, request: CodeRequest) -> bool:
    """Whether a new sandbox refuses the request's files too, so that they are at fault."""
    async with open_new() as sandbox:
        try:
            await _write_files(sandbox, request)
        except SandboxUnfit:
            return True
    return False


def _not_run(problem: Exception) -> ExecResult:
    """A program that fills the disk, or locks its folder, must not mask what comes after it."""
    why = f"[not run, since earlier programs left no place for it: {problem}]"
    return ExecResult(1, b"", why.encode(errors="replace"))


async def _ended(sandbox: OpenSandbox, request: CodeRequest) -> ExecResult:
    try:
        command = await _program(sandbox, request)
    except FILE_ERRORS as problem:
        if request.instance_id is None:  # nothing ran there before
            raise CommandFailed(sandbox.name, problem) from None
        return _not_run(problem)
    return await sandbox.exec(command, timeout=request.run_timeout, stdin=request.stdin or "")


async def _program(sandbox: OpenSandbox, request: CodeRequest) -> list[str]:
    """The command that runs it, from a file of its own: turns of a session may overlap."""
    suffix, command = _COMMANDS[request.language]
    file = f"main_{hashlib.sha256(request.code.encode()).hexdigest()[:8]}.{suffix}"
    await sandbox.write_file(file, request.code)
    if request.instance_id is None or request.language != "python":
        return [command, file]
    if sandbox.meta.get("isolation") == "landlock":
        raise SandboxUnfit(
            "the Python programs of a session share one interpreter, which they reach by a socket. "
            "PENSTOCK_SANDBOX_LEVEL=landlock allows none; run sessions at the level ns, in "
            "bash, or at another PENSTOCK_SESSION_PROVIDER",
            reason="isolation_unavailable",
        )
    return [command, "-c", *_caller(), file]


@cache
def _caller() -> tuple[str, str]:
    """The two texts that run in a session: the caller, and the interpreter that it hands programs
    to."""
    caller = files("worker.lifecycle") / "caller.py"
    notebook = files("jail.inside") / "notebook.py"
    return caller.read_text(), notebook.read_text()


async def _fetched(sandbox: OpenSandbox, names: list[str]) -> dict[str, str]:
    """The files that are there, can be read, and fit into what may be fetched."""
    found, room = {}, DEFAULTS.fetched
    for name in names:
        try:
            content = await sandbox.read_file(name)
        except FILE_ERRORS:
            continue  # as Sandbox Fusion does with what is no file
        if len(content) <= room:
            room -= len(content)
            found[name] = base64.b64encode(content).decode()
    return found


def _command_result(ended: ExecResult, took: float) -> CommandResult:
    return CommandResult(
        status="TimeLimitExceeded" if ended.timed_out else "Finished",
        execution_time=took,
        return_code=ended.exit_code,
        stdout=ended.stdout.decode(errors="replace"),
        stderr=ended.stderr.decode(errors="replace"),
    )

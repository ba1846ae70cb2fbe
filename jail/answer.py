"""An outcome as a result: what a caller of the sandbox gets, and what `/run_code` answers with."""

import base64
import os
from typing import Any

from jail.errors import SandboxBroken, SandboxFailure, SandboxUnfit
from jail.models import LIMITS, SHOWN, CodeResult, CommandResult, Status
from jail.outcome import Outcome, Step

_LIMITS = {reason: limit for limit, reason in LIMITS.items()} | {"time_limit": "time"}
_KILLED = -9
# What Sandbox Fusion answers with, and the fields of our own beside them.
_BODY = {
    "status", "message", "compile_result", "run_result", "executor_pod_name", "files", "isolation",
    "refused_files",
}  # fmt: skip
_NOT_OF_COMMANDS = {"stdout_truncated", "stderr_truncated"}
_BODY_LESS = {"compile_result": _NOT_OF_COMMANDS, "run_result": _NOT_OF_COMMANDS}


def result_of(outcome: Outcome) -> CodeResult:
    """Outputs are whole. A failure of the sandbox has a result, too: `SandboxError`."""
    return CodeResult(
        status=_status(outcome),
        message=outcome.error,
        compile_result=command_of(outcome.compile) if outcome.compile else None,
        run_result=command_of(outcome.run) if outcome.run else None,
        executor_pod_name=os.environ.get("MY_POD_NAME"),
        files={name: base64.b64encode(it).decode() for name, it in outcome.files.items()},
        refused_files=dict(outcome.refused_files),
        isolation=outcome.level,
    )


def _status(outcome: Outcome) -> Status:
    if outcome.last is None:
        return "SandboxError"
    return "Success" if outcome.status == "finished" and outcome.return_code == 0 else "Failed"


def command_of(step: Step) -> CommandResult:
    late = step.status == "time_limit"
    # A limit other than time has no status upstream: it shows as a death, and `limit` names it.
    # That of a program which lived on, and returned 0, does so too.
    died = step.status != "finished" and not step.return_code
    code = None if late else _KILLED if died else step.return_code
    beside: dict[str, Any] = {
        "limit": _LIMITS.get(step.status),
        "cpu_time": step.cpu,
        "memory_peak": step.memory_peak,
        "processes_peak": step.processes_peak,
    }
    return CommandResult(
        status="TimeLimitExceeded" if late else "Finished",
        execution_time=step.duration,
        return_code=code,
        stdout=step.stdout.decode(errors="replace"),
        stderr=step.stderr.decode(errors="replace"),
        **beside,
    )


def body_of(result: CodeResult) -> dict[str, Any]:
    """The body of `/run_code`'s response."""
    return result.model_dump(mode="json", include=_BODY, exclude=_BODY_LESS)


def command_result_of(step: Step) -> CommandResult:
    """The result of a compiler's step, as a judge's result says it."""
    return command_of(step).bounded(SHOWN)


def failure_of(outcome: Outcome) -> SandboxFailure:
    """The failure behind an answer that says nothing about its program."""
    if outcome.status == "refused":
        return SandboxUnfit(
            f"the local sandbox: {outcome.error}", reason=outcome.reason or "refused"
        )
    return SandboxBroken(f"the local sandbox: {outcome.error}", reason="jail_lost")

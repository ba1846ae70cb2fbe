"""An outcome in the words of `/run_code`, or as the failure that it is."""

import base64
import os
from collections.abc import Mapping
from typing import Any

from jail.errors import SandboxBroken, SandboxFailure, SandboxUnfit
from jail.models import LIMITS, SHOWN, CommandResult
from jail.outcome import Outcome, Step

_LIMITS = {reason: limit for limit, reason in LIMITS.items()} | {"time_limit": "time"}
_KILLED = -9


def answer(outcome: Outcome) -> dict[str, Any]:
    """The body of `/run_code`'s response."""
    return {
        "status": _status(outcome),
        "message": outcome.error,
        "compile_result": command_result(outcome.compile),
        "run_result": command_result(outcome.run),
        "executor_pod_name": os.environ.get("MY_POD_NAME"),
        "files": encoded(outcome.files),
        "isolation": outcome.level,
        "refused_files": dict(outcome.refused_files),
    }


def encoded(files: Mapping[str, bytes]) -> dict[str, str]:
    return {name: base64.b64encode(content).decode() for name, content in files.items()}


def _status(outcome: Outcome) -> str:
    if outcome.last is None:
        return "SandboxError"
    return "Success" if outcome.status == "finished" and outcome.return_code == 0 else "Failed"


def command_result(step: Step | None) -> dict[str, Any] | None:
    if step is None:
        return None
    late = step.status == "time_limit"
    # A limit other than time has no status upstream: it shows as a death, and `limit` names it.
    code = None if late else _KILLED if step.return_code is None else step.return_code
    return {
        "status": "TimeLimitExceeded" if late else "Finished",
        "execution_time": step.duration,
        "return_code": code,
        "stdout": step.stdout.decode(errors="replace"),
        "stderr": step.stderr.decode(errors="replace"),
        "limit": _LIMITS.get(step.status),
        "cpu_time": step.cpu,
        "memory_peak": step.memory_peak,
        "processes_peak": step.processes_peak,
    }


def told_of(step: Step) -> CommandResult:
    """What a compiler did, as a judge's result says it."""
    return CommandResult.model_validate(command_result(step)).bounded(SHOWN)


def failure_of(outcome: Outcome) -> SandboxFailure:
    """Of one that says nothing about its program."""
    if outcome.status == "refused":
        return SandboxUnfit(
            f"the local sandbox: {outcome.error}", reason=outcome.reason or "refused"
        )
    return SandboxBroken(f"the local sandbox: {outcome.error}", reason="jail_lost")

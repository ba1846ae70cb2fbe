"""A tool's call becomes what the model sees of its program's end, and what the trainer gets of it.

    text        stdout, then stderr, as the sandbox has them; a note in brackets where
                they do not say how it ended
    metrics     whose doing the end was, where the time went, whether to mask

The program's own end is the model's affair. A failure on our side is shown to the
model too, but it masks the trajectory: it is never a wrong answer.
"""

from dataclasses import dataclass
from typing import Any, Self

from ground import PenstockError
from jail.errors import RequestRefused, SandboxFailure
from jail.models import LANGUAGES, CodeRequest, CodeResult
from worker.errors import QueueError
from worker.tool.config import ToolConfig, seconds_of

_TIMES = ("queued_seconds", "permit_seconds", "backoff_seconds", "running_seconds")


@dataclass(frozen=True)
class Answer:
    text: str
    kind: str
    reason: str
    metrics: dict[str, Any]

    @property
    def masked(self) -> bool:
        return self.kind == "infrastructure"

    @classmethod
    def of_result(cls, result: CodeResult, timeout: float, limit: int) -> Self:
        if result.error_kind == "infrastructure":
            problem = result.message or result.error_reason
            text = _not_its_fault(problem, limit)
        else:
            text = _shown(result, timeout, limit)
        spent = {name: getattr(result, name) for name in _TIMES}
        return cls._new(
            text, result.error_kind, result.error_reason, {"attempts": result.attempts, **spent}
        )

    @classmethod
    def of_refusal(cls, problem: str, limit: int) -> Self:
        """The call was the model's mistake."""
        return cls._new(shortened(f"Error: {problem}", limit), "user", "bad_call", {})

    @classmethod
    def of_failure(cls, failure: Exception, limit: int) -> Self:
        """There is no result, for no fault of the program."""
        reason = failure.reason if isinstance(failure, SandboxFailure) else _reason(failure)
        return cls._new(_not_its_fault(str(failure), limit), "infrastructure", reason, {})

    @classmethod
    def _new(cls, text: str, kind: str, reason: str, more: dict[str, Any]) -> Self:
        masked = kind == "infrastructure"
        metrics = {"error_kind": kind, "error_reason": reason, **more, "traj_masked": int(masked)}
        if masked:
            metrics["traj_exit_reason"] = f"infrastructure: {reason}"
        return cls(text, kind, reason, metrics)

    def mark(self, extra_fields: dict[str, Any]) -> None:
        """Leave the trainer a note to mask this trajectory.

        It goes under `extras`, one of the few names that verl expects in every batch:
        it refuses to join batches of workers of which only some have a field. The
        first reason stays.
        """
        if self.masked:
            extras = extra_fields.get("extras")
            noted = dict(extras) if isinstance(extras, dict) else {}
            noted.setdefault("traj_exit_reason", self.metrics["traj_exit_reason"])
            extra_fields["extras"] = noted | {"traj_masked": 1}


def shortened(text: str, limit: int) -> str:
    """Cut it to at most `limit` characters, from both ends: a traceback says it at its end."""
    if len(text) <= limit:
        return text
    half = max(limit, 0) // 2
    left_out = f"...({len(text) - 2 * half:,} characters left out)..."
    return f"{text[:half]}\n{left_out}\n{text[len(text) - half :]}"


def _shown(result: CodeResult, timeout: float, limit: int) -> str:
    return shortened(result.stdout + result.stderr, limit) + _note(result, timeout)


def _note(result: CodeResult, timeout: float) -> str:
    """The note on how it ended, if the output does not say it."""
    reason, last = result.error_reason, result.run_result or result.compile_result
    if reason.endswith("_timeout"):
        return f"\n[stopped at its time limit of {timeout:g} s]"
    if result.error_kind == "limit":
        return f"\n[stopped: {reason.replace('_', ' ')}]"
    if result.error_kind == "none" or result.stderr or last is None or last.return_code is None:
        return ""
    code = last.return_code
    return f"\n[killed by signal {-code}]" if code < 0 else f"\n[exit code {code}]"


def _not_its_fault(problem: str, limit: int) -> str:
    return shortened(f"The code could not be run, for no fault of its own: {problem}", limit)


def _reason(failure: Exception) -> str:
    if isinstance(failure, PenstockError | QueueError):
        return type(failure).__name__
    return "internal_error"


class CallRefused(Exception):
    """The call cannot be run as the model wrote it; the words are for the model."""


def read_call(arguments: Any, config: ToolConfig, session: str | None) -> CodeRequest:
    """The program to run. Raises `CallRefused`."""
    if not isinstance(arguments, dict):
        raise CallRefused(
            f"the arguments must be a JSON object, not {type(arguments).__name__}: "
            '{"code": "print(1)"}'
        )
    code = arguments.get("code")
    if code is None:
        raise CallRefused("the argument `code` is missing")
    return program(
        code if isinstance(code, str) else str(code),
        _given(arguments, "timeout", config.default_timeout),
        _given(arguments, "language", config.default_language),
        config,
        session,
    )


def _given(arguments: dict[str, Any], name: str, default: Any) -> Any:
    value = arguments.get(name)
    return default if value is None else value


def program(
    code: str, timeout: Any, language: Any, config: ToolConfig, session: str | None
) -> CodeRequest:
    """The request for a piece of code. Raises `CallRefused`."""
    seconds = seconds_of(timeout)
    if seconds is None:
        raise CallRefused(f"`timeout` must be a number of seconds above 0, not {timeout!r:.40}")
    if not isinstance(language, str) or language not in LANGUAGES:
        known = ", ".join(sorted(LANGUAGES, key=str.lower))
        raise CallRefused(f"the language {language!r:.40} is unknown; known are {known}")
    seconds = min(seconds, config.longest)
    try:
        return CodeRequest(
            code=code,
            language=language,
            compile_timeout=seconds,
            run_timeout=seconds,
            memory_limit_mb=config.memory_limit_mb,
            instance_id=session,
            cost=config.cost,
        )
    except RequestRefused as refusal:
        raise CallRefused(str(refusal)) from None

"""What a scripted sandbox answers, by name: a program's ends, and every way to fail."""

from dataclasses import dataclass, field, replace
from typing import Any, Self


@dataclass(frozen=True)
class Answer:
    """What one request gets: how long its program runs, then what is written back."""

    status: int = 200
    body: Any = None  # sent as JSON
    text: str | None = None  # sent in the body's place, as it is
    seconds: float = 0.0  # math.inf: until `finish_held`
    headers: dict[str, str] = field(default_factory=dict)
    executes: bool = True
    cut_after: int | None = None  # bytes of the body, then the connection is closed
    cut_at_once: bool = False  # closed without a single byte
    drip: float = 0.0  # seconds between single bytes of the body
    megabytes: int = 0  # a body of this size, streamed

    @classmethod
    def ok(cls, stdout: str = "", **more: Any) -> Self:
        return cls(body=outcome("Success", "Finished", 0, stdout=stdout), **more)

    @classmethod
    def exit(cls, code: int, stderr: str = "", **more: Any) -> Self:
        return cls(body=outcome("Failed", "Finished", code, stderr=stderr), **more)

    @classmethod
    def late(cls, partial: str = "", **more: Any) -> Self:
        return cls(body=outcome("Failed", "TimeLimitExceeded", None, stdout=partial), **more)

    @classmethod
    def sandbox_error(cls, message: str = "no room", **more: Any) -> Self:
        body = outcome("SandboxError", "Error", None, stderr=message)
        return cls(body=body | {"message": message}, **more)

    @classmethod
    def refusal(cls, status: int, retry_after: float | str | None = None, **more: Any) -> Self:
        """An HTTP error; nothing is executed."""
        headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
        body = {"detail": f"scripted {status}"}
        return cls(status=status, body=body, headers=headers, executes=False, **more)

    @classmethod
    def busy(cls, retry_after: float | str | None = None) -> Self:
        return cls.refusal(429, retry_after)

    @classmethod
    def cut(cls, **more: Any) -> Self:
        return cls(cut_at_once=True, **more)

    @classmethod
    def half(cls, **more: Any) -> Self:
        return replace(cls.ok("half of this is lost", **more), cut_after=40)


def outcome(
    status: str, run_status: str, return_code: int | None, *, stdout: str = "", stderr: str = ""
) -> dict[str, Any]:
    """The body upstream answers for a Python program."""
    run = {
        "status": run_status, "execution_time": 0.01, "return_code": return_code,
        "stdout": stdout, "stderr": stderr,
    }  # fmt: skip
    return {
        "status": status, "message": "", "compile_result": None, "run_result": run,
        "executor_pod_name": None, "files": {},
    }  # fmt: skip

"""A sandbox's answer becomes the verdict on one case, in verl's codes and statuses.

True  success          False  wrong_answer
-1    api_error, sandbox_error, and every answer that says nothing: its outcome is not known
-2    runtime_error    -3     timeout
-4    compile_error, compile_timeout; compile_error_skipped for the cases after one
"""

from typing import Any

from jail.errors import unreadable
from worker.reward.api import Answer

Code = bool | int


def judged(metadata: dict[str, Any], answer: Answer | None, expected: Any) -> Code:
    """The code; the metadata is filled in."""
    if metadata["api_request_error"]:
        return _said(metadata, -1, "api_error")
    if not answer:
        return _said(metadata, -1, "unknown_api_state")
    compiled, ran = _parts(metadata, answer)
    match answer.get("status"):
        case "SandboxError":
            return _said(metadata, -1, "sandbox_error")
        case "Failed":
            return _failed(metadata, compiled, ran)
        case "Success":
            return _succeeded(metadata, ran, expected)
        case unknown:
            return _said(metadata, -1, f"unknown_api_status_{unknown}")


def blank(index: int, stdin: Any, expected: Any, error: str | None) -> dict[str, Any]:
    """A case's metadata before anything is known of it."""
    return {
        "case_index": index,
        "input": None if stdin is None else str(stdin),
        "expected_output": str(expected) if expected else None,
        "api_request_error": error,
        "api_response": None,
        "status": "unknown",
        "stdout": None,
        "stderr": None,
        "exit_code": None,
        "duration": None,
        "compile_duration": None,
        "compile_stderr": None,
        "api_status": None,
        "compile_status": None,
        "run_status": None,
    }


def is_unknown(code: Code, metadata: dict[str, Any]) -> bool:
    """Whether the case has no outcome. The code alone does not tell: a command whose status is
    `Error` was never run, and has -2 or -4 as one that failed has."""
    unrun = "Error" in (metadata.get("compile_status"), metadata.get("run_status"))
    return code == -1 or (unrun and code in (-2, -4))


def same_output(printed: str, expected: str) -> bool:
    """Equal except for line ends at the very end, as verl compares."""
    return printed.rstrip("\n") == expected.rstrip("\n")


def _parts(metadata: dict[str, Any], answer: Answer) -> tuple[Answer, Answer]:
    compiled, ran = (answer.get(name) or {} for name in ("compile_result", "run_result"))
    if not isinstance(compiled, dict) or not isinstance(ran, dict):
        raise unreadable("the answer's compile_result or run_result is no JSON object")
    metadata |= {
        "api_response": answer,
        "api_status": answer.get("status"),
        "compile_status": compiled.get("status"),
        "compile_duration": compiled.get("execution_time"),
        "compile_stderr": compiled.get("stderr"),
        "run_status": ran.get("status"),
        "stdout": ran.get("stdout"),
        "stderr": ran.get("stderr"),
        "exit_code": ran.get("return_code"),
        "duration": ran.get("execution_time"),
    }
    return compiled, ran


def _failed(metadata: dict[str, Any], compiled: Answer, ran: Answer) -> Code:
    match compiled.get("status"):
        case "TimeLimitExceeded":
            return _said(metadata, -4, "compile_timeout")
        case "Error":
            return _said(metadata, -4, "compile_error")
        case "Finished" if compiled.get("return_code") not in (0, None):
            return _said(metadata, -4, "compile_error")
    match ran.get("status"):
        case "TimeLimitExceeded":
            return _said(metadata, -3, "timeout")
        case "Error":
            return _said(metadata, -2, "runtime_error")
        case "Finished" if ran.get("return_code") not in (0, None):
            return _said(metadata, -2, "runtime_error")
    return _said(metadata, -1, "unknown_failure" if ran else "unknown_failure_state")


def _succeeded(metadata: dict[str, Any], ran: Answer, expected: Any) -> Code:
    if ran.get("status") != "Finished":
        return _said(metadata, -1, "unexpected_success_state")
    if expected is None or same_output(str(ran.get("stdout") or ""), str(expected)):
        return _said(metadata, True, "success")
    return _said(metadata, False, "wrong_answer")


def _said(metadata: dict[str, Any], code: Code, status: str) -> Code:
    metadata["status"] = status
    return code

"""Sandbox Fusion's wire: how a request is put, and what an answer says."""

import json
from typing import Any

from ground.backoff import retry_after_seconds
from ground.errors import VersionError
from jail.errors import (
    SandboxBroken,
    SandboxBusy,
    SandboxFailure,
    SandboxUnfit,
    SandboxUnreachable,
)
from jail.models import CodeRequest, CodeResult

# 504 is how sandboxes and gateways of this contract say "no room", since verl repeats only it.
_BUSY = {408, 425, 429, 503, 504}
# What speaks against the request as it was sent, at any endpoint alike.
_ABOUT_THE_REQUEST = {400, 413, 415, 422}
_MAY_BE_RUNNING = {502, 504}
_LONGEST_REFUSAL, _SHOWN = 64 * 1024, 300


def body_of(request: CodeRequest) -> bytes:
    """The body for `/run_code`."""
    fields = {
        "code": request.code,
        "language": request.language,
        "compile_timeout": request.compile_timeout,
        "run_timeout": request.run_timeout,
        "memory_limit_MB": request.memory_limit_mb or -1,
        "stdin": request.stdin,
        "files": request.files,
        "fetch_files": request.fetch_files,
    }
    return json.dumps(fields).encode()


def read_answer(raw: bytes, limit: int, who: str) -> CodeResult:
    """The outcome in an answer of status 200; `SandboxBroken` where there is none."""
    try:
        if is_flood(raw, limit):
            return _flood(limit)
        return CodeResult.read(json.loads(raw))
    except (ValueError, RecursionError, SandboxBroken, VersionError) as wrong:
        why = f"{type(wrong).__name__}: {wrong!s:.200}"
        raise SandboxBroken(
            f"{who} answered 200 without a program's outcome: {why}", reason="unreadable"
        ) from None


def failure_of(
    status: int, retry_after: str, who: str, *, raw: bytes = b"", has_peers: bool
) -> SandboxFailure | None:
    """The failure that an HTTP status means; None for 200. `has_peers`: another endpoint may serve.

    `raw` is the answer's body, of which the sentence that says why is passed on.
    """
    if status == 200:
        return None
    kind: type[SandboxFailure] = SandboxUnfit
    if status in _BUSY:
        kind = SandboxBusy
    elif status == 502:
        kind = SandboxUnreachable
    elif status >= 500 or (has_peers and status not in _ABOUT_THE_REQUEST):
        kind = SandboxBroken
    said = _said(raw)
    return kind(
        f"{who} answered HTTP {status}{_why(said)}",
        reason="language" if status == 422 and _is_of_language(said) else f"http_{status}",
        retry_after=retry_after_seconds(retry_after),
        may_be_running=status in _MAY_BE_RUNNING,
    )


def _said(raw: bytes) -> Any:
    """The reason that a refusal gives: FastAPI's `detail`, or `message`."""
    try:
        said = json.loads(raw[:_LONGEST_REFUSAL])
    except (ValueError, RecursionError):
        return None
    return said.get("detail") or said.get("message") if isinstance(said, dict) else None


def _is_of_language(said: Any) -> bool:
    """Whether the server runs no such language, by FastAPI's words: that field alone is wrong."""
    wrong = said if isinstance(said, list) else []
    fields = [one.get("loc") for one in wrong if isinstance(one, dict)]
    return bool(fields) and all(isinstance(at, list) and at[-1:] == ["language"] for at in fields)


def _why(why: Any) -> str:
    """The reason in a refusal; never the request that it quotes."""
    if isinstance(why, list):
        why = "; ".join(str(one["msg"]) for one in why if isinstance(one, dict) and "msg" in one)
    return f": {' '.join(why.split())[:_SHOWN]}" if isinstance(why, str) and why else ""


def is_flood(raw: bytes, limit: int) -> bool:
    """Whether the answer was cut off. The program wrote it, or nobody could have: trying again
    would flood again."""
    return len(raw) > limit and raw.lstrip()[:1] == b"{"


def _flood(limit: int) -> CodeResult:
    return CodeResult(
        status="Failed",
        message=f"the answer was longer than {limit:,} bytes, and was cut off unread",
        error_kind="limit",
        error_reason="output_limit",
    )

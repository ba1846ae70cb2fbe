"""A program goes to a sandbox and its answer comes back, by verl's signature.

A sandbox that is busy, away or out of order is asked again, with no permit held meanwhile. The
trainer verl asks again only after 504.
"""

import json
import logging
import time
from typing import Any

from ground import PenstockError
from ground.process import from_thread
from jail.errors import RequestRefused, SandboxBroken, SandboxFailure
from jail.models import CodeRequest
from worker.place import InProcess, place_of
from worker.queue.code_queue import CodeQueue
from worker.reward.semaphore import handed_back
from worker.run.execution import RetryPolicy
from worker.settings import worker_settings

log = logging.getLogger("penstock.reward")

Answer = dict[str, Any]

FAILED = "API Call Failed: "  # verl's words
NO_LANGUAGE = f"{FAILED}language: "  # so says one that lacks the language
_TOO_MUCH = "it printed more than is read of a server's answer"
FLOODED: Answer = {  # that is the program's own fault, if less is expected of it
    "status": "Failed", "message": _TOO_MUCH, "compile_result": None,
    "run_result": {"status": "Finished", "return_code": 1, "stdout": "", "stderr": _TOO_MUCH},
}  # fmt: skip


def call_sandbox_api(
    sandbox_fusion_url: str | CodeQueue,
    code: str,
    stdin: str | None,
    compile_timeout: int,
    run_timeout: int,
    memory_limit_mb: int,
    language: str = "python",
) -> tuple[Answer | None, str | None]:
    """Return (the sandbox's answer, None), or (None, why there is none).

    In a URL's place may stand a `CodeQueue`, or the `redis://` URL of one called `code`:
    the program then runs on its workers, under their gate. `local` is the embedded sandbox.
    """
    given: dict[str, Any] = {
        "language": language,
        "stdin": stdin,
        "compile_timeout": compile_timeout,
        "run_timeout": run_timeout,
        "memory_limit_mb": memory_limit_mb,
    }
    try:
        return _outcome(sandbox_fusion_url, code, given)
    except PenstockError as failure:
        log.warning("a program has no outcome: %s", failure)
        lacks = isinstance(failure, SandboxFailure) and failure.reason == "language"
        return None, f"{NO_LANGUAGE if lacks else FAILED}{failure}"


def _outcome(
    sandbox: str | CodeQueue, code: str, given: dict[str, Any]
) -> tuple[Answer | None, str | None]:
    place = place_of(sandbox or "", setting="sandbox_fusion_url")
    CodeRequest(code="", **given)  # what is wrong with this is not the program's fault
    try:
        request = CodeRequest(code=code, **given)
    except RequestRefused as refusal:
        return _uncompilable(str(refusal)), None
    if isinstance(place, InProcess) and place.server:
        return _asked(place, request), None
    result = from_thread(place.run(request))
    if result.error_kind == "infrastructure" and not (result.run_result or result.compile_result):
        return None, f"{FAILED}{result.error_reason}: {result.message}"
    return result.dump(), None


def _uncompilable(why: str) -> Answer:
    """No sandbox takes such code (too long, or no text), and that is the program's own fault."""
    compiled = {"status": "Finished", "return_code": 1, "stdout": "", "stderr": why}
    return {"status": "Failed", "message": why, "compile_result": compiled, "run_result": None}


def _asked(place: InProcess, request: CodeRequest) -> Answer:
    """The server's answer as it came, which verl reads otherwise than we do.

    The caller's thread waits between two attempts: a semaphore of its own blocks a thread.
    """
    policy = RetryPolicy(attempts=worker_settings().sandbox_attempts)
    attempt = 0
    while True:
        attempt += 1
        answer, failure = from_thread(_attempt(place, request))
        wait = policy.wait_after(failure, attempt) if failure else None
        if wait is None and answer is not None:
            return answer
        if wait is None:
            assert failure is not None  # noqa: S101 - there is one where there is no answer
            raise failure
        log.info("attempt %d failed", attempt)
        with handed_back():
            time.sleep(wait)


async def _attempt(
    place: InProcess, request: CodeRequest
) -> tuple[Answer | None, SandboxFailure | None]:
    """The answer, and what speaks for another attempt: both, where the sandbox says it failed."""
    from jail.fusion.client import SandboxFusion

    sandbox = place.sandbox()
    assert isinstance(sandbox, SandboxFusion)  # noqa: S101 - as the place's settings say
    try:
        raw = await sandbox.ask(request)
    except SandboxFailure as failure:
        return None, failure
    if sandbox.is_flood(raw):
        return FLOODED, None
    try:
        answer = json.loads(raw)
    except (ValueError, RecursionError) as wrong:
        return None, SandboxBroken(f"it answered no JSON: {wrong!s:.200}", reason="unreadable")
    if not isinstance(answer, dict):
        return None, SandboxBroken("it answered no JSON object", reason="unreadable")
    failed = answer.get("status") == "SandboxError"
    return answer, SandboxBroken("it says it failed", reason="sandbox_error") if failed else None

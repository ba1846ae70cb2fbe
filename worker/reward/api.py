"""One program to a sandbox and its answer back, by verl's signature.

A sandbox that is busy, away or out of order is asked again, with no permit held
meanwhile; verl asks again only after 504.
"""

import json
import logging
import re
import time
from functools import cache
from typing import Any

from ground import PenstockError, SettingError
from ground.process import from_thread
from jail.errors import RequestRefused, SandboxBroken, SandboxFailure
from jail.models import CodeRequest
from jail.protocol import Sandbox
from worker.queue.code_queue import CodeQueue
from worker.reward.semaphore import handed_back
from worker.run.choice import sandbox_here
from worker.run.execution import RetryPolicy
from worker.settings import WorkerSettings, worker_settings

log = logging.getLogger("penstock.reward")

Answer = dict[str, Any]
HERE = "local"
_REDIS = re.compile(r"(rediss?(\+\w+)?|unix)://", re.IGNORECASE)


def call_sandbox_api(
    sandbox_fusion_url: str | CodeQueue,
    code: str,
    stdin: str | None,
    compile_timeout: int,
    run_timeout: int,
    memory_limit_mb: int,
    language: str = "python",
) -> tuple[Answer | None, str | None]:
    """(the sandbox's answer, None); or (None, why there is none).

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
        return None, f"API Call Failed: {failure}"


def _outcome(
    sandbox: str | CodeQueue, code: str, given: dict[str, Any]
) -> tuple[Answer | None, str | None]:
    if not sandbox:
        raise SettingError(
            "sandbox_fusion_url",
            "is empty: name a sandbox, http://host:8080, a queue's Redis, redis://host:6379, or "
            "the embedded sandbox, local",
        )
    CodeRequest(code="", **given)  # what is wrong with this is not the program's fault
    try:
        request = CodeRequest(code=code, **given)
    except RequestRefused as refusal:
        return _uncompilable(str(refusal)), None
    if queue := queue_of(sandbox):
        return _answer_of(queue, request)
    return _asked(str(sandbox), request), None


def runs_on_queue(sandbox_fusion_url: str | CodeQueue) -> bool:
    """Whether workers run the programs, and take the permits themselves."""
    given = sandbox_fusion_url
    return isinstance(given, CodeQueue) or bool(given and _REDIS.match(given))


def embedded() -> Sandbox:
    """The sandbox of this process."""
    return sandbox_here(WorkerSettings.load(sandbox=HERE))


def _uncompilable(why: str) -> Answer:
    """No sandbox takes such code (too long, or no text), and that is the program's own fault."""
    compiled = {"status": "Finished", "return_code": 1, "stdout": "", "stderr": why}
    return {"status": "Failed", "message": why, "compile_result": compiled, "run_result": None}


def queue_of(given: str | CodeQueue) -> CodeQueue | None:
    """The queue that is meant; None for a server's URL."""
    if not runs_on_queue(given):
        return None
    return _opened(given) if isinstance(given, str) else given


@cache
def _opened(url: str) -> CodeQueue:
    return CodeQueue(url)


def _answer_of(queue: CodeQueue, request: CodeRequest) -> tuple[Answer | None, str | None]:
    result = queue.sync.run(request)
    if result.error_kind == "infrastructure" and not (result.run_result or result.compile_result):
        return None, f"API Call Failed: {result.error_reason}: {result.message}"
    return result.dump(), None


def _asked(url: str, request: CodeRequest) -> Answer:
    policy = RetryPolicy(attempts=worker_settings().sandbox_attempts)
    attempt = 0
    while True:
        attempt += 1
        answer, failure = from_thread(_attempt(url, request))
        wait = policy.wait_after(failure, attempt) if failure else None
        if wait is None and answer is not None:
            return answer
        if wait is None:
            assert failure is not None  # noqa: S101 - there is one where there is no answer
            raise failure
        log.info("attempt %d failed", attempt)
        with handed_back():
            time.sleep(wait)


async def _attempt(url: str, request: CodeRequest) -> tuple[Answer | None, SandboxFailure | None]:
    """The answer, and what speaks for another attempt: both, where the sandbox says it failed."""
    from jail.fusion.client import SandboxFusion

    if url == HERE:
        try:
            return (await embedded().run(request)).dump(), None
        except SandboxFailure as failure:
            return None, failure
    sandbox = sandbox_here(WorkerSettings.load(sandbox="fusion", sandbox_fusion_url=url))
    assert isinstance(sandbox, SandboxFusion)  # noqa: S101 - as the settings say
    try:
        answer = json.loads(await sandbox.ask(request))
    except SandboxFailure as failure:
        return None, failure
    except (ValueError, RecursionError) as wrong:
        return None, SandboxBroken(f"it answered no JSON: {wrong!s:.200}", reason="unreadable")
    if not isinstance(answer, dict):
        return None, SandboxBroken("it answered no JSON object", reason="unreadable")
    failed = answer.get("status") == "SandboxError"
    return answer, SandboxBroken("it says it failed", reason="sandbox_error") if failed else None

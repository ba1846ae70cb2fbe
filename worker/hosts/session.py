"""The sandbox of one rollout: opened at its first program, and ended in every case.

    session = CodeSession()
    answer = await session.run("x = 1")               # answer.text is for the model
    answer = await session.run("print(x)")            # the same interpreter
    session.masked                                    # why no reward is true, once one is not
    await session.end()

Hosts forget to end what they open, or are killed. A session that nobody holds any more ends by
itself. One that is open when its process ends is the reaper's at once. That of a process that was
killed is the reaper's when its lease is over.
"""

import asyncio
import atexit
import logging
import os
import weakref
from contextlib import suppress
from dataclasses import dataclass, field
from uuid import uuid4

from redis.exceptions import RedisError

from ground import SettingError
from ground.process import from_thread, on_process_loop, process_loop
from jail.errors import RequestRefused, SandboxFailure
from jail.models import CodeRequest, CodeResult
from worker.hosts.process_lifecycle import lifecycle_here
from worker.lifecycle.code import SESSION_LANGUAGES, run_in
from worker.lifecycle.lifecycle import SandboxLifecycle
from worker.lifecycle.provider import SandboxSpec
from worker.lifecycle.registry.registry import Registry
from worker.lifecycle.sandbox import OpenSandbox
from worker.tool.call import Answer

log = logging.getLogger("penstock.tool")

_FAREWELL = 2.0  # seconds that a process's end waits for a Redis that does not answer


class CodeSession:
    """Programs of one rollout, in one sandbox; in Python, in one interpreter.

    It may be used in any event loop, and by `run_sync` in threads without one. `provider` is by
    default PENSTOCK_SESSION_PROVIDER. Raises `SettingError` without a Redis, and for a language
    that session sandboxes do not run.
    """

    def __init__(
        self,
        *,
        language: str = "python",
        timeout: float = 30.0,
        max_output: int = 8192,
        provider: str = "",
        spec: SandboxSpec | None = None,
    ) -> None:
        CodeRequest(code="", language=language, run_timeout=timeout)  # refused now, if it is wrong
        if language not in SESSION_LANGUAGES:
            known = " and ".join(sorted(SESSION_LANGUAGES))
            raise SettingError("language", f"session sandboxes run {known}, not {language}")
        self.masked = ""  # the reason, once our side has failed
        self._language, self._timeout, self._max_output = language, timeout, max_output
        self._name = f"rollout-{uuid4().hex[:12]}"
        self._held = _OpenSandbox(lifecycle_here(provider), spec or SandboxSpec())
        _all.add(self._held)
        forgotten = weakref.finalize(self, _end_soon, self._held, process_loop())
        forgotten.atexit = False  # `_farewell` waits for it

    @property
    def is_open(self) -> bool:
        """Whether it has a sandbox."""
        return self._held.sandbox is not None

    async def run(self, code: str) -> Answer:
        """How the program ended, in words for the model. Raises nothing but cancellation."""
        try:
            request = CodeRequest(
                code=code, language=self._language, compile_timeout=self._timeout,
                run_timeout=self._timeout, instance_id=self._name,
            )  # fmt: skip
        except RequestRefused as refusal:
            return Answer.of_refusal(str(refusal), self._max_output)
        try:
            if self.masked:
                raise SandboxFailure("the sandbox of this rollout failed", reason=self.masked)
            result = await on_process_loop(self._held.run(request))
            answer = Answer.of_result(result, self._timeout, self._max_output)
        except Exception as failure:  # noqa: BLE001 - `of_failure` sorts the kinds
            answer = Answer.of_failure(failure, self._max_output)
        if answer.masked and not self.masked:
            self.masked = answer.reason
            log.warning("a rollout is masked: %s", answer.text)
        return answer

    def run_sync(self, code: str) -> Answer:
        """Do as `run`, for threads without an event loop."""
        return from_thread(self.run(code))

    async def end(self) -> None:
        """End its sandbox. Harmless when repeated; never raises."""
        await on_process_loop(self._held.end())

    def end_soon(self) -> None:
        """End the session from anywhere, without waiting for it."""
        _end_soon(self._held, process_loop())


@dataclass(eq=False)
class _OpenSandbox:
    """The open sandbox of a session. It is apart from it, so that it can be ended when nothing
    refers to the session any more. Its coroutines run on the process's loop."""

    lifecycle: SandboxLifecycle
    spec: SandboxSpec
    sandbox: OpenSandbox | None = None
    over: bool = False
    process: int = field(default_factory=os.getpid)
    guard: asyncio.Lock = field(default_factory=asyncio.Lock)  # of opening and ending

    async def run(self, request: CodeRequest) -> CodeResult:
        async with self.guard:
            if self.over:
                raise SandboxFailure("the session has ended", reason="session_lost")
            if self.sandbox is None:
                self.sandbox = await self.lifecycle.start(self.spec)
        return await run_in(self.sandbox, request)

    async def end(self) -> None:
        self.over = True
        async with self.guard:
            if self.sandbox is not None:
                await self.lifecycle.stop(self.sandbox)
                self.sandbox = None
        _all.discard(self)


_all: set[_OpenSandbox] = set()
_ending: set[asyncio.Task[None]] = set()


def _end_soon(held: _OpenSandbox, loop: asyncio.AbstractEventLoop) -> None:
    """End a sandbox that nobody holds any more. The garbage collector calls this anywhere, so it
    takes no lock. A fork's copy ends nothing."""
    if held.process == os.getpid():
        with suppress(RuntimeError):  # the loop has ended: the reaper has the sandbox
            loop.call_soon_threadsafe(_end_in_background, held)


def _end_in_background(held: _OpenSandbox) -> None:
    task = asyncio.ensure_future(held.end())
    _ending.add(task)
    task.add_done_callback(_ending.discard)


def _farewell() -> None:
    """Leave the open sandboxes to the reaper at exit: no thread and no executor can be started here
    any more."""
    for held in tuple(_all):  # the process's loop may end some meanwhile
        sandbox, life = held.sandbox, held.lifecycle
        if sandbox is None or held.process != os.getpid():
            continue
        registry = Registry(life.target, life.run, patience=_FAREWELL)
        try:
            registry.condemn(sandbox.name, "", "the process of its rollout has ended")
        except (RedisError, OSError) as failure:
            log.info("sandboxes of rollouts end with their leases: %s", failure)
            return
        finally:
            registry.close()


atexit.register(_farewell)

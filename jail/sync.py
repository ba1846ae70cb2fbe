"""The embedded sandbox's face for code that blocks its thread.

A sandbox belongs to the event loop that it has begun on. This one is a thread's of its own.
"""

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from typing import Any, Protocol, Self, TypeVar

from jail.errors import SandboxUnfit
from jail.judge.models import JudgeRequest, JudgeResult
from jail.judge.suite import Suite
from jail.models import CodeRequest, CodeResult

_T = TypeVar("_T")


class _Asynchronous(Protocol):
    async def run(self, request: CodeRequest) -> CodeResult: ...
    async def judge(self, request: JudgeRequest, suite: Suite) -> JudgeResult: ...
    async def close(self) -> None: ...


class SyncSandbox:
    """The sandbox for threads, as `sandbox.sync` has it: its methods block the calling thread, of
    which there may be many. Close it, or use it in a `with`. Use one sandbox by its `sync` alone,
    or not at all by it."""

    def __init__(self, sandbox: _Asynchronous) -> None:
        self._sandbox = sandbox
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._loop = asyncio.new_event_loop()

    def run(self, request: CodeRequest) -> CodeResult:
        return self._done(self._sandbox.run(request))

    def judge(self, request: JudgeRequest, suite: Suite) -> JudgeResult:
        return self._done(self._sandbox.judge(request, suite))

    def close(self) -> None:
        """Close the sandbox; what still runs ends as our failure."""
        with self._starting:
            if self._closed:
                return
            self._closed = True
            if self._is_a_copy():
                return
        try:
            self._begun(self._end()).result()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            if self._thread:
                self._thread.join()

    async def _end(self) -> None:
        await self._sandbox.close()
        if others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _done(self, work: Coroutine[Any, Any, _T]) -> _T:
        with self._starting:
            if self._closed:
                work.close()
                raise SandboxUnfit(
                    "this sandbox is closed; make another one: LocalSandbox().sync",
                    reason="closed",
                )
            if self._is_a_copy():
                work.close()
                raise SandboxUnfit(
                    "this sandbox is that of another process, which forked this one; make one "
                    "here: LocalSandbox().sync",
                    reason="forked",
                )
            coming = self._begun(work)
        try:
            return coming.result()
        except BaseException:
            coming.cancel()  # nobody waits for it any more: its program is killed
            raise

    def _is_a_copy(self) -> bool:
        """Whether this is a fork's copy, which has no thread. What runs is its maker's."""
        return self._thread is not None and not self._thread.is_alive()

    def _begun(self, work: Coroutine[Any, Any, _T]) -> "concurrent.futures.Future[_T]":
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, daemon=True)
            self._thread.start()
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _serve(self) -> None:
        """Serve until `close`. If that failed or was interrupted, nobody who still waits is left
        so."""
        try:
            self._loop.run_forever()
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            if left:
                self._loop.run_until_complete(asyncio.wait(left))
        finally:
            self._loop.close()

"""Our judge by its three doors: in this process, on a queue, and over HTTP."""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

from bench._judge_programs import KINDS, Kind, cases
from ground import EmbeddedServer
from ground.redis.connect import connect
from ground.server.binary import bundled_server
from jail import LocalSandbox
from jail.judge.asking import JudgeOptions, request_here
from jail.judge.formats import Cases
from jail.judge.models import JudgeCase, JudgeResult
from worker import CodeQueue, CodeRequest

_PATIENT: JudgeOptions = {"compile_timeout": 120.0, "run_timeout": 30.0}
_AT_ONCE = 16
PERMITS = 8


class Doors:
    """A sandbox on a loop of its own, a worker with another one, and a server with a third."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._sandbox = LocalSandbox()
        self._folder = tempfile.mkdtemp(prefix="penstock-bench-")
        self._server = EmbeddedServer(self._folder, binary=bundled_server())
        self._queue = CodeQueue(self._server.url, "bench", no_workers_after=60)
        self._foreign = CodeQueue(self._server.url, "foreign", no_workers_after=60)
        penstock = [sys.executable, "-m", "penstock"]
        worker = [*penstock, "worker", "--redis-url", self._server.url]
        self._worker = subprocess.Popen(
            [*worker, "bench", "--sandbox", "local"], stderr=subprocess.DEVNULL
        )
        self._http = subprocess.Popen(
            [*penstock, "sandbox", "serve", "--port", "0"],
            env=os.environ | {"PENSTOCK_SANDBOX_MEMORY_MB": "1024"},
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        assert self._http.stdout is not None
        self.url = self._http.stdout.readline().strip()
        self._asks_for_each_case = subprocess.Popen(
            [*worker, "foreign", "--sandbox", "fusion", "--gate", "foreign",
             "--gate-limit", str(PERMITS)],
            env=os.environ | {"PENSTOCK_SANDBOX_FUSION_URL": self.url}, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        for door in (self.judge, self.queue):
            door(KINDS["python"], cases(1))
            if KINDS["cpp"].here:
                _until_its_header_is_there(door)

    def judge(self, kind: Kind, some: Cases, code: str = "", **options: Any) -> JudgeResult:
        """In this process. With code given, whatever its verdicts are."""
        given: Any = _PATIENT | {"language": kind.language, **options}
        request, suite = request_here(code or kind.new(), some, given)
        result: JudgeResult = self._wait(self._sandbox.judge(request, suite))
        return result if code else _all_right(result)

    def queue(self, kind: Kind, some: Cases) -> JudgeResult:
        options = _PATIENT | {"language": kind.language}
        return _all_right(self._queue.sync.judge(kind.new(), some, **options))

    def foreign(self, code: str, count: int) -> None:
        """On a server behind a gate that only runs programs; cases without input and output."""
        blank = Cases([JudgeCase() for _ in range(count)])
        _all_right(self._foreign.sync.judge(code, blank))

    def runs(self, kind: Kind, some: Cases) -> None:
        code = kind.new()

        async def all_of_them() -> None:
            room = asyncio.Semaphore(_AT_ONCE)

            async def one(given: str, expected: object) -> None:
                async with room:
                    result = await self._sandbox.run(
                        CodeRequest(code=code, language=kind.language, stdin=given,
                                    compile_timeout=120, run_timeout=30)
                    )  # fmt: skip
                    if result.stdout != expected:
                        raise RuntimeError(f"{kind.language}: {result.stderr:.200}")

            await asyncio.gather(*(one(case.input, case.expected) for case in some.cases))

        self._wait(all_of_them())

    def traffic(self, kind: Kind, some: Cases, samples: int = 1) -> tuple[int, int]:
        """Commands to Redis, and bytes into it, of so many programs on the same cases."""
        with connect(self._server.url) as client:
            before = client.info("stats")
            for _ in range(samples):
                self.queue(kind, some)
            after = client.info("stats")
        names = "total_commands_processed", "total_net_input_bytes"
        commands, received = (int(after[name]) - int(before[name]) for name in names)
        return commands, received

    def _wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def stop(self) -> None:
        self._wait(self._sandbox.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        for process in (self._worker, self._asks_for_each_case, self._http):
            process.terminate()
            process.wait()
        self._server.stop()
        shutil.rmtree(self._folder)


def _until_its_header_is_there(door: Callable[[Kind, Cases], JudgeResult]) -> None:
    """The second program that asks for it has it precompiled, beside those that come meanwhile."""
    first = seconds = _compiling(door)
    for _ in range(60):
        if seconds < first / 2:
            return
        time.sleep(0.5)
        seconds = _compiling(door)
    raise RuntimeError("the header was not precompiled")


def _compiling(door: Callable[[Kind, Cases], JudgeResult]) -> float:
    compiled = door(KINDS["cpp"], cases(1)).compile_result
    return (compiled.execution_time if compiled else None) or 0.0


def _all_right(result: JudgeResult) -> JudgeResult:
    if set(result.verdicts) != {"P"}:
        raise RuntimeError(f"{result.verdicts}: {result.message} {result.compile_result}")
    return result

"""Clients of one process that open and end simulated sandboxes, and what the registry added.

    python -m bench._registry_client CLIENTS SANDBOXES SECONDS SPREAD

It says `ready`, and begins when it reads Redis's URL. It prints its times in milliseconds as JSON.
"""

import asyncio
import functools
import json
import random
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from ground.redis.connect import AnyRedis
from worker.lifecycle import (
    Command,
    ExecResult,
    Kind,
    SandboxLifecycle,
    SandboxRef,
    SandboxSpec,
    Verdict,
)

CALLS = ("open", "advance", "permit_freed", "forget")  # of one sandbox, by its name
OF_A_START = CALLS[:3]


class Simulated:
    """A creation takes this many seconds, give or take a part of them. Everything else is done at
    once."""

    name = scope = "simulated"

    def __init__(self, seconds: float, spread: float) -> None:
        self._least, self._most = seconds * (1 - spread), seconds * (1 + spread)
        self.took: dict[str, float] = {}

    async def create(
        self, spec: SandboxSpec, *, name: str, tags: Mapping[str, str], ttl: float
    ) -> SandboxRef:
        began = time.perf_counter()
        await asyncio.sleep(random.uniform(self._least, self._most))
        self.took[name] = time.perf_counter() - began
        return SandboxRef(name, name)

    async def wait_ready(self, ref: SandboxRef, timeout: float) -> None: ...  # noqa: ASYNC109

    async def open_runtime(self, ref: SandboxRef, timeout: float) -> SandboxRef:  # noqa: ASYNC109
        return ref

    async def close_runtime(self, ref: SandboxRef) -> None: ...

    async def exec(self, ref: SandboxRef, command: Command) -> ExecResult:
        return ExecResult(0, b"", b"")

    async def read_file(self, ref: SandboxRef, path: str) -> bytes:
        return b""

    async def write_file(self, ref: SandboxRef, path: str, content: bytes) -> None: ...

    async def is_alive(self, ref: SandboxRef) -> bool:
        return True

    async def terminate(self, id: str) -> None: ...

    async def find(self, name: str) -> SandboxRef | None:
        return SandboxRef(name, name) if name in self.took else None

    async def list(self, tags: Mapping[str, str]) -> AsyncIterator[SandboxRef]:
        for name in list(self.took):
            yield SandboxRef(name, name)

    def classify(self, problem: BaseException) -> Verdict:
        return Verdict(Kind.RETRY)

    async def close(self) -> None: ...


class Measured:
    """What it took, in milliseconds: each call of the registry, those of each start together, and
    each start as its caller saw it, without what the provider took."""

    def __init__(self) -> None:
        self.calls: list[float] = []
        self.of_start: dict[str, float] = defaultdict(float)
        self.starts: list[float] = []

    def watch(self, registry: Any) -> None:
        for name in CALLS:
            setattr(registry, name, self._timed(name, getattr(registry, name)))

    def _timed(self, call: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def timed(name: str, *args: Any, **more: Any) -> Any:
            began = time.perf_counter()
            try:
                return method(name, *args, **more)
            finally:
                took = (time.perf_counter() - began) * 1e3
                self.calls.append(took)
                if call in OF_A_START and (args[1:2] != ("TERMINATING",)):
                    self.of_start[name] += took

        return timed


async def measured(redis: AnyRedis, provider: Simulated, clients: int, sandboxes: int) -> Measured:
    """Each client opens a sandbox and ends it, until so many have been."""
    found = Measured()
    life = SandboxLifecycle(redis, provider, run="bench")
    found.watch(life.registry)
    left = iter(range(sandboxes))

    async def client() -> None:
        for _ in left:
            began = time.perf_counter()
            sandbox = await life.start()
            whole = time.perf_counter() - began
            found.starts.append((whole - provider.took.pop(sandbox.name)) * 1e3)
            if not await life.stop(sandbox):
                raise RuntimeError(f"{sandbox.name} was not ended")

    await asyncio.gather(*(client() for _ in range(clients)))
    await life.close()
    return found


def main(clients: str, sandboxes: str, seconds: str, spread: str) -> None:
    print("ready", flush=True)
    url = sys.stdin.readline().strip()
    before = time.process_time()
    provider = Simulated(float(seconds), float(spread))
    found = asyncio.run(measured(url, provider, int(clients), int(sandboxes)))
    times = {"calls": found.calls, "of start": list(found.of_start.values())}
    cpu = [(time.process_time() - before) * 1e3]
    print(json.dumps(times | {"starts": found.starts, "cpu": cpu}))


if __name__ == "__main__":
    main(*sys.argv[1:])

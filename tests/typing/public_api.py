"""What a type checker says of a user's program; `make check` reads it, and nothing runs it.

Each `type: ignore` is a mistake that must be found: mypy refuses one that is not needed.
"""

from typing import assert_type

from buffer import Batch, RolloutBuffer, TaskConfig
from jail import LocalSandbox
from limiter import Permit, TokenBucket
from worker import CodeQueue, CodeRequest, CodeResult
from worker.lifecycle import SandboxLifecycle
from worker.reward import Case, score


async def a_gate(url: str) -> None:
    gate = TokenBucket(url, "api", limit=64)
    assert_type(await gate.acquire(timeout=1.0), Permit)
    async with gate.hold(cost=3) as permit:
        assert_type(permit, Permit)
    TokenBucket(url, "api", limit="64")  # type: ignore[arg-type]
    TokenBucket(url, "api", limits=64)  # type: ignore[call-arg]
    gate.acquire(1.0)  # type: ignore[call-arg, unused-coroutine]


async def a_queue(url: str) -> None:
    queue = CodeQueue(url, "code", abandon="keep")
    result = await queue.run("print(1)", timeout=60)
    assert_type(result, CodeResult)
    assert_type(result.stdout, str)
    assert_type(await queue.run_many(["print(1)", CodeRequest(code="print(2)")]), list[CodeResult])
    assert_type(queue.sync.run("print(1)"), CodeResult)
    CodeQueue(url, abandon="never")  # type: ignore[arg-type]
    await queue.run(1)  # type: ignore[arg-type]


async def a_buffer(url: str) -> None:
    buffer = RolloutBuffer(url, "math", TaskConfig(group_size=8))
    batch = await buffer.take(4, wait=1.0)
    assert_type(batch, Batch | None)
    await buffer.ack(batch)  # type: ignore[arg-type]
    if batch is not None:
        await buffer.ack(batch)
    assert_type(buffer.sync.take(4), Batch | None)


async def sandboxes(url: str) -> None:
    async with SandboxLifecycle(url, "local").open() as box:
        done = await box.exec(["true"], timeout=1)
        assert_type(done.exit_code, int | None)
    found = await score("print(1)", [Case("", "1")], on=LocalSandbox())
    assert_type(found.value, float | None)
    round(found.value, 2)  # type: ignore[arg-type]

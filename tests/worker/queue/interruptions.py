"""A loop that hears for itself, interrupted at every statement; in a process of its own."""

import asyncio
import threading
from typing import Any

from ground import connect, timers
from ground.redis import engine, shortcut, unit
from ground.redis.url import parse_redis_url
from tests.harness.interrupting import Interrupts
from tests.harness.servers import until
from worker import CodeResult, CommandResult
from worker.queue import client_orders, code_queue, handle, order, submitting, sync
from worker.queue import engine as job_engine

NEVER = 3600.0
RESULT = CodeResult(status="Success", run_result=CommandResult(status="Finished", return_code=0))


def is_interrupted_at_every_statement(url: str) -> None:
    """Who waits is told all the same, or sees the interrupt; in the end nobody is waited for."""
    interrupts = Interrupts(
        timers,
        unit,
        shortcut,
        engine,
        order,
        client_orders,
        job_engine,
        handle,
        submitting,
        sync,
        code_queue,
    )
    client_orders.CHECK_EVERY = NEVER  # who is not told waits for ever
    shortcut.WORTH_IT, shortcut.LATE = 1, 0.05
    threading.Thread(target=_work, args=(url,), daemon=True).start()
    queue = code_queue.CodeQueue(url, "code", no_workers_after=2 * NEVER)
    interrupts.at_every_statement(
        lambda: _on_its_shortcut(queue),
        lambda: _programs(queue),
        lambda: until(lambda: _nobody_waits(queue), "nothing to be left"),
    )


def _nobody_waits(queue: Any) -> bool:
    clients = job_engine.client_engine(queue.target)._clients
    return not any(client.waiting for client in list(clients))


def _work(url: str) -> None:
    """A worker that only tells of ends."""
    redis: Any = connect(parse_redis_url(url), timeout=None)
    result = RESULT.model_dump_json()
    while True:
        _, job = redis.blpop("rq:queue:code")
        reply_to = redis.hget(b"rq:job:" + job, "penstock_reply_to")
        redis.xadd(reply_to, {"job": job, "status": "finished", "result": result})


async def _on_its_shortcut(queue: Any) -> None:
    loop = asyncio.get_running_loop()
    while True:
        its = job_engine.client_engine(queue.target).shortcut_of(loop)
        if its is not None and its.reads:
            return
        await queue.run("1")


async def _programs(queue: Any) -> None:
    await asyncio.gather(*(queue.run("1") for _ in range(2)), return_exceptions=True)

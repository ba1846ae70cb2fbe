"""A loop that hears for itself, interrupted at every statement; in a process of its own."""

import ast
import asyncio
import gc
import sys
import threading
from pathlib import Path
from typing import Any

from ground import connect, parse_redis_url
from tests.harness.servers import until
from tests.limiter.scenarios import Interruptible, to_its_end
from worker import (
    CodeQueue,
    CodeResult,
    CommandResult,
    client_engine,
    direct_line,
    ear,
    listening,
    orders,
    waiting,
)
from worker.client_engines import client_engine as engine_of

NEVER = 3600.0
PATIENCE = 20.0
RESULT = CodeResult(status="Success", run_result=CommandResult(status="Finished", return_code=0))


def is_interrupted_at_every_statement(url: str) -> None:
    """Who waits is told all the same, or sees the interrupt; in the end nobody is waited for."""
    left, at = 0, [""]

    def interrupt() -> None:
        nonlocal left
        if threading.current_thread() is threading.main_thread():
            left -= 1
            if left == 0:
                at.append(f"{sys._getframe(1).f_code.co_qualname}, {sys._getframe(1).f_lineno}")
                raise KeyboardInterrupt

    _make_interruptible(interrupt)
    threading.Thread(target=_work, args=(url,), daemon=True).start()
    queue = CodeQueue(url, "code", no_workers_after=2 * NEVER)
    loop = asyncio.new_event_loop()
    gc.freeze()  # what is there now need not be looked through each time
    statements, last = 0, False
    while not last:
        hearing = loop.create_task(_by_its_ear(queue))
        to_its_end(loop, asyncio.wait([hearing], timeout=PATIENCE))
        assert hearing.done(), f"interrupted in {at[-1]}, it does not hear for itself again"
        playing = loop.create_task(_programs(queue))
        statements, left = statements + 1, statements + 1
        try:
            loop.run_until_complete(playing)
            last = left > 0
        except KeyboardInterrupt:
            pass
        left = 0
        to_its_end(loop, asyncio.wait([playing], timeout=PATIENCE))
        assert playing.done(), f"interrupted in {at[-1]}, it waits for ever"
        until(lambda: not engine_of(queue.target).orders.waiting, "nothing to be left")
    loop.close()
    assert statements > 50


def _make_interruptible(interrupt: Any) -> None:
    for module in (ear, waiting, orders, listening):
        tree = Interruptible().visit(ast.parse(Path(module.__file__).read_text()))
        vars(module)["interrupt"] = interrupt
        exec(compile(tree, module.__file__, "exec"), vars(module))
    orders.Waiting = waiting.Waiting
    direct_line.Ear = ear.Ear
    client_engine.Orders, client_engine.Listening = orders.Orders, listening.Listening
    orders.CHECK_EVERY = NEVER  # who is not told waits for ever
    direct_line._WORTH_IT = 1


def _work(url: str) -> None:
    """A worker that only tells of ends."""
    redis: Any = connect(parse_redis_url(url), timeout=None)
    result = RESULT.model_dump_json()
    while True:
        _, job = redis.blpop("rq:queue:code")
        reply_to = redis.hget(b"rq:job:" + job, "penstock_reply_to")
        redis.xadd(reply_to, {"job": job, "status": "finished", "result": result})


async def _by_its_ear(queue: CodeQueue) -> None:
    engine, loop = engine_of(queue.target), asyncio.get_running_loop()
    while (its := engine.lines.of(loop)._ear) is None or engine.listening._ear is not its:
        await queue.run("1")


async def _programs(queue: CodeQueue) -> None:
    await asyncio.gather(*(queue.run("1") for _ in range(2)), return_exceptions=True)

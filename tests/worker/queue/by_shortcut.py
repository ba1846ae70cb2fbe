"""A loop's shortcut in tests of `CodeQueue`: waiting until it is taken, and breaking it."""

import asyncio
import os
from collections.abc import Callable
from typing import Any

from ground.redis.unit import Carrier
from penstock.in_process import run_queued
from tests.harness.servers import until
from worker import CodeQueue
from worker.queue.engine import client_engine

QUEUE = "rq:queue:code"
PATIENCE = 100.0


async def a_forked_child_submits(target) -> None:
    child = os.fork()
    if child == 0:
        code = 99
        try:
            code = int(CodeQueue(target, "code").sync.submit("child").done)
        finally:
            os._exit(code)
    _, status = await asyncio.to_thread(os.waitpid, child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


async def on_its_shortcut(queue: CodeQueue) -> CodeQueue:
    """Submits, and takes back, until the running loop has a line that it may use."""
    async with asyncio.timeout(PATIENCE):
        while not takes_it(queue):
            await (await queue.submit("warm up")).cancel()
    return queue


def takes_it(queue: CodeQueue) -> bool:
    engine = client_engine(queue.target)
    shortcut = engine.shortcut_of(asyncio.get_running_loop())
    with engine.lock:
        rests = engine.orders.carrier is Carrier.NOBODY and not engine.orders.pressing
        return shortcut is not None and shortcut.open and rests


async def work(redis) -> None:
    await asyncio.to_thread(run_queued, redis)


def queued(redis) -> list[str]:
    return [id.decode() for id in redis.lrange(QUEUE, 0, -1)]


def shortcut_of(queue: CodeQueue) -> Any:
    return client_engine(queue.target).shortcut_of(asyncio.get_running_loop())


def socket_of(queue: CodeQueue) -> Any:
    return shortcut_of(queue)._connection._socket


def deaf(queue: CodeQueue) -> None:
    """No reply is read any more, but by the engine after a second."""
    asyncio.get_running_loop().remove_reader(socket_of(queue).fileno())


def hears(queue: CodeQueue) -> None:
    shortcut = shortcut_of(queue)
    asyncio.get_running_loop().add_reader(socket_of(queue).fileno(), shortcut._readable)


async def eventually(condition: Callable[[], bool], what: str) -> None:
    await asyncio.to_thread(until, condition, what)

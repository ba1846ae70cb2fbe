"""By a loop's own connection a job is as safe as by the engine: only sooner on its queue."""

import asyncio
import math
import os
import threading

import pytest

from ground.redis.engine import Engine
from ground.redis.shortcut import LONGEST
from penstock.in_process import run_queued
from tests.harness.servers import until
from tests.worker.queue.by_shortcut import (
    PATIENCE,
    a_forked_child_submits,
    on_its_shortcut,
    queued,
    takes_it,
    work,
)
from tests.worker.queue.orders_alone import Heard, order_of, orders_alone, said
from worker import CodeQueue, QueueUnavailable
from worker.queue.client_orders import CHECK_EVERY, Orders
from worker.queue.order import SCRIPTS


@pytest.fixture
async def queue(real_redis) -> CodeQueue:
    return await on_its_shortcut(CodeQueue(real_redis, "code"))


@pytest.fixture
def exchanges(monkeypatch) -> list[int]:
    """How many enqueues the engine's thread sent, each time it talked to Redis. It takes none over
    because this loop stood still, and is not woken to look whether it does. Nor does it come by for
    a beat or a look, and find one on its way."""
    monkeypatch.setattr("ground.redis.shortcut.LATE", math.inf)
    monkeypatch.setattr(Orders, "due", lambda orders: 0.0 if orders.pressing else math.inf)
    seen = []
    converse = Engine.converse
    (enqueue,) = [sha for sha, script in SCRIPTS.items() if script.name.endswith("enqueue.lua")]

    def counted(self, commands):
        seen.append(sum(enqueue in command for command in commands))
        return converse(self, commands)

    monkeypatch.setattr(Engine, "converse", counted)
    return seen


# What goes by it


async def test_a_lone_submit_is_no_work_for_the_engine(real_redis, queue, exchanges, fusion):
    handles = [await queue.submit(str(n), timeout=60) for n in range(20)]
    assert queued(real_redis) == [handle.id for handle in handles]
    assert not any(exchanges)
    await work(real_redis)
    assert all([(await handle.result()).ok for handle in handles])
    assert fusion.requests == 20


async def test_what_is_submitted_meanwhile_goes_in_one_call(real_redis, queue, exchanges):
    real_redis.config_resetstat()
    handles = await asyncio.gather(*(queue.submit(str(n)) for n in range(100)))
    assert queued(real_redis) == [handle.id for handle in handles]
    assert not any(exchanges)
    assert real_redis.info("commandstats")["cmdstat_evalsha"]["calls"] <= 2 + 2  # a look may come


async def test_jobs_keep_their_order_where_there_are_too_many_for_it(real_redis, queue, exchanges):
    handles = await asyncio.gather(*(queue.submit(str(n)) for n in range(1000)))
    assert queued(real_redis) == [handle.id for handle in handles]
    assert any(exchanges)


async def test_a_big_program_is_the_engines(real_redis, queue, exchanges):
    big = os.urandom(LONGEST).hex()
    handles = await asyncio.gather(*(queue.submit(code) for code in ("1", "2", big, "3")))
    assert queued(real_redis) == [handle.id for handle in handles]
    assert any(exchanges)


async def test_a_blocked_thread_of_the_loop_is_served_by_the_engine(
    real_redis, queue, exchanges, monkeypatch
):
    monkeypatch.setattr("ground.redis.shortcut.LATE", 0.1)
    handle = queue.sync.submit("1")  # and the loop stands still meanwhile
    assert queued(real_redis) == [handle.id]
    assert any(exchanges)


# Trouble


@pytest.mark.parametrize("trouble", ["cut", "lose_replies"])
async def test_a_broken_shortcut_queues_each_job_once(real_redis, proxy, fusion, trouble):
    queue = await on_its_shortcut(CodeQueue(proxy.target, "code"))
    getattr(proxy, trouble)()
    handles = await asyncio.gather(*(queue.submit(str(n), timeout=60) for n in range(50)))
    assert sorted(queued(real_redis)) == sorted(handle.id for handle in handles)
    await work(real_redis)
    assert all([(await handle.result()).ok for handle in handles])
    assert fusion.requests == 50


async def test_scripts_that_a_server_forgot_are_the_engines_to_send(real_redis, queue, exchanges):
    real_redis.script_flush()
    handle = await queue.submit("1")
    assert queued(real_redis) == [handle.id]
    assert any(exchanges)


async def test_a_server_that_is_gone_is_said_as_ever(private_redis):
    server = private_redis()
    queue = await on_its_shortcut(CodeQueue(server.target, "code", patience=0.3))
    server.kill()
    with pytest.raises(QueueUnavailable, match=r"queue 'code': Redis at redis://127.0.0.1"):
        await queue.run("new")
    assert not takes_it(queue)


async def test_a_cancelled_call_takes_its_job_along(real_redis, queue):
    running = asyncio.create_task(queue.run("1", token="mine"))
    await asyncio.sleep(0)  # it is on its way
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    def canceled() -> bool:
        return real_redis.hget("rq:job:mine", "status") == b"canceled"

    await asyncio.to_thread(until, canceled, "the job to be taken back")
    assert queued(real_redis) == []


def test_what_a_silent_shortcut_does_not_answer_the_engine_sends() -> None:
    orders, answer = orders_alone(), Heard()
    order = order_of("job-1", orders)
    order.answers.append(answer)
    orders.add(order)
    (lost,) = said(orders)
    orders.cut_off([lost])
    (again,) = said(orders)
    assert again.asks == lost.asks == [order]
    again.read([b"queued"], 0.0)
    orders.read_entries([{b"job": b"job-1", b"status": b"finished", b"result": b"{}"}])
    assert orders.engine.settled == [(answer, b"{}")]
    assert not orders.waiting
    assert said(orders, 2 * CHECK_EVERY) == []
    assert orders.idle


# Loops and processes


def test_the_shortcut_of_a_closed_loop_is_closed(real_redis):
    async def submit() -> None:
        await on_its_shortcut(CodeQueue(real_redis, "code"))

    for _ in range(3):
        asyncio.run(submit())
    # This test's own, the engine's, the blocked one, and the last loop's two.
    until(lambda: len(real_redis.client_list()) <= 5, "the lines of two loops to be closed")


def test_two_loops_have_a_shortcut_each(real_redis, fusion):
    def trainer(n: int) -> None:
        async def runs() -> None:
            queue = await on_its_shortcut(CodeQueue(real_redis, "code"))
            handles = [await queue.submit(f"{n}", timeout=60) for _ in range(10)]
            barrier.wait(PATIENCE)  # a loop that stands still holds nobody up
            barrier.wait(PATIENCE)
            results.extend([(await handle.result()).ok for handle in handles])

        asyncio.run(runs())

    results: list[bool] = []
    barrier = threading.Barrier(3)
    threads = [threading.Thread(target=trainer, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    barrier.wait(PATIENCE)
    run_queued(real_redis)
    barrier.wait(PATIENCE)
    for thread in threads:
        thread.join(PATIENCE)
    assert results == [True] * 20


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
async def test_a_forked_child_leaves_its_parents_shortcut_alone(real_redis, queue, shared_server):
    await a_forked_child_submits(shared_server.target)
    handle = await queue.submit("parent")
    assert handle.id in queued(real_redis)
    assert takes_it(queue)

"""What goes wrong around a shortcut: nobody waits for ever, and nothing runs in vain."""

import asyncio
import itertools
import json
from typing import Any

import pytest

from ground.redis import engine as ground_engine
from ground.redis import loop_wire, shortcut
from ground.redis.connect import target_of
from ground.redis.connection import Connection
from ground.redis.loop_wire import LoopWire
from ground.redis.shortcut import Shortcut
from tests.harness.servers import until
from tests.worker.queue.by_shortcut import (
    QUEUE,
    deaf,
    eventually,
    hears,
    on_its_shortcut,
    queued,
    shortcut_of,
    takes_it,
    work,
)
from tests.worker.queue.orders_alone import Heard, order_of, orders_alone, said
from worker import CodeQueue, DeadlineExceeded, JobCancelled
from worker.queue import engine as client_engine
from worker.queue.client_orders import Orders
from worker.queue.engine import client_engine as engine_of
from worker.queue.order import SCRIPTS, withdraw

PATIENCE = 100.0


@pytest.fixture
async def queue(real_redis) -> CodeQueue:
    return await on_its_shortcut(CodeQueue(real_redis, "code"))


# What is given up


@pytest.mark.parametrize("abandon", ["keep", "cancel"])
async def test_what_is_given_up_before_it_is_sent_is_not_queued(
    real_redis, monkeypatch, abandon
) -> None:
    queue = await on_its_shortcut(CodeQueue(real_redis, "code", abandon=abandon))
    monkeypatch.setattr(shortcut, "LATE", PATIENCE)
    deaf(queue)  # so what comes next waits for its turn
    first = asyncio.create_task(queue.submit("1", token="first"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # it is sent
    second = asyncio.create_task(queue.submit("2", token="second"))
    third = asyncio.create_task(queue.submit("3", token="third"))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.sleep(0)
    hears(queue)
    await asyncio.wait_for(asyncio.gather(first, third), PATIENCE)
    assert queued(real_redis) == ["first", "third"]
    assert not real_redis.hexists("rq:job:second", "data")


async def test_a_withdrawal_may_come_before_its_job(redis) -> None:
    late, later = order_of("late"), order_of("late")
    late.submission, later.submission = 1, 2
    wire = Connection(target_of(redis), 5.0, SCRIPTS)
    wire.converse([withdraw(late.hash, "notices", [(late, "cancel")])])
    assert 0 < redis.ttl("rq:job:late") <= 60
    assert wire.converse([late.hash.enqueue("notices", "me", [late])]) == [[b"canceled"]]
    assert redis.llen(QUEUE) == 0
    assert 0 < redis.ttl("rq:job:late") <= 60
    assert wire.converse([late.hash.enqueue("notices", "me", [later])]) == [[b"new"]]
    assert redis.lrange(QUEUE, 0, -1) == [b"late"]
    assert redis.ttl("rq:job:late") == -1
    wire.close()


async def test_what_is_late_on_a_shortcut_is_not_queued_after_its_withdrawal(
    real_redis, queue
) -> None:
    job, wire = await one_that_stays_unsent(queue)
    await eventually(lambda: real_redis.exists(f"rq:job:{job}") == 1, "the withdrawal")
    real_redis.delete("rq:queues")
    wire._socket.send_now()
    await eventually(lambda: real_redis.exists("rq:queues") == 1, "what was sent before it")
    del wire.hang_up
    wire.hang_up()
    assert queued(real_redis) == []


class Kept:
    """A socket that keeps what it is given to send."""

    def __init__(self, real: Any) -> None:
        self.real = real
        self.data = b""

    def send(self, data: bytes) -> int:
        self.data += data
        return len(data)

    def send_now(self) -> None:
        self.real.send(self.data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


async def one_that_stays_unsent(queue: CodeQueue) -> tuple[str, Any]:
    """A job that was given up after the loop's shortcut had kept it, and its wire. The engine's
    thread may be quicker than the loop: then there is another try."""
    for n in itertools.count():
        await on_its_shortcut(queue)
        wire = shortcut_of(queue)._connection
        wire._socket = kept = Kept(wire._socket)
        running = asyncio.create_task(queue.run("1", token=f"late-{n}"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if kept.data:
            wire.hang_up = lambda: None  # the server reads what was sent all the same
            running.cancel()
            return f"late-{n}", wire
        wire._socket = kept.real
        running.cancel()
        await asyncio.wait([running])
    raise AssertionError


def test_what_was_given_up_on_its_way_is_withdrawn_once_it_has_come() -> None:
    orders, ack = orders_alone(), Heard()
    order = order_of("job-1", orders)
    orders.add(order)
    (enqueue,) = said(orders)
    orders.cancel(order, ack)
    assert isinstance(order.outcome, JobCancelled)
    enqueue.read([b"new"], 0.0)
    assert orders.engine.settled == [], "its arrival is not its withdrawal"
    (withdrawal,) = said(orders)
    withdrawal.read([b"queued"], 0.0)
    assert orders.engine.settled == [(ack, None)]
    assert not orders.waiting
    assert said(orders) == []


@pytest.mark.parametrize(
    ("status", "last", "outcome"),
    [
        (b"finished", [b"type", b"1", b"return_value", b"e30="], b"{}"),
        (b"queued", [], DeadlineExceeded),
    ],
    ids=["it is over", "it is not"],
)
def test_what_is_queued_at_its_deadline_is_looked_at(status, last, outcome) -> None:
    orders = orders_alone()
    order = order_of("job-1", orders)
    order.deadline = 1.0
    orders.add(order)
    (enqueue,) = said(orders)
    enqueue.read([b"new"], 0.0)
    (look,) = said(orders, 1.0)
    assert order.outcome is None
    look.read([1, 0, status, last], 1.0)
    assert order.outcome == outcome or type(order.outcome) is outcome
    assert not orders.waiting


def test_a_job_whose_end_is_long_in_coming_is_looked_at_by_one_timer() -> None:
    orders = orders_alone()
    order = order_of("job-1", orders)
    orders.add(order)
    (enqueue,) = said(orders)
    enqueue.read([b"new"], 0.0)
    orders.read_entries([{b"job": b"job-1", b"status": b"failed"}])
    for n in range(2000):  # two hours and more
        for look in said(orders, 5.0 * n):
            look.read([1, 0, b"started", []], 5.0 * n)
    assert order.outcome is None
    assert len(orders._timers._heap) <= 1


def test_a_run_that_ends_with_its_loop_takes_its_job_along(real_redis) -> None:
    async def give_up() -> None:
        queue = await on_its_shortcut(CodeQueue(real_redis, "code"))
        deaf(queue)
        running = asyncio.create_task(queue.run("1", token="mine"))
        await asyncio.sleep(0)
        running.cancel()

    asyncio.run(give_up())
    until(lambda: real_redis.hget("rq:job:mine", "status") == b"canceled", "its withdrawal")
    assert queued(real_redis) == []


# Lines that fail


async def test_a_shortcut_that_fell_silent_is_left(real_redis, monkeypatch) -> None:
    queue = await on_its_shortcut(
        CodeQueue(real_redis, "code", abandon="keep", no_workers_after=0.5)
    )
    deaf(queue)
    monkeypatch.setattr(LoopWire, "received", lambda _: ())
    handle = await asyncio.wait_for(queue.submit("1"), PATIENCE)
    monkeypatch.undo()
    assert not shortcut_of(queue).open
    assert queued(real_redis) == [handle.id]
    await asyncio.wait_for(on_its_shortcut(queue), PATIENCE)


async def test_a_shortcut_that_cannot_be_opened_for_any_reason_is_done_without(
    real_redis, monkeypatch
) -> None:
    tried = []

    def wire(*_: Any, **__: Any) -> None:
        tried.append(1)
        raise ValueError("a host's name that is none")

    monkeypatch.setattr(loop_wire, "dial", wire)
    queue = CodeQueue(real_redis, "code")
    while len(tried) < 2:
        await asyncio.wait_for(queue.submit("1"), PATIENCE)
    assert not takes_it(queue)


async def test_a_loop_that_watches_no_sockets_does_without(real_redis, monkeypatch) -> None:
    loop, tried, said_by_it = asyncio.get_running_loop(), [], []

    def refuses(*_: Any) -> None:
        tried.append(1)
        raise NotImplementedError

    for name in ("add_reader", "remove_reader"):
        monkeypatch.setattr(loop, name, refuses)
    loop.set_exception_handler(lambda _, context: said_by_it.append(context))
    queue = CodeQueue(real_redis, "code")
    while len(tried) < 2:
        await asyncio.wait_for(queue.submit("1"), PATIENCE)
    assert not takes_it(queue)
    assert said_by_it == []


async def test_an_ending_engine_opens_no_line(real_redis, monkeypatch) -> None:
    queue = CodeQueue(real_redis, "code")
    engine, opened = engine_of(queue.target), []
    monkeypatch.setattr(Shortcut, "connect", lambda *_: opened.append(engine.stopped))
    await queue.submit("1")
    engine.wish(engine._new_shortcut(asyncio.get_running_loop()))
    await asyncio.to_thread(engine.stop)
    assert True not in opened


def test_a_sign_of_life_goes_before_what_is_queued() -> None:
    orders = orders_alone()
    orders.add(order_of("job-1", orders))
    assert [exchange.command[0] for exchange in orders.exchange(0.0)] == [
        "HSET", "EXPIRE", "EVALSHA",
    ]  # fmt: skip


# A signal's handler may raise anywhere


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (Orders, "_acknowledge"),
        (Orders, "_arrived"),
        (ground_engine, "deliver"),
        (client_engine.JobEngine, "deliver"),
    ],
    ids=["acknowledge", "arrived", "deliver", "delivery"],
)
async def test_an_interrupted_reply_is_told_all_the_same(
    real_redis, queue, fusion, raises_once, owner, name
) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    raises_once(owner, name)
    handles = [queue.submit(str(n), timeout=2 * PATIENCE) for n in range(3)]
    submitted = await asyncio.wait_for(asyncio.gather(*handles), PATIENCE)
    assert sorted(queued(real_redis)) == sorted(handle.id for handle in submitted)
    await work(real_redis)
    assert all([(await handle.result()).ok for handle in submitted])
    assert fusion.requests == 3


async def test_an_interrupted_submit_holds_up_no_other(
    real_redis, monkeypatch, raises_once
) -> None:
    queue = CodeQueue(real_redis, "code")
    raises_once(engine_of(queue.target), "post")
    with pytest.raises(KeyError):
        await queue.submit("1", token="first")
    await asyncio.wait_for(queue.submit("2", token="second"), PATIENCE)
    assert queued(real_redis) == ["second"]


async def test_an_interrupted_submit_leaves_no_job(real_redis, queue, raises_once) -> None:
    raises_once(Shortcut, "touch")
    with pytest.raises(KeyError):
        await queue.submit("1", token="first")
    assert not engine_of(queue.target).stopped
    await eventually(lambda: not engine_of(queue.target).orders.waiting, "it to be given up")
    await asyncio.wait_for(queue.submit("2", token="second"), PATIENCE)
    assert queued(real_redis) == ["second"]


async def test_an_outcome_that_is_told_twice_arrives_once(real_redis, queue, fusion) -> None:
    handles = [await queue.submit(str(n), timeout=PATIENCE) for n in range(2)]
    blocking = [queue.sync.submit("3", timeout=PATIENCE)]
    engine, deliver = engine_of(queue.target), ground_engine.deliver

    def twice(settled: list[Any]) -> list[Any]:
        return [each for one in settled for each in (*deliver([one]), *deliver([one]))]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ground_engine, "deliver", twice)
        arriving = queue.as_completed(handles)
        there = asyncio.to_thread(lambda: [*queue.sync.as_completed(blocking)])
        waits = asyncio.create_task(there)
        await asyncio.sleep(0)
        await work(real_redis)
        assert {handle.id async for handle in arriving} == {handle.id for handle in handles}
        assert await waits == blocking
    assert not engine.stopped


# Two calls with one token, at a time


@pytest.mark.parametrize("shortened", [False, True], ids=["by the engine", "by its shortcut"])
async def test_two_calls_of_one_token_have_a_result_each(real_redis, fusion, shortened) -> None:
    queue = CodeQueue(real_redis, "code")
    if shortened:
        await on_its_shortcut(queue)
    runs = [queue.run("1", token="same", timeout=2 * PATIENCE) for _ in range(2)]
    running = [asyncio.create_task(run) for run in runs]
    submits = [queue.submit("1", token="same", timeout=2 * PATIENCE) for _ in range(2)]
    handles = await asyncio.wait_for(asyncio.gather(*submits), PATIENCE)
    assert queued(real_redis) == ["same"]
    await work(real_redis)
    assert all(result.ok for result in await asyncio.wait_for(asyncio.gather(*running), PATIENCE))
    assert all([(await handle.result()).ok for handle in handles])
    assert fusion.requests == 1


async def test_who_gives_up_leaves_the_job_to_who_waits_for_it_too(redis, fusion) -> None:
    queue = CodeQueue(redis, "code")
    gives_up = asyncio.create_task(queue.run("1", token="same"))
    waits = await queue.submit("1", token="same", timeout=2 * PATIENCE)
    gives_up.cancel()
    with pytest.raises(DeadlineExceeded):
        await queue.run("1", token="same", timeout=0.001)
    assert queued(redis) == ["same"]
    await work(redis)
    assert (await waits.result()).ok


async def test_a_job_that_is_cancelled_is_cancelled_for_all(redis) -> None:
    queue = CodeQueue(redis, "code")
    first, second = [await queue.submit("1", token="same") for _ in range(2)]
    await asyncio.wait_for(first.cancel(), PATIENCE)
    for handle in (first, second):
        with pytest.raises(JobCancelled):
            await asyncio.wait_for(handle.result(), PATIENCE)
    assert queued(redis) == []


async def test_the_last_to_give_up_takes_the_job_along(redis) -> None:
    queue = CodeQueue(redis, "code")
    runs = [asyncio.create_task(queue.run("1", token="same")) for _ in range(2)]
    await asyncio.wait_for(queue.submit("1", token="other"), PATIENCE)
    for run in runs:
        run.cancel()
    await eventually(lambda: redis.hget("rq:job:same", "status") == b"canceled", "its withdrawal")
    assert queued(redis) == ["other"]


def test_a_notice_is_for_all_who_wait_for_its_job() -> None:
    orders, answers = orders_alone(), [Heard(), Heard()]
    for answer in answers:
        order = order_of("job-1", orders)
        order.answers.append(answer)
        orders.add(order)
    result = json.dumps({}).encode()
    orders.read_entries([{b"job": b"job-1", b"status": b"finished", b"result": result}])
    assert orders.engine.settled == [(answer, result) for answer in answers]
    assert not orders.waiting

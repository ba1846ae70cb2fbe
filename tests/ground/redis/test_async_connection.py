"""A loop's wire: each question gets its own answer, or hears why there is none."""

import asyncio
import gc
import multiprocessing
import sys
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import fakeredis
import pytest
from redis.exceptions import (
    ConnectionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
)

from ground.redis.async_connection import AsyncConnection, Opened, WireTransport
from ground.redis.connect import target_of
from ground.redis.dial import dial
from tests.ground.redis.wire_interruptions import is_interrupted_at_every_statement
from tests.harness.servers import blocked, until
from worker.concurrent.commands import SCRIPTS, WorkCommands
from worker.concurrent.parking import Parking

PATIENCE = 100.0


@pytest.fixture
async def noise():
    """What nobody retrieved."""
    heard: list[Any] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: heard.append(context))
    yield heard
    gc.collect()
    await asyncio.sleep(0)
    assert heard == []


async def open_wire(redis: Any) -> AsyncConnection:
    wire = AsyncConnection(target_of(redis), SCRIPTS, timeout=60)
    assert await wire.ask(("PING",)) in (b"PONG", "PONG", True)
    return wire


async def soon(asked: Any) -> Any:
    return await asyncio.wait_for(asked, PATIENCE)


async def test_it_outlives_a_server_that_was_silent(proxy) -> None:
    wire = AsyncConnection(proxy.target, SCRIPTS, timeout=0.2)
    assert await wire.ask(("PING",)) in (b"PONG", "PONG")
    proxy.freeze()
    with pytest.raises((RedisError, OSError)):
        await wire.ask(("PING",))
    proxy.thaw()
    assert await wire.ask(("ECHO", "again")) == b"again", "and no earlier question's reply"
    await wire.close()


async def test_who_waits_hears_that_it_was_broken_off(real_redis) -> None:
    wire = AsyncConnection(target_of(real_redis), SCRIPTS, timeout=60)
    asked = asyncio.create_task(wire.ask(("BLPOP", "nothing", 0)))
    await blocked(real_redis)
    wire.break_off()
    with pytest.raises(RedisError, match="broken off"):
        await asked
    assert await wire.ask(("ECHO", "again")) == b"again"
    await wire.close()


async def goes_on_when_broken_off(wire: AsyncConnection, first: "asyncio.Future[Any]") -> None:
    """Who asked is told, who asks then is answered; and it closes."""
    wire.break_off()
    (second,) = wire.asked(("ECHO", "second"))
    with pytest.raises(ConnectionError, match="broken off"):
        await soon(first)
    assert await soon(second) == b"second"
    await wire.close()


async def test_broken_off_before_anything_was_sent(redis, noise) -> None:
    wire = AsyncConnection(target_of(redis), SCRIPTS, timeout=60)
    (first,) = wire.asked(("ECHO", "first"))
    await goes_on_when_broken_off(wire, first)


async def test_broken_off_while_it_connects(real_redis, noise) -> None:
    wire = AsyncConnection(target_of(real_redis), SCRIPTS, timeout=60)
    (first,) = wire.asked(("ECHO", "first"))
    await asyncio.sleep(0)  # it has begun
    await goes_on_when_broken_off(wire, first)


async def test_what_cannot_be_sent_is_its_askers_alone(real_redis) -> None:
    wire = await open_wire(real_redis)
    with pytest.raises(Exception, match="must be str, int, float or bytes"):
        await wire.ask(("ECHO", None))
    assert await soon(wire.ask(("ECHO", "one"))) == b"one"
    # The same where questions go out together, behind one that is not answered.
    first = wire.asked(("BLPOP", "nothing", 0))
    await blocked(real_redis)
    together = [*first, *wire.asked(("ECHO", "beside"), ("ECHO", None), ("ECHO", "\ud83d"))]
    await asyncio.wait(together[2:], timeout=PATIENCE)
    last = wire.asked(("ECHO", "two"))
    real_redis.rpush("nothing", "came")
    assert await soon(together[0]) == [b"nothing", b"came"]
    assert await soon(together[1]) == b"beside"
    assert await soon(last[0]) == b"two"
    assert [type(each.exception()) for each in together[2:]] == [TypeError, UnicodeEncodeError]
    await wire.close()


async def test_a_reply_that_lies_unread_is_read_before_the_server_is_called_silent(
    real_redis,
) -> None:
    wire = await open_wire(real_redis)
    opened = wire._opened
    assert opened is not None
    (asked,) = wire.asked(("ECHO", "there"))
    assert isinstance(opened.transport, WireTransport)
    assert opened.transport._wire.wait(PATIENCE)
    wire._timeout = 0.0  # so it is late, as after a loop that stood still
    wire._watch(opened)
    assert await soon(asked) == b"there"
    wire._timeout = 60.0
    await wire.close()


async def test_the_server_has_its_time_for_each_reply(real_redis) -> None:
    wire = await open_wire(real_redis)
    first, second = wire.asked(("BLPOP", "one", 0), ("BLPOP", "two", 0))
    opened = wire._opened
    assert opened is not None
    long_ago = -1e6  # both were asked, as the server was at work on something long
    opened.asked = deque((command, answer, long_ago) for command, answer, _ in opened.asked)
    real_redis.rpush("one", "came")
    assert await soon(first) == [b"one", b"came"]
    for _ in range(2):
        wire._watch(opened)
    real_redis.rpush("two", "came")
    assert await soon(second) == [b"two", b"came"]
    await wire.close()


def overdue(wire: AsyncConnection) -> Opened:
    """The line, all of whose questions were asked long ago, with nothing to show since."""
    opened, long_ago = wire._opened, -1e6
    assert opened is not None
    opened.asked = deque((command, answer, long_ago) for command, answer, _ in opened.asked)
    opened.transport.moved_at = long_ago
    return opened


async def is_waited_for_as_it_moves(wire: AsyncConnection, proxy: Any, way: str) -> None:
    """Some of it passes, and not all."""
    opened = overdue(wire)
    proxy.delay(0.01, way)  # each 64 KiB
    proxy.thaw()
    await asyncio.to_thread(until, lambda: opened.transport.moved_at > 0, "some of it")
    proxy.freeze(way)
    for _ in range(2):
        wire._watch(opened)
    assert opened.asked, "it was given up"
    proxy.delay(0.0)
    proxy.thaw()


async def test_a_long_reply_is_not_silence(proxy, real_redis) -> None:
    wire = AsyncConnection(proxy.target, SCRIPTS, timeout=60)
    await wire.ask(("PING",))
    long = b"x" * (32 << 20)
    real_redis.set("long", long)
    proxy.freeze("replies")
    (asked,) = wire.asked(("GET", "long"))
    await is_waited_for_as_it_moves(wire, proxy, "replies")
    assert await soon(asked) == long
    await wire.close()


async def test_a_long_request_is_not_silence(proxy, real_redis) -> None:
    wire = AsyncConnection(proxy.target, SCRIPTS, timeout=60)
    await wire.ask(("PING",))
    proxy.freeze("commands")
    (asked,) = wire.asked(("SET", "long", b"x" * (32 << 20)))
    await is_waited_for_as_it_moves(wire, proxy, "commands")
    assert await soon(asked) in (b"OK", True, "OK")
    assert real_redis.strlen("long") == 32 << 20
    await wire.close()


async def left_by_a_demoted_server(real_redis) -> tuple[AsyncConnection, asyncio.Future[Any]]:
    """A wire, and what its former line still waits for."""
    wire = await open_wire(real_redis)
    demoted = "return redis.error_reply('READONLY You cannot write')"
    refused, waits = wire.asked(("EVAL", demoted, 0), ("BLPOP", "nothing", 0))
    with pytest.raises(ReadOnlyError):
        await soon(refused)
    return wire, waits


async def test_a_line_that_goes_away_is_closed_with_the_others(real_redis, noise) -> None:
    wire, waits = await left_by_a_demoted_server(real_redis)
    await blocked(real_redis)
    closing = asyncio.create_task(wire.close())
    await asyncio.sleep(0)
    assert not waits.done(), "it may still be answered"
    real_redis.rpush("nothing", "came")
    assert await soon(waits) == [b"nothing", b"came"]
    await soon(closing)


async def test_a_line_that_goes_away_is_broken_off_with_the_others(real_redis, noise) -> None:
    wire, waits = await left_by_a_demoted_server(real_redis)
    wire.break_off()
    with pytest.raises(ConnectionError, match="broken off"):
        await soon(waits)
    await wire.close()


async def test_a_wire_that_was_dialed_for_nobody_any_more_is_closed(
    real_redis, monkeypatch
) -> None:
    opened, go_on = [], threading.Event()

    def late(*asked: Any) -> Any:
        go_on.wait(PATIENCE)
        opened.append(dial(*asked))
        return opened[0]

    monkeypatch.setattr("ground.redis.loop_wire.dial", late)
    wire = AsyncConnection(target_of(real_redis), SCRIPTS, timeout=60)
    (asked,) = wire.asked(("PING",))
    await asyncio.sleep(0)
    wire.break_off()
    with pytest.raises(ConnectionError, match="broken off"):
        await soon(asked)
    go_on.set()
    await asyncio.to_thread(until, lambda: opened and opened[0].closed, "its end")
    await wire.close()


async def test_a_connection_that_the_server_cut_is_replaced(real_redis) -> None:
    wire = await open_wire(real_redis)
    for client in real_redis.client_list(_type="normal"):
        if client["id"] != str(real_redis.client_id()):
            real_redis.client_kill_filter(_id=client["id"])
    while True:  # the loop may learn of it by what it sends
        try:
            assert await soon(wire.ask(("ECHO", "again"))) == b"again"
            break
        except ConnectionError as failure:
            assert "hung up" in str(failure)  # noqa: PT017
    await wire.close()


async def test_who_parks_and_is_cancelled_goes_at_once(real_redis, monkeypatch) -> None:
    monkeypatch.setattr("worker.concurrent.parking._BLOCK", 1000.0)
    commands = WorkCommands("code", "me", 3000.0, None)
    parking = Parking(target_of(real_redis), commands, lambda: None)
    parking.park(wanted=1)
    await blocked(real_redis)
    task = parking._task
    assert task is not None
    task.cancel()
    done, _ = await asyncio.wait([task], timeout=PATIENCE)
    assert done
    parking._connection.break_off()
    await parking.close()


def test_nobody_gets_the_reply_of_another_wherever_a_signal_handler_raises(shared_server) -> None:
    process = multiprocessing.get_context("spawn").Process(
        target=is_interrupted_at_every_statement, args=(shared_server.url,)
    )
    process.start()
    process.join()
    assert process.exitcode == 0


async def test_what_nobody_uses_any_more_closes_its_connection_while_its_loop_lives(
    real_redis,
) -> None:
    wire = AsyncConnection(target_of(real_redis), SCRIPTS, timeout=0.2)
    await wire.ask(("PING",))
    before = len(real_redis.client_list())
    del wire
    await asyncio.to_thread(until, lambda: len(real_redis.client_list()) < before, "its end")


async def test_a_slow_dial_takes_no_time_from_the_reply(real_redis, monkeypatch) -> None:
    def slow(*asked: Any) -> Any:
        time.sleep(0.9)  # most of the timeout
        return dial(*asked)

    monkeypatch.setattr("ground.redis.loop_wire.dial", slow)
    wire = AsyncConnection(target_of(real_redis), SCRIPTS, timeout=1.0)
    assert await soon(wire.ask(("BLPOP", "nothing", 0.6))) is None
    await wire.close()


async def test_a_dial_that_does_not_end_fails_who_asked_within_the_timeout(
    real_redis, monkeypatch
) -> None:
    ends = threading.Event()
    monkeypatch.setattr("ground.redis.loop_wire.dial", lambda *_: ends.wait(PATIENCE))
    wire = AsyncConnection(target_of(real_redis), SCRIPTS, timeout=0.1)
    with pytest.raises(TimeoutError, match=r"no connection within 0\.2 s"):
        await soon(wire.ask(("PING",)))
    ends.set()
    await wire.close()


async def test_no_thread_of_the_loops_executor_is_needed_to_connect(real_redis) -> None:
    ends = threading.Event()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    busy = loop.run_in_executor(None, ends.wait, PATIENCE)
    wire = await open_wire(real_redis)
    ends.set()
    await busy
    await wire.close()


async def test_what_its_caller_cancelled_before_it_was_sent_is_not_sent(real_redis) -> None:
    wire = AsyncConnection(target_of(real_redis), SCRIPTS, timeout=60)
    first, second = wire.asked(("SET", "first", 1), ("SET", "second", 1))
    first.cancel()
    await soon(second)
    assert real_redis.keys() == [b"second"]
    await wire.close()


async def test_a_cancelled_script_that_is_unknown_is_not_sent_whole(real_redis) -> None:
    real_redis.script_flush()
    script = next(iter(SCRIPTS.values()))
    wire = await open_wire(real_redis)
    (asked,) = wire.asked(script.command([f"{{x}}{name}" for name in script.keys], []))
    asked.cancel()
    assert await wire.ask(("PING",)) == b"PONG"
    assert real_redis.script_exists(script.sha) == [False]
    await wire.close()


async def test_a_full_redis_costs_no_new_connection(real_redis) -> None:
    wire = await open_wire(real_redis)
    before = real_redis.info("stats")["total_connections_received"]
    real_redis.config_set("maxmemory", 1)
    try:
        for _ in range(3):
            with pytest.raises(OutOfMemoryError):
                await wire.ask(("SET", "key", "value"))
    finally:
        real_redis.config_set("maxmemory", 0)
    assert real_redis.info("stats")["total_connections_received"] == before
    await wire.close()


async def test_an_error_of_a_fake_is_its_askers_alone() -> None:
    wire = await open_wire(fakeredis.FakeRedis())

    async def broken(*command: Any) -> Any:
        if command == ("GET", "key"):
            raise ValueError("a fake's own")
        return command[0]

    wire._fake.execute_command = broken
    with pytest.raises(ValueError, match="a fake's own"):
        await soon(wire.ask(("GET", "key")))
    assert await soon(wire.ask(("PING",))) == "PING"
    await wire.close()


@pytest.mark.skipif(
    sys.version_info < (3, 12), reason="no loop of this Python begins tasks at once"
)
async def test_a_loop_that_begins_its_tasks_at_once(redis) -> None:
    asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
    wire = await open_wire(redis)
    for _ in range(2):
        assert len(await soon(asyncio.gather(*wire.asked(*[("PING",)] * 3)))) == 3
    await wire.close()

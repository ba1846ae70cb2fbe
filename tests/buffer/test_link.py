"""The buffer's way to Redis: what it says of an outage that it could not outlast."""

import asyncio
import gc
from collections.abc import Callable
from typing import NoReturn

import pytest
from redis.exceptions import OutOfMemoryError, ResponseError

import ground
from buffer import RolloutBuffer, TaskConfig
from buffer.link import Link
from tests.buffer.conftest import item
from tests.harness.servers import PrivateRedis, until


async def test_an_outage_without_words_is_told_by_its_kind(redis: ground.Client) -> None:
    async def silent() -> NoReturn:
        raise TimeoutError

    with pytest.raises(ground.RedisUnavailable, match=r"did not answer: TimeoutError$"):
        await Link(redis, patience=0).outlast(silent)


@pytest.mark.parametrize(
    "words",
    [
        "BUSY Redis is busy running a script.",
        "@user_script: 742: -READONLY You can't write against a read only replica.",
    ],
)
async def test_a_redis_that_cannot_do_it_now_is_asked_again(
    redis: ground.Client, words: str
) -> None:
    answers = [ResponseError(words), None]

    async def busy_once() -> str:
        if refusal := answers.pop(0):
            raise refusal
        return "answered"

    assert await Link(redis).outlast(busy_once) == "answered"
    with pytest.raises(ResponseError, match="BUSYGROUP"):
        await Link(redis).outlast(_has_such_a_group)


async def test_who_waits_and_who_writes_outlast_a_primary_that_is_none_for_a_while(
    private_redis: Callable[..., PrivateRedis],
) -> None:
    server = private_redis(aof=False)
    buffer = RolloutBuffer(server.target, "math", TaskConfig(group_size=2))
    try:
        await buffer.write(item("a", "u0", 0))
        waits = asyncio.create_task(buffer.take(1, wait=60))
        await asyncio.to_thread(
            until, lambda: server.ask("INFO", "clients")["blocked_clients"], "a reader that waits"
        )
        server.ask("REPLICAOF", "127.0.0.1", "1")
        writes = asyncio.create_task(buffer.write(item("a", "u1", 1)))
        await asyncio.sleep(0.2)  # in which the write is refused
        server.ask("REPLICAOF", "NO", "ONE")
        assert await writes == "stored"
        batch = await waits
        assert batch is not None
        assert batch.finished_groups == ["a"]
    finally:
        await buffer.aclose()


async def test_a_full_redis_has_an_error_of_its_own_in_any_version(
    redis: ground.Client,
) -> None:
    async def full() -> NoReturn:
        raise ResponseError(
            "ERR Error running script (call to f_1): @user_script:21: @user_script: 21: "
            "-OOM command not allowed when used memory > 'maxmemory'."
        )

    async def full_since_7() -> NoReturn:
        raise OutOfMemoryError("command not allowed when used memory > 'maxmemory'.")

    for refused in (full, full_since_7):
        with pytest.raises(ground.RedisFull, match=r"maxmemory: .* is out of memory"):
            await Link(redis).outlast(refused)


async def _has_such_a_group() -> NoReturn:
    raise ResponseError("BUSYGROUP Consumer Group name already exists")


def test_loops_that_ended_leave_no_connection(real_redis: ground.Client) -> None:
    link = Link(real_redis)
    for _ in range(5):
        assert asyncio.run(link.command("PING")) == b"PONG"  # without `aclose`
    gc.collect()
    mine = [row for row in real_redis.client_list() if row["cmd"] == "ping"]
    assert len(mine) == 1, "that of the last loop"


async def test_plain_commands_are_answered_in_their_order(redis: ground.Client) -> None:
    link = Link(redis)
    assert await link.commands([]) == []
    assert await link.commands([("SET", "a", 1), ("GET", "a"), ("GET", "b")]) == [b"OK", b"1", None]
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        await link.commands([("GET", "a"), ("LPOP", "a"), ("GET", "b")])
    assert await link.command("GET", "a") == b"1"
    await link.aclose()


def test_a_loop_that_was_closed_while_callers_waited_is_no_trouble_of_the_next(
    real_redis: ground.Client,
) -> None:
    link, loop = Link(real_redis), asyncio.new_event_loop()
    waits = loop.create_task(link.command("BLPOP", "nothing", 0))
    loop.run_until_complete(asyncio.wait([waits], timeout=0.1))
    loop.close()
    assert asyncio.run(link.command("PING")) == b"PONG"
    waits._log_destroy_pending = False  # type: ignore[attr-defined] # it is meant

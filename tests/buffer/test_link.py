"""The buffer's way to Redis: what it says of an outage that it could not outlast."""

from typing import NoReturn

import pytest
from redis.exceptions import ResponseError

import ground
from buffer.link import Link


async def test_an_outage_without_words_is_told_by_its_kind(redis: ground.Client) -> None:
    async def silent() -> NoReturn:
        raise TimeoutError

    with pytest.raises(ground.RedisUnavailable, match=r"did not answer: TimeoutError$"):
        await Link(redis, patience=0).outlast(silent)


async def test_a_redis_that_runs_a_script_is_asked_again(redis: ground.Client) -> None:
    answers = [ResponseError("BUSY Redis is busy running a script."), None]

    async def busy_once() -> str:
        if refusal := answers.pop(0):
            raise refusal
        return "answered"

    assert await Link(redis).outlast(busy_once) == "answered"
    with pytest.raises(ResponseError, match="BUSYGROUP"):
        await Link(redis).outlast(_has_such_a_group)


async def _has_such_a_group() -> NoReturn:
    raise ResponseError("BUSYGROUP Consumer Group name already exists")

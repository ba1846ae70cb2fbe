"""The buffer's way to Redis: what it says of an outage that it could not outlast."""

from typing import NoReturn

import pytest

import ground
from buffer.link import Link


async def test_an_outage_without_words_is_told_by_its_kind(redis: ground.Client) -> None:
    async def silent() -> NoReturn:
        raise TimeoutError

    with pytest.raises(ground.RedisUnavailable, match=r"did not answer for 0 s: TimeoutError$"):
        await Link(redis, patience=0).outlast(silent)

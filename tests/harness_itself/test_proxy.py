"""A proxy cuts, freezes, delays, and loses replies: as a client sees it."""

import asyncio
import time

import pytest
from redis.exceptions import ConnectionError, TimeoutError

import ground
from ground.redis.connect import connect_async


@pytest.fixture
def through(proxy):
    client = ground.connect(proxy.target, timeout=0.3)
    client.ping()
    yield client
    client.close()


def test_a_cut_connection_fails_and_the_next_one_works(proxy, through):
    with through.pubsub() as listening:
        listening.subscribe("news")
        listening.get_message(timeout=5)
        proxy.cut()
        with pytest.raises(ConnectionError):
            listening.get_message(timeout=5)
    assert through.ping()


def test_a_frozen_network_times_out_and_works_when_thawed(proxy, through):
    proxy.freeze()
    with pytest.raises(TimeoutError):
        through.ping()
    proxy.thaw()
    assert through.ping()


def test_a_lost_reply_means_the_command_has_run(proxy, through, real_redis):
    proxy.lose_replies(1)
    with pytest.raises(ConnectionError):
        through.incr("ran")
    assert real_redis.get("ran") == b"1"
    assert through.incr("ran") == 2


def test_frozen_replies_let_commands_run(proxy, through, real_redis):
    proxy.freeze("replies")
    with pytest.raises(TimeoutError):
        through.incr("ran")
    assert real_redis.get("ran") == b"1"


def test_a_delay_makes_every_reply_later(proxy, through):
    proxy.delay(0.1, "replies")
    began = time.monotonic()
    through.ping()
    assert time.monotonic() - began >= 0.1


async def test_an_async_client_sees_the_same_network(proxy):
    client = connect_async(proxy.target)
    await client.ping()
    proxy.freeze()
    waiting = asyncio.create_task(client.get("anything"))
    await asyncio.sleep(0)
    proxy.thaw()
    assert await waiting is None
    proxy.lose_replies(1)
    with pytest.raises(ConnectionError):
        await client.incr("ran")
    await client.aclose()

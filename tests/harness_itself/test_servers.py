"""The harness does what it says: else no chaos test means anything."""

import pytest
import redis as redis_py

import ground
from ground.redis.connect import connect_async, target_of


def test_the_redis_of_a_test_is_empty(redis):
    assert redis.dbsize() == 0
    redis.set("left", "behind")


async def test_a_second_client_reaches_the_same_redis(redis):
    redis.set("name", "penstock")
    other = connect_async(target_of(redis))
    assert await other.get("name") == b"penstock"
    await other.aclose()


def test_a_killed_server_comes_back_with_its_data(private_redis):
    server = private_redis()
    server.ask("SET", "kept", "yes")
    server.restart(keep_data=True)
    assert server.ask("GET", "kept") == b"yes"


def test_a_server_can_come_back_without_its_data(private_redis):
    server = private_redis()
    server.ask("SET", "kept", "yes")
    server.restart(keep_data=False)
    assert server.ask("GET", "kept") is None


def test_a_server_keeps_its_port_over_restarts(private_redis):
    server = private_redis(aof=False)
    port = server.port
    assert server.restart().port == port


def test_a_frozen_server_answers_when_it_is_thawed(private_redis):
    server = private_redis(aof=False)
    client = ground.connect(server.target, timeout=0.2)
    server.freeze()
    with pytest.raises(redis_py.exceptions.TimeoutError):
        client.ping()
    server.thaw()
    assert client.ping()
    client.close()

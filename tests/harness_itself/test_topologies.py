"""A Cluster and a Sentinel pair that survive what tests do to them."""

import contextlib

import pytest
from redis.exceptions import ConnectionError

import ground


def test_a_cluster_keeps_keys_on_the_nodes_it_should(redis_cluster):
    with contextlib.closing(ground.connect(redis_cluster.target)) as client:
        for key in ("a", "b", "c", "{a}:other"):
            client.set(key, key)
            assert redis_cluster.node_of(key).ask("GET", key) == key.encode()


def test_a_cluster_is_whole_again_after_a_node_was_killed(redis_cluster):
    node = redis_cluster.node_of("key")
    node.ask("SET", "key", "kept")
    node.kill()
    redis_cluster.heal()
    with contextlib.closing(ground.connect(redis_cluster.target)) as client:
        assert client.get("key") == b"kept"


def test_a_failover_moves_the_service_and_keeps_the_data(sentinel_pair):
    with contextlib.closing(ground.connect(sentinel_pair.target)) as client:
        client.set("key", "kept")
        sentinel_pair.replica.until_in_step(sentinel_pair.primary)
        before = sentinel_pair.primary.port
        sentinel_pair.kill_primary()
        with contextlib.suppress(ConnectionError):
            client.ping()  # the connection it had is dead
        assert client.get("key") == b"kept"
        assert sentinel_pair.primary.port != before


def test_the_pair_is_in_step_again_after_a_failover(sentinel_pair):
    assert sentinel_pair.primary.ask("ROLE")[0] == b"master"
    assert sentinel_pair.replica.ask("ROLE")[0] == b"slave"
    sentinel_pair.primary.ask("SET", "key", "copied")
    sentinel_pair.replica.until_in_step(sentinel_pair.primary)
    assert sentinel_pair.replica.ask("GET", "key") == b"copied"


@pytest.mark.parametrize("nth", [1, 2])
def test_a_failover_can_follow_a_failover(sentinel_pair, nth):
    sentinel_pair.failover()
    assert sentinel_pair.primary.ask("ROLE")[0] == b"master"

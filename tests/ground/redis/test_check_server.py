"""A Redis that could lose our state is refused in one sentence that names the setting."""

import contextlib

import pytest

from ground import RedisUnavailable, RedisUnfit, SettingError
from ground.redis.check import open_checked, read_facts
from ground.redis.connect import target_of
from ground.redis.url import parse_redis_url
from tests.harness.scripted import ScriptedServer, bulk
from tests.harness.servers import free_port


def refusal(target, kind, **options):
    """The sentence with which a target is refused."""
    if isinstance(target, str):
        target = parse_redis_url(target)
    with pytest.raises(kind) as refused:
        open_checked(target, **options)
    sentence = str(refused.value)
    assert sentence.startswith(options.get("setting", "PENSTOCK_REDIS_URL") + ": ")
    assert "\n" not in sentence
    assert ".." not in sentence
    assert refused.value.__suppress_context__ or refused.value.__context__ is None
    return sentence


def test_a_fit_server_is_opened_and_its_facts_are_known(private_redis):
    server = private_redis(aof=True)
    with contextlib.closing(open_checked(server.target)) as client:
        facts = read_facts(client, server.target)
        assert facts.version >= (6, 2)
        assert facts.name.split()[0] in ("Redis", "Valkey")
        assert (facts.role, facts.persistence) == ("master", "aof")
        assert facts.run_id == client.info("server")["run_id"]


@pytest.mark.parametrize(("save", "persistence"), [('save ""', "none"), ("save 60 1", "rdb")])
def test_persistence_is_told(private_redis, save, persistence):
    server = private_redis(aof=False, config=[save])
    with contextlib.closing(open_checked(server.target)) as client:
        assert read_facts(client, server.target).persistence == persistence


def test_a_fake_is_fit(redis):
    target = target_of(redis)
    with contextlib.closing(open_checked(target)) as client:
        assert client.ping()


def test_a_cluster_and_a_sentinels_service_are_fit(redis_cluster, sentinel_pair):
    for target in (redis_cluster.target, sentinel_pair.target):
        with contextlib.closing(open_checked(target)) as client:
            assert read_facts(client, target).version >= (6, 2)


def test_a_cluster_with_a_dead_node_is_fit(redis_cluster):
    *others, dead = redis_cluster.nodes
    for other in others:
        other.ask("CONFIG", "SET", "cluster-require-full-coverage", "no")
    dead.kill()
    for _ in range(10):  # the client chooses by chance whom it asks
        with contextlib.closing(open_checked(redis_cluster.target)) as client:
            assert read_facts(client, redis_cluster.target).clustered


def test_nobody_at_the_address():
    port = free_port()
    said = refusal(f"redis://127.0.0.1:{port}", RedisUnavailable)
    assert f"redis://127.0.0.1:{port}/0 does not answer" in said
    assert "unset PENSTOCK_REDIS_URL" in said


@pytest.mark.parametrize(
    "url",
    [
        "unix:///no/such/socket",
        "redis://no-such-host.invalid",
        "redis+sentinel://127.0.0.1:1/main",
        "redis+cluster://127.0.0.1:1",
        "rediss://127.0.0.1:1",
    ],
)
def test_nobody_at_any_kind_of_address(url):
    said = refusal(url, RedisUnavailable)
    assert f"{url}" in said
    assert "does not answer" in said
    assert "<" not in said, "a client's innards were shown"


def test_the_setting_is_named_as_the_caller_calls_it():
    refusal("redis://127.0.0.1:1", RedisUnavailable, setting="QUEUE_URL")


def test_a_frozen_server(private_redis):
    server = private_redis(aof=False)
    server.freeze()
    assert "does not answer: Timeout" in refusal(server.target, RedisUnavailable, timeout=0.2)


def test_a_service_the_sentinels_do_not_know(sentinel_pair):
    url = sentinel_pair.url.replace("/main", "/other")
    said = refusal(url, RedisUnavailable)
    assert "none knows that primary. During a failover wait" in said
    assert "private" not in said, "a fleet's process must not go on with a Redis of its own"


def test_a_server_that_is_no_cluster(shared_server):
    url = f"redis+cluster://127.0.0.1:{shared_server.port}"
    assert "Cluster mode is not enabled" in refusal(url, RedisUnfit)


@pytest.mark.parametrize("credentials", ["", ":wrong@", "nobody:hunter2@"])
def test_a_wrong_password(private_redis, credentials):
    server = private_redis(aof=False, config=["requirepass hunter2"])
    said = refusal(f"redis://{credentials}127.0.0.1:{server.port}", RedisUnfit)
    assert "refused the user or password" in said
    assert "hunter2" not in said
    assert "wrong" not in said.replace("wrong number", "").replace("WRONGPASS", "")


def test_a_password_for_a_server_without_one(shared_server):
    said = refusal(f"redis://me:pw@127.0.0.1:{shared_server.port}", RedisUnfit)
    assert "refused the user or password" in said


def test_a_user_who_may_not_run_scripts(private_redis):
    server = private_redis(aof=False, config=["user alice on >pw ~* &* +@all -@scripting"])
    said = refusal(f"redis://alice:pw@127.0.0.1:{server.port}", RedisUnfit)
    assert "too few permissions" in said


def test_a_user_who_may_not_ask_for_facts_is_fit(private_redis):
    server = private_redis(aof=False, config=["user alice on >pw ~* &* +@all -info -config"])
    target = parse_redis_url(f"redis://alice:pw@127.0.0.1:{server.port}")
    with contextlib.closing(open_checked(target)) as client:
        facts = read_facts(client, target)
    assert (facts.name, facts.version, facts.persistence) == ("", (), "")


def test_a_read_only_replica(sentinel_pair):
    said = refusal(sentinel_pair.replica.target, RedisUnfit)
    assert "read-only replica; name the primary" in said


def test_a_node_of_a_cluster_is_no_primary(redis_cluster):
    port = redis_cluster.target.nodes[0][1]
    said = refusal(f"redis://127.0.0.1:{port}", RedisUnfit)
    assert "is a node of a Redis Cluster" in said


def test_a_server_that_is_no_sentinel(shared_server):
    said = refusal(f"redis+sentinel://127.0.0.1:{shared_server.port}/main", RedisUnfit)
    assert "names a server that is no Sentinel; name the Sentinels" in said


def test_a_database_that_is_not_there(shared_server):
    said = refusal(f"redis://127.0.0.1:{shared_server.port}/7777", RedisUnfit)
    assert "has no database of that number" in said


def test_a_server_that_evicts_keys(private_redis):
    server = private_redis(aof=False, config=["maxmemory 100mb", "maxmemory-policy allkeys-lru"])
    said = refusal(server.target, RedisUnfit)
    assert "allkeys-lru" in said
    assert "set maxmemory-policy noeviction" in said


def test_a_policy_without_a_memory_limit_evicts_nothing(private_redis):
    server = private_redis(aof=False, config=["maxmemory-policy allkeys-lru"])
    open_checked(server.target).close()


def test_a_server_that_is_loading():
    loading = b"-LOADING Redis is loading the dataset in memory"
    with ScriptedServer({b"PING": loading}) as server:
        said = refusal(server.target, RedisUnavailable)
    assert "still loading its data from disk; try again" in said


@pytest.mark.parametrize(
    ("info", "name"),
    [
        ("redis_version:6.0.16\r\nrole:master", "Redis 6.0.16"),
        ("redis_version:7.2.4\r\nvalkey_version:5.9.9", "Valkey 5.9.9"),
    ],
)
def test_a_server_too_old(info, name):
    with ScriptedServer({b"PING": b"+PONG", b"INFO": bulk(info)}) as server:
        said = refusal(server.target, RedisUnfit)
    assert f"runs {name}; Penstock needs Redis 6.2 or newer, or Valkey" in said


@pytest.mark.parametrize("version", ["6.2.0", "7.0.15", "8.10.1", "255.255.255"])
def test_a_server_new_enough(version):
    info = bulk(f"redis_version:{version}\r\nrole:master")
    with ScriptedServer({b"PING": b"+PONG", b"INFO": info, b"CONFIG": b"*0"}) as server:
        open_checked(server.target).close()


def test_something_that_is_no_redis():
    with ScriptedServer({b"CLIENT": b"HTTP/1.1 400 Bad Request", b"PING": b"HTTP/1.1"}) as server:
        refusal(server.target, (RedisUnavailable, RedisUnfit))


def test_bad_input_is_never_a_traceback_of_redis_py():
    with pytest.raises(SettingError):
        open_checked(parse_redis_url("redis://host:many"))

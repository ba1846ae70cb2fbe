"""Clients from one description, sync and async; and the description of anybody's client."""

import contextlib
import socketserver
import threading
from collections.abc import Iterator
from dataclasses import replace
from ssl import CERT_NONE

import fakeredis
import pytest
import redis as redis_py
from redis.exceptions import AuthenticationError, ConnectionError, ResponseError, TimeoutError

import ground
from ground.redis.connect import connect_async, target_of
from ground.redis.connection import is_passing
from ground.redis.dial import _context, dial
from ground.redis.url import parse_redis_url
from ground.redis.wire import Wire


@contextlib.asynccontextmanager
async def opened_async(target, **options):
    client = connect_async(target, **options)
    try:
        yield client
    finally:
        await client.aclose()


@contextlib.contextmanager
def opened(target, **options):
    with contextlib.closing(ground.connect(target, **options)) as client:
        yield client


async def leads_to_the_same_place(client, write=None):
    """Whether clients made of a client's target, sync and async, see what it wrote."""
    if write is None:
        client.set("mark", "here")
    else:
        await write
    target = target_of(client)
    with opened(target) as again:
        assert again.get("mark") == b"here"
        assert target_of(again) == target
    async with opened_async(target) as again:
        assert await again.get("mark") == b"here"
        assert target_of(again) == target
    return True


# What target_of carries.


@pytest.mark.parametrize("db", [0, 3])
async def test_a_server_by_port(shared_server, real_redis, db):
    with opened(f"redis://127.0.0.1:{shared_server.port}/{db}") as client:
        assert await leads_to_the_same_place(client)
    assert (real_redis.get("mark") is None) == (db == 3)


@pytest.mark.parametrize("db", [0, 3])
async def test_a_server_by_socket(shared_server, real_redis, db):
    with opened(f"unix://{shared_server.socket}?db={db}") as client:
        assert await leads_to_the_same_place(client)


async def test_a_server_by_somebodys_own_clients(shared_server, real_redis):
    port = shared_server.port
    for client in (
        redis_py.Redis(port=port, decode_responses=True, protocol=3, client_name="mine"),
        redis_py.Redis.from_url(f"redis://localhost:{port}/2"),
        redis_py.Redis(connection_pool=redis_py.BlockingConnectionPool(port=port)),
    ):
        assert await leads_to_the_same_place(client)
        client.close()
        client.connection_pool.disconnect()  # which the client does only to a pool of its own
    async_client = redis_py.asyncio.Redis(port=port, db=4)
    assert await leads_to_the_same_place(async_client, async_client.set("mark", "here"))
    await async_client.aclose()


async def test_a_server_by_user_and_password(private_redis):
    server = private_redis(aof=False, config=["user alice on >w@nder/l#nd ~* &* +@all"])
    with opened(f"redis://alice:w%40nder%2Fl%23nd@127.0.0.1:{server.port}") as client:
        assert client.execute_command("ACL", "WHOAMI") == b"alice"
        assert await leads_to_the_same_place(client)


async def test_a_cluster(redis_cluster):
    with opened(redis_cluster.target) as client:
        client.set("mark", "here")
        target = target_of(client)
        # Either knows the nodes that are there, which may be more than it was told.
        assert set(target.nodes) == set(redis_cluster.target.nodes)
        assert target.kind == "cluster"
    async with opened_async(target) as client:
        assert await client.get("mark") == b"here"
        assert set(target_of(client).nodes) == set(target.nodes)


async def test_a_sentinels_service(sentinel_pair):
    with opened(f"{sentinel_pair.url}/2") as client:
        assert await leads_to_the_same_place(client)
        assert target_of(client) == parse_redis_url(f"{sentinel_pair.url}/2")


def test_sentinel_credentials_are_carried_apart():
    target = parse_redis_url(
        "redis+sentinel://me:data@one,two:7/main/1?sentinel_username=u&sentinel_password=p"
    )
    with opened(target) as client:
        assert target_of(client) == target


def test_tls_is_carried_for_every_kind_of_client():
    for url in (
        "rediss://host:1/2?ssl_cert_reqs=none",
        "rediss+sentinel://host:1/main?ssl_cert_reqs=none",
    ):
        with opened(url) as client:
            carried = target_of(client)
        assert carried.tls
        assert carried.options["ssl_cert_reqs"] == "none"
        assert carried.options["ssl_check_hostname"] is False


async def test_tls_is_carried_for_an_async_cluster():
    async with opened_async("rediss+cluster://host:1?ssl_cert_reqs=none") as client:
        carried = target_of(client)
    assert carried.tls
    assert carried.options["ssl_cert_reqs"] == "none"


@pytest.mark.parametrize(
    "make",
    [
        lambda: fakeredis.FakeRedis(),
        lambda: fakeredis.FakeRedis(db=3, decode_responses=True),
        lambda: fakeredis.FakeStrictRedis(server=fakeredis.FakeServer(), db=2),
        lambda: fakeredis.FakeRedis(server=fakeredis.FakeServer(version=(6, 2)), version=(6, 2)),
        lambda: fakeredis.FakeRedis.from_url("redis://somewhere:7/3"),
        lambda: fakeredis.FakeRedis(host="somewhere", port=9),
    ],
)
async def test_a_fake_however_it_was_made(make):
    client = make()
    assert await leads_to_the_same_place(client)
    client.close()


async def test_an_async_fake():
    client = fakeredis.FakeAsyncRedis()
    assert await leads_to_the_same_place(client, client.set("mark", "here"))
    await client.aclose()


async def test_two_fakes_are_two_places():
    first, second = fakeredis.FakeRedis(), fakeredis.FakeRedis()
    first.set("mark", "here")
    with opened(target_of(second)) as again:
        assert again.get("mark") is None
    first.close()
    second.close()


def test_a_target_from_a_client_never_shows_its_password():
    with opened("redis://me:hunter2@host") as client:
        target = target_of(client)
    assert target.options["password"] == "hunter2"
    assert "hunter2" not in f"{target} {target!r}"


# How the clients behave.


async def test_replies_are_bytes_in_the_same_shapes_sync_and_async(redis):
    redis.zadd("z", {"a": 1})
    redis.hset("h", "field", "value")
    redis.xadd("x", {"f": "v"}, id="1-0")

    def shapes(zset, hash_, stream):
        assert zset == [(b"a", 1.0)]
        assert hash_ == {b"field": b"value"}
        assert stream == [[b"x", [(b"1-0", {b"f": b"v"})]]]

    shapes(redis.zrange("z", 0, -1, withscores=True), redis.hgetall("h"), redis.xread({"x": "0"}))
    async with opened_async(target_of(redis)) as client:
        shapes(
            await client.zrange("z", 0, -1, withscores=True),
            await client.hgetall("h"),
            await client.xread({"x": "0"}),
        )


def test_a_command_whose_reply_was_lost_is_not_repeated(proxy, real_redis):
    with opened(proxy.target) as client:
        client.ping()
        proxy.lose_replies(1)
        with pytest.raises(ConnectionError):
            client.incr("n")
    assert real_redis.get("n") == b"1"


async def test_an_async_command_whose_reply_was_lost_is_not_repeated(proxy, real_redis):
    async with opened_async(proxy.target) as client:
        await client.ping()
        proxy.lose_replies(1)
        with pytest.raises(ConnectionError):
            await client.incr("n")
    assert real_redis.get("n") == b"1"


async def test_a_command_to_a_dead_cluster_node_is_not_repeated(redis_cluster):
    with opened(redis_cluster.target, timeout=2) as client:
        assert client.retry.get_retries() == 0
        node = redis_cluster.node_of("n")
        client.incr("n")
        node.kill()
        with pytest.raises(ConnectionError):
            client.incr("n")
    redis_cluster.heal()
    async with opened_async(redis_cluster.target, timeout=2) as client:
        assert client.retry.get_retries() == 0
        assert await client.incr("n") == 2


def test_a_server_that_does_not_answer_is_given_up_in_time(private_redis):
    server = private_redis(aof=False)
    with opened(server.target, timeout=0.2) as client:
        client.ping()
        server.freeze()
        with pytest.raises(TimeoutError):
            client.ping()


async def test_without_a_timeout_a_client_waits(redis):
    async with opened_async(target_of(redis), timeout=None) as client:
        redis.rpush("list", "value")
        assert await client.blpop(["list"], timeout=0) == (b"list", b"value")


async def test_a_client_follows_a_failover(sentinel_pair):
    with opened(sentinel_pair.target) as client:
        async with opened_async(sentinel_pair.target) as async_client:
            client.set("key", "kept")
            assert await async_client.get("key") == b"kept"
            sentinel_pair.replica.until_in_step(sentinel_pair.primary)
            sentinel_pair.kill_primary()
            with contextlib.suppress(ConnectionError):
                client.ping()  # over the connection it had
            with contextlib.suppress(ConnectionError):
                await async_client.ping()
            assert client.get("key") == b"kept"
            assert await async_client.get("key") == b"kept"


@contextlib.contextmanager
def one_that_hangs_up() -> Iterator[tuple[int, list[object]]]:
    """A port whose server closes every connection unread, and those whom it closed on."""
    callers: list[object] = []

    class HangsUp(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            callers.append(self.client_address)

    with socketserver.TCPServer(("127.0.0.1", 0), HangsUp) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1], callers
        server.shutdown()


async def test_a_dead_sentinel_is_tried_once_and_passed_over(sentinel_pair):
    with one_that_hangs_up() as (port, callers):
        url = sentinel_pair.url.replace("//", f"//127.0.0.1:{port},", 1)
        with opened(url) as client:
            assert client.ping()
        assert len(callers) == 1
        async with opened_async(url) as client:
            assert await client.ping()
        assert len(callers) == 2


@pytest.mark.parametrize(
    ("refusal", "passes"),
    [
        ("BUSY Redis is busy running a script. You can only call SCRIPT KILL", True),
        ("MISCONF Redis is configured to save RDB snapshots", True),
        ("NOPERM this user has no permissions", False),
    ],
)
def test_what_a_busy_redis_refuses_is_asked_again(refusal: str, passes: bool) -> None:
    assert is_passing(ResponseError(refusal)) is passes


def test_a_user_without_a_password_introduces_itself(private_redis):
    server = private_redis(aof=False)
    with opened(server.target) as client:
        client.acl_setuser("guest", enabled=True, nopass=True, categories=["+@all"], keys=["*"])
    url = server.url.replace("redis://", "redis://guest@")
    dial(parse_redis_url(url), 5.0, Wire).close()


def test_a_password_that_the_server_does_not_have_is_a_refusal_to_authenticate(private_redis):
    url = private_redis(aof=False).url.replace("redis://", "redis://:secret@")
    with pytest.raises(AuthenticationError, match="without any password configured"):
        dial(parse_redis_url(url), 5.0, Wire)


def test_a_server_that_hangs_up_says_why(private_redis):
    server = private_redis(aof=False)
    with opened(server.target) as client:
        client.config_set("maxclients", 1)
        with pytest.raises(ConnectionError, match="max number of clients reached"):
            dial(parse_redis_url(f"{server.url}?client_name=me"), 5.0, Wire)


@pytest.mark.parametrize("kind", [redis_py.Redis, redis_py.asyncio.Redis])
def test_a_client_that_checks_no_certificate_is_followed_in_that(kind):
    for client in (
        kind(ssl=True, ssl_cert_reqs=None),
        kind.from_url("rediss://host", ssl_cert_reqs=None),
    ):
        assert _context(target_of(client)).verify_mode == CERT_NONE
    assert target_of(kind()).options == {}


def test_certificates_may_be_left_unchecked_by_the_number_of_that():
    target = replace(parse_redis_url("rediss://127.0.0.1:1"), options={"ssl_cert_reqs": CERT_NONE})
    assert not _context(target).check_hostname

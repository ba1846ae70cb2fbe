"""The Redis a test runs on, and others it may break."""

import contextlib
import functools
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fakeredis
import pytest
from redis import utils as redis_utils

import ground
from ground.redis.url import RedisTarget
from limiter import engine as engines
from tests.harness.cluster import Cluster
from tests.harness.durations import (  # noqa: F401 - hooks
    pytest_runtest_logreport,
    pytest_runtest_makereport,
    pytest_runtest_protocol,
    pytest_terminal_summary,
)
from tests.harness.proxy import Proxy
from tests.harness.rewritten import pytest_xdist_setupnodes  # noqa: F401 - a hook
from tests.harness.selection import pytest_collection_modifyitems  # noqa: F401 - a hook
from tests.harness.sentinel import SentinelPair
from tests.harness.servers import PrivateRedis
from worker.queue import engine

with contextlib.suppress(ImportError):  # verl's environment has no hypothesis
    import hypothesis

    # The same examples each time; `make soak` draws others.
    hypothesis.settings.load_profile("ci")

gc.disable()  # until all tests are loaded

# redis-py looks up its own version for each client, in its installed files: most of what a client
# takes to make, and each test makes some.
redis_utils.get_lib_version = functools.cache(redis_utils.get_lib_version)

# What is compiled is kept, whatever the machine says: else each of the tests' hundreds of
# processes compiles our packages for itself.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# httpx loads all the authorities of the web for each client, which takes 20 to 40 ms of a
# processor. No test meets one of them, so one that nobody uses stands for them.
os.environ["SSL_CERT_FILE"] = str(Path(__file__).with_name("harness") / "authority.pem")
os.environ.pop("SSL_CERT_DIR", None)


def pytest_runtest_setup() -> None:
    """Tests, and what they start, obey Ctrl-C, and what we log is seen.

    A shell has what it begins in the background ignore it. A worker that ran in this process leaves
    RQ's handler, and the levels that it gave RQ's log and Penstock's.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for log in ("penstock", "rq.worker"):
        logging.getLogger(log).setLevel(logging.NOTSET)


def pytest_collection_finish() -> None:
    """What is loaded stays: to look it through for garbage, again and again, takes a fifth of
    the time of loading, and of many a test that collects garbage."""
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def engines_end(request: pytest.FixtureRequest) -> Iterator[None]:
    """Ends what a test left talking to Redis, while its Redis still answers: a heartbeat of an
    earlier test would make its gate anew on the server that the next one found empty."""
    if "redis" in request.fixturenames:
        request.getfixturevalue("redis")
    elif "real_redis" in request.fixturenames:
        request.getfixturevalue("real_redis")
    yield
    engine.stop_all()
    engines.stop_all()


@pytest.fixture(params=["fake", "real"])
def redis(request: pytest.FixtureRequest) -> Iterator[ground.Client]:
    """A client of an empty Redis; `target_of(redis)` opens more of the same Redis."""
    if request.param == "real":
        yield request.getfixturevalue("real_redis")
        return
    options = {"server": fakeredis.FakeServer()}
    client = ground.connect(RedisTarget("fake", (("fake", 0),), options=options))
    yield client
    client.close()


@pytest.fixture
def real_redis(shared_server: PrivateRedis) -> Iterator[ground.Client]:
    """A client of a real server, empty."""
    client: Any = ground.connect(shared_server.target)
    client.client_kill_filter(_type="normal", skipme=True)  # what an earlier test left blocked
    client.flushall()
    client.script_flush()
    yield client
    client.close()


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateRedis]:
    """The one real server of this test run (of this worker, under xdist). Not to be broken."""
    with PrivateRedis(tmp_path_factory.mktemp("shared"), aof=False) as server:
        yield server


@pytest.fixture
def private_redis(tmp_path: Path) -> Iterator[Callable[..., PrivateRedis]]:
    """Starts servers to break: `private_redis(aof=True, config=[…])`, a `PrivateRedis` each."""
    started: list[PrivateRedis] = []

    def start(**options: Any) -> PrivateRedis:
        server = PrivateRedis(tmp_path / f"redis-{len(started)}", **options)
        started.append(server)
        return server.start()

    yield start
    for server in started:
        server.kill()


@pytest.fixture
def proxy(shared_server: PrivateRedis, real_redis: ground.Client) -> Iterator[Proxy]:
    """A bad network to the real Redis of this test: `proxy.target`, `proxy.cut()`, …"""
    with Proxy(shared_server.target) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def _cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def redis_cluster(_cluster: Cluster) -> Cluster:
    """A Redis Cluster of three, whole and empty; it may be broken."""
    _cluster.heal()
    _cluster.flush()
    return _cluster


@pytest.fixture(scope="session")
def _sentinel_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SentinelPair]:
    with SentinelPair(tmp_path_factory.mktemp("sentinel")) as pair:
        yield pair


@pytest.fixture
def sentinel_pair(_sentinel_pair: SentinelPair) -> SentinelPair:
    """A primary and its replica under Sentinel, in step and empty; they may be broken."""
    _sentinel_pair.heal()
    _sentinel_pair.flush()
    return _sentinel_pair

"""Gates in tests: each test has its own."""

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import fakeredis
import pytest

import ground
from ground.redis import engine, shortcut
from ground.redis.url import RedisTarget
from limiter import TokenBucket
from tests.harness.servers import until

LONG = 60.0  # a lease whose end no test waits for

_numbers = itertools.count()


@pytest.fixture
def name() -> str:
    """Of a gate that no earlier test has left anything at."""
    return f"gate-{next(_numbers)}"


@pytest.fixture(params=["fake", "real", "a cluster"])
def anywhere(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A client of an empty Redis, or of the node of an empty Cluster that keeps the gate `g`."""
    if request.param == "fake":
        options = {"server": fakeredis.FakeServer()}
        client = ground.connect(RedisTarget("fake", (("fake", 0),), options=options))
    elif request.param == "real":
        yield request.getfixturevalue("real_redis")
        return
    else:
        cluster = request.getfixturevalue("redis_cluster")
        client = ground.connect(cluster.node_of("penstock:gate:{g}").target)
    yield client
    client.close()


@pytest.fixture
def gate_at(name: str) -> Callable[..., TokenBucket]:
    """The test's gate, at a server."""

    def gate(target: Any, limit: int = 1, lease: float = LONG, **more: Any) -> TokenBucket:
        return TokenBucket(target, name, limit=limit, lease=lease, **more)

    return gate


@pytest.fixture(scope="module")
def no_engine_is_left_running_hot() -> Iterator[None]:
    """Whatever happened: an engine with nothing to do does nothing."""
    yield
    until(_idle, "the engines to come to rest", within=100)


def _idle() -> bool:
    before, began = time.process_time(), time.monotonic()
    time.sleep(0.2)  # what its processor time is measured over
    return time.process_time() - before < 0.7 * (time.monotonic() - began)


@pytest.fixture(autouse=True)
def shortcuts_open_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that every test on a real server takes them, and not only the long ones."""
    monkeypatch.setattr(shortcut, "WORTH_IT", 1)


@pytest.fixture
def exchanges(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The size of each exchange of an engine with Redis."""
    sizes: list[int] = []
    converse = engine.Engine.converse

    def counted(self: engine.Engine, commands: list[Any]) -> list[Any]:
        sizes.append(len(commands))
        return converse(self, commands)

    monkeypatch.setattr(engine.Engine, "converse", counted)
    return sizes

from collections.abc import Iterator

import pytest

import ground
from tests.harness.lua_faults import Faulty
from tests.harness.servers import PrivateRedis


@pytest.fixture(scope="session")
def _faulty() -> Faulty:
    """With every script: each of them is compiled by the server once, not for each test."""
    packages = ("limiter", "worker.concurrent", "worker.queue", "worker.lifecycle")
    return Faulty(None, "buffer", "gateway", *packages, "worker.e2b")


@pytest.fixture
def faulty(_faulty: Faulty, shared_server: PrivateRedis) -> Iterator[Faulty]:
    """An empty Redis that stops scripts at the call that a test names."""
    client = ground.connect(shared_server.target)
    _faulty.client = client
    _faulty.injected.clear()
    _faulty.begin()
    yield _faulty
    client.close()

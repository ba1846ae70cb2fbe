"""A Redis and a monitor for all fleets of a module; each begins with an empty one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import ground
from tests.fleets.surfaces import Fleet
from tests.harness.servers import PrivateRedis
from tests.penstock.serving import monitor


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[PrivateRedis, str]]:
    with (
        PrivateRedis(tmp_path_factory.mktemp("fleets"), aof=False) as server,
        monitor(server.url) as page,
    ):
        yield server, page


@pytest.fixture
def fleet(place: tuple[PrivateRedis, str], tmp_path: Path) -> Iterator[Fleet]:
    server, page = place
    client = ground.connect(server.target)
    client.flushall()
    client.close()
    with Fleet(server.url, page, boxes=tmp_path / "boxes") as made:
        yield made

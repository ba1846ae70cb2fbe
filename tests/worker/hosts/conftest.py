"""What hosts' tests share: the embedded sandbox of this process, ended with each file; and session
sandboxes of one test."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

import ground
from ground import process
from tests.harness.servers import PrivateRedis
from tests.worker.hosts.boxes import Boxes
from worker.hosts.process_lifecycle import lifecycle_here
from worker.run.choice import close_sandboxes_here
from worker.settings import worker_settings


@pytest.fixture(autouse=True)
def no_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless a test names one, programs run in the embedded sandbox."""
    monkeypatch.delenv("PENSTOCK_REDIS_URL", raising=False)


@pytest.fixture(autouse=True, scope="module")
def sandbox_ends() -> Iterator[None]:
    yield
    process.stop(close_sandboxes_here)


@pytest.fixture
def one_attempt(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A sandbox that fails is not asked again."""
    monkeypatch.setenv("PENSTOCK_SANDBOX_ATTEMPTS", "1")
    worker_settings.cache_clear()
    yield
    worker_settings.cache_clear()


@pytest_asyncio.fixture
async def boxes(
    no_redis: None,
    real_redis: ground.Client,
    shared_server: PrivateRedis,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Boxes]:
    """Adapters open local session sandboxes, in a folder and on a Redis of this test."""
    settings = {
        "PENSTOCK_REDIS_URL": shared_server.url,
        "PENSTOCK_LOCAL_SANDBOXES": str(tmp_path / "boxes"),
        "PENSTOCK_SESSION_HUB_IDLE": "2",
        "PENSTOCK_SANDBOX_LEASE": "3600",  # it ends where a test says so: see `Boxes.leases_end`
        "INSPECT_LOG_DIR": str(tmp_path),
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    lifecycle_here.cache_clear()
    opened = Boxes(shared_server.url)
    yield opened
    await opened.kill()

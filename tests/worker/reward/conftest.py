"""Sandboxes that answer by script, asked as often as a test says."""

from collections.abc import Callable, Iterator

import pytest

from ground import process
from tests.worker.scripted_fusion import ScriptedFusion
from worker.run.choice import close_sandboxes_here
from worker.settings import worker_settings


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """How often a program is tried where the sandbox fails."""

    def allow(number: int) -> None:
        monkeypatch.setenv("PENSTOCK_SANDBOX_ATTEMPTS", str(number))
        worker_settings.cache_clear()

    return allow


@pytest.fixture(autouse=True)
def one_attempt(attempts: Callable[[int], None]) -> Iterator[None]:
    attempts(1)
    yield
    process.stop(close_sandboxes_here)
    worker_settings.cache_clear()


@pytest.fixture
def fusion(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedFusion]:
    with ScriptedFusion() as fusion:
        monkeypatch.setenv("PENSTOCK_SANDBOX_FUSION_URL", fusion.url)
        yield fusion

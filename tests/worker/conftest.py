"""What several modules here stand on."""

import pytest

from tests.worker.scripted_answers import Answer
from tests.worker.scripted_fusion import ScriptedFusion
from worker.settings import worker_settings


@pytest.fixture
def fusion(monkeypatch):
    with ScriptedFusion(default=Answer.ok("42\n")) as fusion:
        monkeypatch.setenv("PENSTOCK_SANDBOX_FUSION_URL", fusion.url)
        worker_settings.cache_clear()  # a job may run in this very process
        yield fusion
        worker_settings.cache_clear()

"""A tool, a worker and a scripted sandbox, on one real Redis."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.harness.servers import until, url_of
from tests.worker.concurrent.crew import at_work
from tests.worker.scripted_answers import Answer
from tests.worker.scripted_fusion import ScriptedFusion
from worker.settings import worker_settings
from worker.tool import SandboxFusionTool

TRACEBACK = "Traceback (most recent call last):\nZeroDivisionError: division by zero\n"
PROGRAMS = {
    "print(1 + 2)": Answer.ok("3\n"),
    "print(149)": Answer.ok("149\n"),
    "1/0": Answer.exit(1, TRACEBACK),
    "while True: pass": Answer.late("begun\n"),
    "exit(3)": Answer.exit(3),
    "no sandbox": Answer.refusal(400),
}


@pytest.fixture
def url(real_redis: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of the Redis that `PENSTOCK_REDIS_URL` names."""
    url = url_of(real_redis)
    monkeypatch.setenv("PENSTOCK_REDIS_URL", url)
    return url


@pytest.fixture
def fusion(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedFusion]:
    with ScriptedFusion(programs=PROGRAMS) as fusion:
        monkeypatch.setenv("PENSTOCK_SANDBOX_FUSION_URL", fusion.url)
        monkeypatch.setenv("PENSTOCK_SANDBOX_ATTEMPTS", "1")
        worker_settings.cache_clear()
        yield fusion
    worker_settings.cache_clear()


@pytest.fixture
def working(url: str, fusion: ScriptedFusion, real_redis: Any) -> Iterator[ScriptedFusion]:
    """A worker under the gate `code`, whose sandbox is the scripted one."""
    with at_work(real_redis, gate="code", gate_limit=10):
        # Whoever comes first makes the gate; a tool may have another limit.
        until(lambda: real_redis.hget("penstock:gate:{code}", "limit") == b"10", "its gate")
        yield fusion


@pytest.fixture
def call(working: ScriptedFusion) -> Callable[..., Any]:
    """One call as a model makes it: `(text, metrics)`."""

    async def call(arguments: Any, **config: Any) -> tuple[str, dict[str, Any]]:
        tool = SandboxFusionTool(config)
        instance, _ = await tool.create()
        response, reward, metrics = await tool.execute(instance, arguments)
        await tool.release(instance)
        assert reward is None
        return response.text, metrics

    return call

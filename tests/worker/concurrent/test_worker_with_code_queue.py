"""A trainer's calls through `CodeQueue`, run by concurrent workers."""

import asyncio
from typing import Any

import pytest

from tests.harness import killing
from tests.harness.servers import until, url_of
from tests.worker.concurrent.crew import HEIR, LEASE, TIMES, nothing_left, work_in_process
from tests.worker.scripted_answers import Answer
from tests.worker.scripted_fusion import ScriptedFusion
from worker import CodeQueue, CodeRequest

SETTINGS: dict[str, Any] = {
    "job_lease": 1.0, "gate": "code", "gate_limit": 8,
    "sandbox": "tests.worker.concurrent.crew.brisk_fusion",
}  # fmt: skip


async def test_every_call_has_its_result_though_a_worker_is_killed(real_redis, monkeypatch) -> None:
    url = url_of(real_redis)
    with ScriptedFusion(default=Answer.ok("ok\n", seconds=0.02)) as fusion:
        monkeypatch.setenv("PENSTOCK_SANDBOX_FUSION_URL", fusion.url)
        at = killing.before("worker.concurrent.finish:Finisher._record", hit=3)
        with (
            killing.Child(work_in_process, url, ["code"], SETTINGS, at=at),
            killing.Child(work_in_process, url, ["code"], SETTINGS),
        ):
            queue = CodeQueue(real_redis, "code")
            requests = [CodeRequest(code=f"print({n})", **TIMES) for n in range(200)]
            results = await queue.run_many(requests)
            assert [result.error_kind for result in results] == ["none"] * 200
            until(lambda: nothing_left(real_redis) == {}, "everything to be put away")
        assert fusion.peak <= 8
        assert 200 <= sum(fusion.codes.values()) <= 208


RUN = "worker.sandbox.fusion:SandboxFusion.run"


@pytest.mark.parametrize(
    ("phase", "executions"),
    [(killing.before(RUN), 1), (killing.after(RUN), 2)],
    ids=str,
)
async def test_a_caller_whose_worker_is_killed_has_one_result(
    real_redis, monkeypatch, phase, executions
) -> None:
    url, settings = url_of(real_redis), {"job_lease": LEASE}
    with ScriptedFusion(default=Answer.ok("ok\n")) as fusion:
        monkeypatch.setenv("PENSTOCK_SANDBOX_FUSION_URL", fusion.url)
        handle = await CodeQueue(real_redis, "code").submit("print('ok')", timeout=100)
        with killing.Child(work_in_process, url, ["code"], settings, at=phase) as doomed:
            assert (await asyncio.to_thread(doomed.outcome)).killed
        with killing.Child(work_in_process, url, ["code"], HEIR):
            result = await handle.result()
            await asyncio.to_thread(
                until, lambda: nothing_left(real_redis) == {}, "everything to be put away"
            )
        assert fusion.executions == {handle.id: executions}
    assert (result.stdout, result.error_kind) == ("ok\n", "none")
    assert real_redis.xlen(f"rq:results:{handle.id}") == 1

"""A trainer's calls through `CodeQueue`, run by concurrent workers."""

from typing import Any

from tests.harness import killing
from tests.harness.servers import until
from tests.worker.crew import nothing_left, work_in_process
from tests.worker.scripted_answers import Answer
from tests.worker.scripted_fusion import ScriptedFusion
from tests.worker.test_worker_delivery import url_of
from worker import CodeQueue, CodeRequest

SETTINGS: dict[str, Any] = {"job_lease": 1.0, "gate": "code", "gate_limit": 8}


async def test_every_call_has_its_result_though_a_worker_is_killed(real_redis, monkeypatch) -> None:
    url = url_of(real_redis)
    with ScriptedFusion(default=Answer.ok("ok\n", seconds=0.02)) as fusion:
        monkeypatch.setenv("PENSTOCK_SANDBOX_FUSION_URL", fusion.url)
        at = killing.before("worker.finishing:Finisher._record", hit=3)
        with (
            killing.Child(work_in_process, url, ["code"], SETTINGS, at=at),
            killing.Child(work_in_process, url, ["code"], SETTINGS),
        ):
            queue = CodeQueue(real_redis, "code")
            requests = [CodeRequest(code=f"print({n})") for n in range(200)]
            results = await queue.run_many(requests)
            assert [result.error_kind for result in results] == ["none"] * 200
            until(lambda: nothing_left(real_redis) == {}, "everything to be put away")
        assert fusion.peak <= 8
        assert 200 <= sum(fusion.codes.values()) <= 208

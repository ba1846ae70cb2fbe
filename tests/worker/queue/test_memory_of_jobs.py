"""What a job costs the server is what docs/guide/queue.md says."""

from typing import Any

from docs.tools.quoted import job_bytes
from tests.harness.servers import until
from tests.worker.concurrent.crew import at_work
from tests.worker.scripted_answers import Answer
from tests.worker.scripted_fusion import ScriptedFusion
from worker import CodeQueue

JOBS = 20
PROGRAM = "x" * 1000


def bytes_a_job(client: Any) -> float:
    """Of keys that are a job's own; servers differ in what they count."""
    keys = list(client.scan_iter("rq:job:*")) + list(client.scan_iter("rq:results:*"))
    return sum(int(client.memory_usage(key, samples=0)) for key in keys) / JOBS


async def test_a_job_costs_what_the_docs_say(real_redis) -> None:
    queue = CodeQueue(real_redis, "code", abandon="keep")
    handles = [await queue.submit(PROGRAM) for _ in range(JOBS)]
    queued = bytes_a_job(real_redis)
    with (
        ScriptedFusion(default=Answer.ok("ok\n")) as fusion,
        at_work(real_redis, sandbox_fusion_url=fusion.url),
    ):
        until(lambda: real_redis.zcard("rq:finished:code") == JOBS, "all jobs")
    waits, ended = job_bytes()
    assert 500 < queued < 2 * waits
    assert queued < bytes_a_job(real_redis) < 2 * ended
    assert all([(await handle.result()).ok for handle in handles])

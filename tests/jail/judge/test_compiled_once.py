"""One compile serves all cases of a program, whatever happens to its job meanwhile."""

import asyncio
from pathlib import Path

import pytest

from jail.judge import JudgeCase
from jail.judge.lane import Lane, LaneLost
from jail.judge.models import JudgeRequest, JudgeResult
from jail.judge.suite import Case, InlineSuite
from jail.outcome import Outcome
from tests.harness import killing
from tests.worker.concurrent.crew import HEIR, at_work, work_in_process
from tests.worker.judging.counting_compiler import BUILT, FOLDER, CountingSandbox, install
from worker import CodeQueue, RetryPolicy
from worker.judging.job import judge
from worker.run.turn import JobAtHand

FIFTY = [JudgeCase(input=str(n)) for n in range(50)]
HOW = {"language": "c", "compile_timeout": 60.0, "wall_timeout": 60.0, "keep": "all"}
SANDBOX = "tests.worker.judging.counting_compiler.CountingSandbox"


@pytest.fixture(autouse=True)
def counting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    install(tmp_path)


def builds_in(*results: JudgeResult) -> int:
    return len({kept.stdout for result in results for kept in result.kept.values()})


async def test_an_attempt_after_a_failure_of_the_sandbox_uses_what_is_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lost = 0
    run = Lane.run

    async def at_first_lost(lane: Lane, errand: object) -> object:
        nonlocal lost
        lost += 1
        if lost <= 4:  # two attempts, of two tries each
            raise LaneLost(Outcome("infrastructure", "ns", error="a fuse"))
        return await run(lane, errand)  # type: ignore[arg-type]

    monkeypatch.setattr(Lane, "run", at_first_lost)
    sandbox = CountingSandbox()
    request = JudgeRequest.read({"code": BUILT, "cases": FIFTY, **HOW})
    policy = RetryPolicy(attempts=3, first=0.001)
    try:
        suite = InlineSuite([Case()] * 50)
        result = await judge(request, suite, JobAtHand(), sandbox, policy)
        assert (result.verdicts, result.attempts) == ("P" * 50, 3)
        assert (builds_in(result), sandbox._judging.builds.compiled) == (1, 1)
    finally:
        await sandbox.close()


async def test_eight_jobs_at_once_wait_for_one_compiler(redis) -> None:
    queue = CodeQueue(redis)
    with at_work(redis, sandbox=SANDBOX, concurrency=8):
        asked = [queue.judge(BUILT, FIFTY[:3], **HOW, timeout=100) for _ in range(8)]
        results = await asyncio.gather(*asked)

    assert {result.verdicts for result in results} == {"PPP"}
    assert builds_in(*results) == 1


async def test_a_worker_that_takes_over_compiles_once_for_all_cases(real_redis) -> None:
    """Its own build: what another process made, it does not trust."""
    url = real_redis.connection_pool.connection_kwargs
    address = f"redis://{url['host']}:{url['port']}/{url.get('db', 0)}"
    queue = CodeQueue(real_redis)
    judged = asyncio.create_task(queue.judge(BUILT, FIFTY, **HOW, timeout=200))
    doomed = killing.before("jail.judge.suite:InlineSuite.case", hit=17)
    settings = HEIR | {"sandbox": SANDBOX}  # a sandbox takes its time to start on a busy machine
    with killing.Child(work_in_process, address, ["code"], settings, at=doomed) as child:
        assert (await asyncio.to_thread(child.outcome)).killed
    assert not judged.done()
    with killing.Child(work_in_process, address, ["code"], {"sandbox": SANDBOX}):
        result = await judged

    assert result.verdicts == "P" * 50
    assert builds_in(result) == 1

"""Cases side by side in a sandbox that only runs programs: under which permits, and the result."""

import asyncio
import math
import random
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from jail.errors import SandboxBroken
from jail.judge.models import JudgeRequest, JudgeResult
from jail.judge.suite import InlineSuite
from jail.models import CodeRequest, CodeResult, CommandResult
from limiter import TokenBucket
from tests.harness import killing
from tests.harness.servers import until, url_of
from tests.worker.concurrent.crew import HEIR, LEASE, at_work, work_in_process
from tests.worker.scripted_answers import Answer
from tests.worker.scripted_fusion import ScriptedFusion
from worker import CodeQueue, RetryPolicy, SandboxFusion
from worker.judging.job import judge
from worker.run.turn import GateTurn, JobAtHand, Room, Unlimited
from worker.settings import WorkerSettings

QUICK = RetryPolicy(attempts=3, first=0.001)
HELD = Answer.ok("42\n", seconds=math.inf)
LONG = {"compile_timeout": 30, "run_timeout": 30}


def asked(count: int, **given: Any) -> JudgeRequest:
    cases = [{"input": str(n), "expected": "42"} for n in range(count)]
    return JudgeRequest.read({"code": "…", "language": "cpp", "cases": cases} | LONG | given)


async def judged(sandbox: Any, at_hand: JobAtHand, count: int, **given: Any) -> JudgeResult:
    request = asked(count, **given)
    return await judge(request, InlineSuite.of(request.cases or []), at_hand, sandbox, QUICK)


@pytest.fixture
async def sandbox(fusion: ScriptedFusion):
    sandbox = SandboxFusion(fusion.url)
    yield sandbox
    await sandbox.close()


async def seen(fusion: ScriptedFusion, said: Callable[[], bool]) -> None:
    await asyncio.to_thread(fusion.wait_until, said)


async def waiting(gate: TokenBucket, count: int) -> None:
    while (await gate.status()).waiting != count:  # noqa: ASYNC110 - a gate tells nobody
        await asyncio.sleep(0.001)


async def test_as_many_cases_run_at_once_as_there_are_permits(redis, fusion, sandbox) -> None:
    gate = TokenBucket(redis, "code", limit=3)
    fusion.default = HELD
    job = asyncio.create_task(judged(sandbox, JobAtHand(GateTurn(gate)), 8))
    for at_once, begun in (1, 1), (3, 4), (3, 7), (1, 8):  # the first one runs alone
        await seen(fusion, lambda a=at_once, b=begun: (fusion.in_flight, fusion.requests) == (a, b))
        assert (await gate.status()).in_flight == (at_once if begun < 8 else 1)
        fusion.finish_held()

    assert (await job).verdicts == "P" * 8
    assert fusion.peak == 3
    status = await gate.status()
    assert (status.in_flight, status.waiting) == (0, 0)


@pytest.mark.parametrize("limit", [1, 3])
async def test_many_jobs_at_once_neither_wait_for_each_other_nor_exceed_the_gate(
    redis, fusion, sandbox, limit: int
) -> None:
    gate = TokenBucket(redis, "code", limit=limit)
    fusion.default = Answer.ok("42\n", seconds=0.001)
    jobs = [judged(sandbox, JobAtHand(GateTurn(gate)), 6) for _ in range(8)]

    assert {result.verdicts for result in await asyncio.gather(*jobs)} == {"P" * 6}
    assert fusion.peak == limit
    status = await gate.status()
    assert (status.in_flight, status.waiting) == (0, 0)


async def test_a_job_that_waits_for_its_first_permit_goes_before_further_cases(
    redis, fusion, sandbox
) -> None:
    gate = TokenBucket(redis, "code", limit=2)
    fusion.script.append(Answer.ok("42\n"))
    fusion.default = HELD
    job = asyncio.create_task(judged(sandbox, JobAtHand(GateTurn(gate)), 30))
    await seen(fusion, lambda: fusion.in_flight == 2)
    await waiting(gate, 1)  # the job, for a third permit
    other = asyncio.create_task(gate.acquire())
    await waiting(gate, 2)

    fusion.finish_held()

    permit = await other
    await seen(fusion, lambda: fusion.in_flight == 1)  # under the job's own permit
    permit.release()
    await seen(fusion, lambda: fusion.in_flight == 2)
    fusion.default = Answer.ok("42\n")
    fusion.finish_held()
    assert (await job).verdicts == "P" * 30


async def test_a_stop_ends_the_others_at_once_and_their_programs_keep_their_permits(
    redis, fusion, sandbox
) -> None:
    gate = TokenBucket(redis, "code", limit=4)
    fusion.script.extend([Answer.ok("42\n"), Answer.ok("41\n", seconds=2.0)])  # five have begun
    fusion.default = HELD

    result = await judged(sandbox, JobAtHand(GateTurn(gate)), 40, stop="first")

    assert result.verdicts == "PW" + "S" * 38
    assert fusion.requests == 5
    assert fusion.in_flight == 3, "a server does not notice that nobody waits"
    assert (await gate.status()).in_flight == 3


async def test_a_failure_waits_for_the_cases_before_it(redis, fusion, sandbox) -> None:
    gate = TokenBucket(redis, "code", limit=3)
    wrong = Answer.ok("41\n", seconds=math.inf)
    fusion.script.extend([Answer.ok("42\n"), wrong, HELD, Answer.ok("41\n")])
    fusion.default = HELD
    job = asyncio.create_task(judged(sandbox, JobAtHand(GateTurn(gate)), 40, stop="first"))
    await seen(fusion, lambda: fusion.finished == 2)  # case 3 is wrong, case 1 and 2 run
    fusion.finish_held()

    assert (await job).verdicts == "PW" + "S" * 38
    assert fusion.requests == 4


class Drawn:
    """A sandbox in which each input has an end and a time of its own, and which fails at times."""

    name = "drawn"
    languages = frozenset({"cpp"})
    kills_cancelled = True

    def __init__(self, draw: random.Random, ends: str, fails: float) -> None:
        self._draw, self._ends, self._fails = draw, ends, fails
        self.at_once = self.peak = 0

    async def run(self, request: CodeRequest) -> CodeResult:
        self.at_once += 1
        self.peak = max(self.peak, self.at_once)
        try:
            await asyncio.sleep(
                self._draw.choice([0.0, 0.001, 0.003])
            )  # so that they end in any order
        finally:
            self.at_once -= 1
        if self._draw.random() < self._fails:
            raise SandboxBroken("it fell over", reason="fell")
        end = self._ends[int(request.stdin or 0)]
        ran = CommandResult(
            status="TimeLimitExceeded" if end == "T" else "Finished",
            return_code={"E": 1, "T": None}.get(end, 0),
            stdout="42" if end == "P" else "41",
        )
        return CodeResult(status="Success" if end in "PW" else "Failed", run_result=ran)

    async def close(self) -> None: ...


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("stop", ["none", "first", 2])
async def test_the_result_is_as_if_the_cases_had_run_one_by_one(stop, seed: int) -> None:
    draw = random.Random(f"{stop}{seed}")
    ends = "".join(draw.choices("PWET", [9, 1, 1, 1], k=20))
    given = {"stop": stop, "keep": "failures"}
    one_by_one = await judged(Drawn(draw, ends, 0.0), JobAtHand(), 20, **given)
    for at_once in 2, 8:
        sandbox = Drawn(draw, ends, 0.1)
        room = JobAtHand(Unlimited(Room(at_once, ["the job"])))
        result = await judge(
            asked(20, **given), InlineSuite.of(asked(20).cases or []), room, sandbox,
            RetryPolicy(attempts=50, first=0.001, longest=0.002),
        )  # fmt: skip
        for name in "verdicts", "reasons", "exits", "kept":
            assert getattr(result, name) == getattr(one_by_one, name)
        assert sandbox.peak <= at_once
        assert sandbox.peak > 1 or stop == "first"
        assert sandbox.at_once == 0


CASES = {"inputs": [*"abcdefghijkl"], "outputs": ["42"] * 12}


@contextmanager
def judging(redis: Any, **given: Any) -> Iterator[Future[JudgeResult]]:
    with ThreadPoolExecutor(1) as threads:
        queue = CodeQueue(redis, "code")
        yield threads.submit(queue.sync.judge, "…", CASES, language="cpp", **given)


def test_without_a_gate_cases_take_the_room_that_jobs_leave(redis, fusion) -> None:
    fusion.script.append(Answer.ok("42\n"))
    fusion.default = HELD
    with at_work(redis, concurrency=4), judging(redis) as job:
        fusion.wait_until(lambda: fusion.in_flight == 4)
        other = CodeQueue(redis, "code").sync.submit(CodeRequest(code="another job", **LONG))
        fusion.wait_until(lambda: fusion.codes["another job"] == 1)  # jobs come first
        fusion.finish_held()
        fusion.wait_until(lambda: fusion.in_flight == 4)
        fusion.default = Answer.ok("42\n")
        fusion.finish_held()
        assert (job.result().verdicts, other.result().stdout) == ("P" * 12, "42\n")
    assert fusion.peak == 5


def patient_fusion(settings: WorkerSettings) -> SandboxFusion:
    return SandboxFusion(settings.fusion_urls, margin=3.0)


def test_a_killed_workers_permits_stay_while_its_cases_may_run_and_then_come_back(
    real_redis, fusion, monkeypatch
) -> None:
    fusion.script.append(Answer.ok("42\n"))
    fusion.default = Answer.ok("42\n", seconds=2.0)
    here = "tests.worker.judging.test_by_runs_at_once.patient_fusion"
    settings: dict[str, Any] = {"sandbox": here, "gate": "code", "gate_limit": 3}
    times = {"run_timeout": 1.5, "compile_timeout": 0.5}
    gate = TokenBucket(real_redis, "code", limit=3)
    with judging(real_redis, timeout=100, **times) as job:
        with killing.Child(
            work_in_process, url_of(real_redis), ["code"], settings | {"job_lease": LEASE}
        ) as it:
            fusion.wait_until(lambda: fusion.in_flight == 3)
            it.kill()
        fusion.default = Answer.ok("42\n")
        with at_work(real_redis, **settings | HEIR):
            assert job.result().verdicts == "P" * 12
        assert fusion.peak == 3
    until(lambda: gate.sync.status().in_flight == 0, "the permits")

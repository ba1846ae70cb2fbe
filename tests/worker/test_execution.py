"""One request through its attempts, and what its permit does meanwhile."""

import asyncio
import math

import pytest

from jail.errors import SandboxUnreachable
from jail.models import CommandResult
from limiter import TokenBucket
from tests.worker.scripted_answers import Answer
from tests.worker.scripted_fusion import ScriptedFusion
from worker import CodeRequest, CodeResult, RetryPolicy, SandboxFusion
from worker.run.execution import execute
from worker.run.turn import GateTurn, JobAtHand

QUICK = RetryPolicy(attempts=3, first=0.001)


@pytest.fixture
def gate(redis) -> TokenBucket:
    return TokenBucket(redis, "code", limit=1)


@pytest.fixture
async def fusion():
    with ScriptedFusion() as fusion:
        yield fusion


@pytest.fixture
async def sandbox(fusion):
    sandbox = SandboxFusion(fusion.url, margin=0.2)
    yield sandbox
    await sandbox.close()


def under(gate: TokenBucket, seconds: float = math.inf) -> JobAtHand:
    return JobAtHand(GateTurn(gate), seconds=seconds)


async def test_no_permit_is_held_while_backing_off(gate, fusion, sandbox):
    fusion.script.extend([Answer.busy(retry_after=30), Answer.ok("second")])
    first = asyncio.create_task(
        execute(CodeRequest(code="first"), under(gate), sandbox, RetryPolicy(longest=60))
    )
    await asyncio.to_thread(fusion.wait_until, lambda: fusion.requests == 1)
    second = await execute(CodeRequest(code="second"), under(gate), sandbox, QUICK)
    assert second.stdout == "second"
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert (await gate.status()).in_flight == 0


async def test_a_retry_keeps_its_place_in_line(gate, fusion, sandbox):
    fusion.script.append(Answer.refusal(429, retry_after=0, seconds=math.inf))
    fusion.programs["blocker"] = Answer.ok(seconds=math.inf)

    async def job(code: str) -> None:
        await execute(CodeRequest(code=code), under(gate), sandbox, QUICK)

    early = asyncio.create_task(job("early"))
    await asyncio.to_thread(fusion.wait_until, lambda: fusion.requests == 1)
    blocker = asyncio.create_task(job("blocker"))
    while not (await gate.status()).waiting:  # noqa: ASYNC110 - a gate tells nobody
        await asyncio.sleep(0.001)
    fusion.finish_held()  # early is told to come again; the blocker has the permit meanwhile
    await asyncio.to_thread(fusion.wait_until, lambda: "blocker" in fusion.codes)
    late = [asyncio.create_task(job(f"late {n}")) for n in range(3)]
    while (await gate.status()).waiting < 4:  # noqa: ASYNC110 - a gate tells nobody
        await asyncio.sleep(0.001)
    fusion.finish_held()
    await asyncio.gather(early, blocker, *late)
    assert [body["code"] for body in fusion.bodies][:3] == ["early", "blocker", "early"]


async def test_a_program_that_may_still_run_keeps_its_permit(gate, fusion, sandbox):
    fusion.script.extend([Answer.cut()])
    request = CodeRequest(code="cut", compile_timeout=30, run_timeout=30)
    result = await execute(request, under(gate), sandbox, RetryPolicy(attempts=1))
    assert (result.error_kind, result.error_reason) == ("infrastructure", "cut")
    assert (await gate.status()).in_flight == 1


async def test_that_permit_comes_back_when_the_programs_time_is_over(gate, fusion, sandbox):
    fusion.script.extend([Answer.cut()])
    request = CodeRequest(code="cut", compile_timeout=0.05, run_timeout=0.05)
    await execute(request, under(gate), sandbox, RetryPolicy(attempts=1))
    permit = await gate.acquire(timeout=100)
    permit.release()


async def test_a_sandbox_that_died_keeps_no_permit(gate, fusion, sandbox):
    fusion.programs["cut"] = Answer.ok(seconds=math.inf)
    request = CodeRequest(code="cut", compile_timeout=30, run_timeout=30)
    job = asyncio.create_task(
        execute(request, under(gate), sandbox, RetryPolicy(attempts=50, longest=0.5))
    )
    await asyncio.to_thread(fusion.wait_until, lambda: fusion.requests == 1)
    fusion.stop_listening()
    permit = await gate.acquire(timeout=100)
    permit.release()
    fusion.programs["cut"] = Answer.ok("again")
    fusion.listen_again()
    assert (await job).stdout == "again"


class Careless:
    """A sandbox that only stops waiting for a cancelled program."""

    name, languages = "careless", frozenset({"python"})

    def __init__(self) -> None:
        self.begun = asyncio.Event()

    async def run(self, request: CodeRequest) -> CodeResult:
        self.begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def close(self) -> None: ...


class Jail(Careless):
    """A sandbox that kills a cancelled program."""

    name, kills_cancelled = "jail", True


async def cancelled_in(sandbox, gate):
    """A program of long limits, as soon as it has begun there."""
    request = CodeRequest(code="1", compile_timeout=100, run_timeout=100)
    running = asyncio.create_task(execute(request, under(gate), sandbox, QUICK))
    await sandbox.begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_cancelled_program_that_may_go_on_keeps_its_permit(gate, monkeypatch):
    monkeypatch.setattr("worker.run.execution.KILLED_WITHIN", 0.0)
    await cancelled_in(Careless(), gate)
    assert (await gate.status()).in_flight == 1


async def test_a_cancelled_program_that_dies_with_us_keeps_its_permit_for_a_moment(
    gate, monkeypatch
):
    monkeypatch.setattr("worker.run.execution.KILLED_WITHIN", 0.05)
    await cancelled_in(Jail(), gate)
    await (await gate.acquire(timeout=100)).give_back()


async def test_a_cancelled_execution_frees_its_place_in_line(gate, fusion, sandbox):
    held = await gate.acquire()
    waiting = asyncio.create_task(
        execute(CodeRequest(code="1"), under(gate), sandbox, QUICK),
    )
    while not (await gate.status()).waiting:  # noqa: ASYNC110 - a gate tells nobody
        await asyncio.sleep(0.001)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    held.release()
    await (await gate.acquire(timeout=100)).give_back()
    assert (await gate.status()).waiting == fusion.requests == 0


async def test_the_last_failure_is_reported_when_the_jobs_time_is_over(fusion, sandbox):
    fusion.default = Answer.busy(retry_after=29)
    result = await execute(CodeRequest(code="1"), JobAtHand(seconds=25.0), sandbox, QUICK)
    assert (result.error_kind, result.error_reason) == ("infrastructure", "http_429")
    assert result.attempts == 1


async def test_a_job_whose_time_is_over_in_line_says_so(gate, fusion, sandbox):
    held = await gate.acquire()
    result = await execute(CodeRequest(code="1"), under(gate, 2.05), sandbox, QUICK)
    held.release()
    assert (result.error_kind, result.error_reason) == ("infrastructure", "job_time")
    assert result.attempts == 0
    assert result.permit_seconds > 0


async def test_where_the_time_went_is_in_the_result(gate, fusion, sandbox):
    fusion.script.extend([Answer.busy(retry_after=0), Answer.ok("42\n", seconds=0.05)])
    execution = JobAtHand(GateTurn(gate), queued_seconds=1.5)
    result = await execute(CodeRequest(code="1"), execution, sandbox, QUICK)
    assert result.attempts == 2
    assert result.queued_seconds == 1.5
    assert result.running_seconds >= 0.05
    assert result.backoff_seconds > 0


class Breaking:
    """A sandbox that keeps sessions, and breaks while the first program runs."""

    name, languages, keeps_sessions = "breaking", frozenset({"python"}), True
    runs = 0

    async def run(self, request: CodeRequest) -> CodeResult:
        self.runs += 1
        if self.runs == 1:
            raise SandboxUnreachable("cut", reason="cut", may_be_running=True)
        ran = CommandResult(status="Finished", return_code=0)
        return CodeResult(status="Success", run_result=ran)

    async def close(self) -> None: ...


@pytest.mark.parametrize(("session", "runs"), [("s", 1), (None, 2)])
async def test_a_program_of_a_session_that_may_have_begun_is_not_run_again(session, runs):
    told = list[str]()
    sandbox, at_hand = Breaking(), JobAtHand(runs_once=lambda: told.append("once"))
    request = CodeRequest(code="1", instance_id=session)
    result = await execute(request, at_hand, sandbox, QUICK)
    assert sandbox.runs == result.attempts == runs
    assert result.error_kind == ("none" if session is None else "infrastructure")
    assert told == ([] if session is None else ["once"])

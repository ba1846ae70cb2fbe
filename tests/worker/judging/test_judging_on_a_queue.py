"""A program and its cases as one job, whichever worker takes it, whatever happens to it."""

import asyncio
import json
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from ground import SettingError, connect
from jail.judge import JudgeCase, JudgeResult, read_cases
from jail.judge.models import JudgeRequest
from penstock.in_process import run_queued
from tests.harness import killing
from tests.harness.servers import until
from tests.jail.judge import echo_judge
from tests.worker.concurrent.crew import HEIR, LEASE, at_work, nothing_left, work_in_process
from tests.worker.scripted_answers import Answer
from worker import CodeQueue, JobFailed, RequestRefused, jobs
from worker.allowed import allowed
from worker.errors import DeadlineExceeded, ResultUnreadable
from worker.judging.progress import listening
from worker.queue import submitting
from worker.queue.judge_by_queue import Asked, read_judged
from worker.queue.suite_store import MISSING, SuiteStore, value_of

ECHO = "tests.jail.judge.echo_judge.EchoJudge"
RIGHT, WRONG = JudgeCase(input="1", expected="1"), JudgeCase(input="1", expected="2")


def large(count: int = 40, digits: int = 50_000) -> list[JudgeCase]:
    draw = random.Random(0)
    texts = ["".join(draw.choices("0123456789", k=digits)) for _ in range(count)]
    return [JudgeCase(input=text, expected=text) for text in texts]


async def test_one_job_brings_a_verdict_for_each_case(redis) -> None:
    queue = CodeQueue(redis, "code")
    echo_judge.compiled.clear()
    with at_work(redis, sandbox=ECHO):
        result = await queue.judge("mine", [RIGHT, WRONG, RIGHT], language="cpp", timeout=60)
        early = await queue.judge("mine", [WRONG, RIGHT], language="cpp", stop="first")

    assert (result.verdicts, early.verdicts) == ("PWP", "WS")
    assert (result.isolation, result.attempts, result.passed) == ("echo", 1, 2)
    assert echo_judge.compiled["mine"] == 2


def test_the_sync_face_and_rqs_own_worker_do_the_same(redis, fusion) -> None:
    fusion.default = Answer.ok("1\n")
    queue = CodeQueue(redis, "code")
    with ThreadPoolExecutor() as threads:
        judged = threads.submit(queue.sync.judge, "mine", [RIGHT, WRONG], language="cpp")
        until(lambda: redis.llen("rq:queue:code"), "the job")
        run_queued(redis)

    assert judged.result().verdicts == "PW"
    assert fusion.requests == 2  # its sandbox judges nothing: one request a case


async def test_a_dataset_says_how_its_cases_are_judged(redis) -> None:
    cases = read_cases({"cases": [{"input": "0.30000001", "expected": "0.3"}], "compare": "floats"})
    with at_work(redis, sandbox=ECHO):
        assert (await CodeQueue(redis).judge("", cases)).verdicts == "P"


@pytest.mark.parametrize(
    ("cases", "options", "why"),
    [
        ([], {}, "no cases"),
        ([RIGHT] * 10_001, {}, "10,001 cases"),
        ({"inputs": ["1"], "outputs": []}, {}, "1 inputs, 0 outputs"),
        ([RIGHT], {"language": "cobol"}, "cobol"),
        ([RIGHT], {"run_timeout": -1}, "run_timeout"),
        ([RIGHT], {"stop": 10**5000}, "stop"),
        ([RIGHT], {"stop_timeouts": 10**30}, "stop_timeouts"),
        ([RIGHT], {"overrides": {10**5000: {}}}, "overrides"),
        ([RIGHT], {"nonsense": 1}, "nonsense"),
    ],
)
async def test_what_cannot_be_judged_is_refused_before_it_is_queued(
    redis, cases, options, why
) -> None:
    with pytest.raises(RequestRefused, match=why):
        await CodeQueue(redis).judge("", cases, **options)
    assert redis.keys("*") == []


async def test_a_time_beyond_all_measure_is_refused_before_a_suite_is_sent(redis) -> None:
    queue = CodeQueue(redis)
    for face in (queue.judge, queue.sync.judge):
        with pytest.raises(SettingError, match=r"^timeout: "):
            await face("", large(), timeout=10**400)
    assert redis.keys("*") == []


async def test_sixteen_samples_of_a_problem_send_its_cases_once(real_redis) -> None:
    cases = read_cases({"cases": [case.model_dump() for case in large()]})
    whole = sum(len(value_of(raw)) for raw in cases.packed.blobs.values())
    queue = CodeQueue(real_redis)
    with at_work(real_redis, sandbox=ECHO):
        await queue.judge("", [RIGHT])  # both sides send their scripts
        sent, taken = traffic(real_redis)
        samples = [queue.judge(f"sample {n}", cases) for n in range(16)]
        assert {result.verdicts for result in await asyncio.gather(*samples)} == {"P" * 40}
        sent_now, taken_now = traffic(real_redis)

    assert whole < sent_now - sent < 1.1 * whole
    assert whole < taken_now - taken < 1.1 * whole


def test_threads_that_judge_at_once_share_what_sends_their_suites(redis, monkeypatch) -> None:
    together = threading.Barrier(2)

    class Slow(SuiteStore):
        def __init__(self, *given) -> None:
            together.wait(100)
            super().__init__(*given)

    monkeypatch.setattr(submitting, "SuiteStore", Slow)
    submitter = CodeQueue(redis)._submitter
    with ThreadPoolExecutor(2) as threads:
        one, other = threads.map(lambda _: submitter.suites(), range(2))
    assert one is other


def traffic(client) -> tuple[int, int]:
    info = client.info("stats")
    return info["total_net_input_bytes"], info["total_net_output_bytes"]


async def test_the_commands_of_a_program_do_not_grow_with_its_cases(real_redis) -> None:
    queue = CodeQueue(real_redis)
    counts = []
    with at_work(real_redis, sandbox=ECHO):
        for count in (300, 10_000):
            cases = read_cases({"inputs": ["1"] * count, "outputs": ["1"] * count})
            await queue.judge("the first sends the suite", cases)
            before = commands(real_redis)
            await queue.judge("another", cases)
            counts.append(commands(real_redis) - before)

    assert counts[1] <= counts[0] + 500  # heartbeats: fewer than one for 19 cases


def commands(client) -> int:
    return int(client.info("stats")["total_commands_processed"])


@pytest.mark.parametrize("face", ["coroutines", "threads"])
async def test_the_time_of_a_call_holds_while_its_cases_are_on_their_way(proxy, face) -> None:
    queue = CodeQueue(proxy.target)
    proxy.freeze()
    with pytest.raises(DeadlineExceeded, match="no job yet"):
        if face == "coroutines":
            await queue.judge("", large(), timeout=0.2)
        else:
            queue.sync.judge("", large(), timeout=0.2)
    proxy.thaw()


async def test_a_suite_that_redis_lost_is_sent_again(redis) -> None:
    cases = read_cases({"inputs": ["1"] * 9000, "outputs": ["1"] * 9000})
    queue = CodeQueue(redis)
    with at_work(redis, sandbox=ECHO):
        assert (await queue.judge("one", cases)).passed == 9000
    lost = [*redis.keys("penstock:blob:*"), *redis.keys("penstock:suite:*")]
    redis.delete(*lost)
    with at_work(redis, sandbox=ECHO):
        assert (await queue.judge("two", cases)).passed == 9000
    assert set(redis.keys("penstock:blob:*")) < set(lost)


@pytest.mark.parametrize("verdicts", ["P", ""])
def test_verdicts_of_other_cases_are_no_result(verdicts: str) -> None:
    """Such as those of a job that had the token before."""
    request = JudgeRequest(code="", cases=[RIGHT] * 3)
    with pytest.raises(ResultUnreadable, match="3 cases were sent"):
        read_judged(json.dumps(JudgeResult(verdicts=verdicts).dump()), request)
    judged = json.dumps(JudgeResult(verdicts="PPP").dump())
    assert read_judged(judged, request).passed == 3


async def test_second_jobs_have_tokens_that_no_other_call_has(redis, monkeypatch) -> None:
    """One with the token of another would get its verdicts."""
    submitted = []

    async def missing(_: Asked, token: str | None, *__: object, **___: object) -> JudgeResult:
        submitted.append(token)
        return JudgeResult(verdicts="M" * 40, error_reason=MISSING)

    monkeypatch.setattr(Asked, "_round", missing)
    queue, cases = CodeQueue(redis), large()
    for token in ("t" * 127 + "a", "t" * 127 + "b", "t" * 120, "own", "own-again"):
        await queue.judge("", cases, token=token)
    assert len(set(submitted)) == len(submitted) == 10
    assert all(submitting.check_token(token) for token in submitted)
    await queue.judge("", cases, token="own")
    assert submitted[-2:] == submitted[6:8]  # asked again, it is the same job


@pytest.fixture
def functions_looked_up_again():
    """A process remembers what it found."""
    allowed.cache_clear()
    yield
    allowed.cache_clear()


@pytest.mark.usefixtures("functions_looked_up_again")
async def test_a_worker_that_knows_no_judging_makes_a_masked_result_that_says_so(
    redis, monkeypatch
) -> None:
    monkeypatch.delattr(jobs, "judge_code")  # as in the release before
    queue = CodeQueue(redis, retries=0)
    with at_work(redis, sandbox=ECHO):
        result = await queue.judge("", [RIGHT, WRONG])

    assert (result.verdicts, result.error_reason) == ("MM", "worker_too_old")
    assert result.error_kind == "infrastructure"
    assert "upgrade the queue's workers" in result.message


async def test_rqs_own_worker_of_an_old_release_is_known_too(redis, fusion, monkeypatch) -> None:
    monkeypatch.delattr(jobs, "judge_code")
    queue = CodeQueue(redis, retries=0)
    judged = asyncio.create_task(queue.judge("", [RIGHT]))
    while not redis.llen("rq:queue:code"):  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.001)
    await asyncio.to_thread(run_queued, redis)

    assert (await judged).error_reason == "worker_too_old"


@pytest.mark.usefixtures("functions_looked_up_again")
async def test_a_job_that_fails_for_another_reason_raises(redis, monkeypatch) -> None:
    async def broken(request: dict[str, object]) -> None:
        raise RuntimeError("out of order")

    broken.__module__ = "worker.jobs"
    monkeypatch.setattr(jobs, "judge_code", broken)
    with at_work(redis, sandbox=ECHO), pytest.raises(JobFailed, match="out of order"):
        await CodeQueue(redis, retries=0).judge("", [RIGHT])


CASE = "jail.judge.suite:InlineSuite.case"


async def test_a_worker_killed_amid_case_seventeen_costs_no_result(real_redis) -> None:
    url = real_redis.connection_pool.connection_kwargs
    address = f"redis://{url['host']}:{url['port']}/{url.get('db', 0)}"
    settings = {"job_lease": LEASE, "sandbox": ECHO}
    queue = CodeQueue(real_redis)
    judged = asyncio.create_task(queue.judge("mine", [RIGHT] * 40, token="one", timeout=100))
    doomed = killing.before(CASE, hit=17)
    with killing.Child(work_in_process, address, ["code"], settings, at=doomed) as child:
        assert (await asyncio.to_thread(child.outcome)).killed
    assert not judged.done()
    with killing.Child(work_in_process, address, ["code"], HEIR | {"sandbox": ECHO}):
        result = await judged
        await asyncio.to_thread(
            until, lambda: nothing_left(real_redis) == {}, "everything to be put away"
        )

    assert result.verdicts == "P" * 40
    assert real_redis.xlen("rq:results:one") == 1


async def test_a_job_holds_no_more_than_the_name_of_a_large_suite(redis) -> None:
    queue = CodeQueue(redis)
    judged = asyncio.create_task(queue.judge("mine", large(4), token="one"))
    while not redis.exists("rq:job:one"):  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.001)
    job = redis.hgetall("rq:job:one")
    judged.cancel()

    assert sum(map(len, job.values())) < 3000
    assert b"judge_code python 4 bytes 4 cases" in job[b"description"]
    assert json.dumps(large(4)[0].input).encode() not in job[b"data"]


def test_who_asks_for_progress_hears_which_case_the_worker_is_at(real_redis) -> None:
    heard: list[int] = []

    def published() -> int:
        stats = real_redis.info("commandstats")
        return int(stats.get("cmdstat_publish", {"calls": 0})["calls"])

    before = published()
    with at_work(real_redis, sandbox=ECHO):
        queue = CodeQueue(real_redis)
        assert queue.sync.judge("", [RIGHT] * 30).verdicts == "P" * 30
        assert published() == before  # who does not ask pays nothing
        with listening(real_redis, "mine", heard.append):
            queue.sync.judge("", [RIGHT] * 30, progress=True, correlation_id="mine")
            until(lambda: heard, "the case that it is at")

    assert set(heard) <= set(range(30))


def test_a_redis_that_does_not_answer_keeps_nobody_who_asks_for_progress(
    proxy, monkeypatch
) -> None:
    monkeypatch.setattr("worker.judging.progress.connect", partial(connect, timeout=0.1))
    done = []
    with listening(proxy.target, "mine", done.append):
        proxy.freeze()
    with listening(proxy.target, "mine", done.append):
        done.append(-1)

    proxy.thaw()
    assert done == [-1]

"""Why is it 0: whatever a person has the id of is explained from what Redis keeps, and a program is
judged again here to the same."""

import asyncio
import json
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

import ground
from buffer import RolloutBuffer, TaskConfig
from gateway.calls import Call, Sent
from gateway.engines.pool import gate_name
from gateway.packing import floats_of, ids_of
from ground.redis.connect import target_of
from jail.judge.models import Checker, JudgeCase, JudgeRequest, JudgeResult
from jail.models import CodeRequest
from limiter import TokenBucket
from penstock.fleet import FleetReader
from penstock.fleet.jobs import jobs_of
from penstock.fleet.search import find
from penstock.why import Explained, NothingFound, explain
from penstock.why.model import cut
from penstock.why.replay import Replay, replay
from tests.gateway.conftest import Bench
from tests.harness.servers import url_of
from tests.penstock.commands import CHORES, penstock_worker, run
from tests.worker.concurrent import chores
from tests.worker.concurrent.crew import at_work, burst, open_queue
from worker import CodeQueue
from worker.hosts import Grader
from worker.queue.suite_store import suite_key

NINE = [JudgeCase(input="3\n", expected="9\n"), JudgeCase(input="4\n", expected="16\n")]
SQUARE = "print(int(input()) ** 2)"
BROKEN = {"language": "python", "protocol": "scalebox"}


@dataclass(frozen=True)
class Sample:
    """A program with its cases; how it is judged, and what its sentence must say."""

    code: str
    says: str
    cases: list[JudgeCase] = field(default_factory=lambda: NINE)
    options: dict[str, Any] = field(default_factory=dict)


def right(n: int) -> Sample:
    double = [JudgeCase(input=f"{n}", expected=f"{2 * n}")]
    ways = (
        Sample(f"print(int(input()) ** 2)  # {n}", "2 of 2 cases passed"),
        Sample("def f(x): return 2 * x", "1 of 1", double, {"function": "f"}),
        Sample("def f(x): return 2 * x", "1 of 1", [JudgeCase(check=f"assert f({n}) == {2 * n}")]),
        Sample("print('a b')", "1 of 1", [JudgeCase(expected=["x", "a b"])]),
        Sample(f"print({n} / 3)", "1 of 1", [JudgeCase(expected=f"{n / 3:.8f}")],
               {"compare": {"rule": "floats"}}),
    )  # fmt: skip
    return ways[n % len(ways)]


def wrong(n: int) -> Sample:
    double = [JudgeCase(input=f"{n}", expected=f"{2 * n}")]
    ways = (
        Sample(f"print(int(input()) ** 2 - {n + 1})", "case 0 is wrong, the program's fault"),
        Sample("n = int(input())\nprint(n * n if n < 4 else 0)", "0.5: case 1 is wrong"),
        Sample("raise SystemExit(3)", "case 0 ended with an error (exit), the program's fault"),
        Sample("print(", "case 0 ended with an error (exit), the program's fault"),
        Sample("def f(x): return [x]", "case 0 is wrong", double, {"function": "f"}),
    )
    return ways[n % len(ways)]


def slow(n: int) -> Sample:
    ways = (
        Sample(f"while True: {n}", "ran out of time (run_timeout), the program's fault"),
        Sample("import time; time.sleep(600)", "ran out of time"),
        Sample("def f(x):\n  while True: x += 1", "ran out of time", NINE, {"function": "f"}),
        Sample("n = int(input())\nprint(n * n)\nwhile n > 3: pass", "0.5: case 1 ran out of time"),
        Sample("def f():\n  f()\nwhile True:\n  try: f()\n  except RecursionError: 0", "ran out"),
    )
    sample = ways[n % len(ways)]
    limits = {"run_timeout": 0.05, "stop_timeouts": 1}
    if n % len(ways) == 1:  # it sleeps: only the clock ends it
        limits["wall_timeout"] = 0.2
    return Sample(sample.code, sample.says, sample.cases, sample.options | limits)


def data(n: int) -> Sample:
    ways = (
        "raise ValueError('broken')", "import nothing_like_it", "1 / 0", "open('absent').read()",
        "import os; os.kill(os.getpid(), 11)",
    )  # fmt: skip
    checker = Checker(code=ways[n % len(ways)], **BROKEN)  # type: ignore[arg-type]
    return Sample(f"print({n})", "the data's fault", NINE, {"checker": checker})


KINDS: dict[str, Callable[[int], Sample]] = {
    "right": right, "wrong": wrong, "slow": slow, "data": data,
}  # fmt: skip


async def why(client: Any, id: str) -> Explained:
    """What is said of the one thing that has this id."""
    async with FleetReader(target_of(client)) as reader:
        (found,) = await explain(reader, id)
        return found


async def again(client: Any, job: str) -> Replay:
    async with FleetReader(target_of(client)) as reader:
        return await replay(reader, job)


def said(found: Explained | Replay, what: str) -> str:
    """What its facts of that name say, joined."""
    return "; ".join(fact.said for fact in found.facts if fact.what == what)


@pytest.mark.parametrize("kind", KINDS)
async def test_ten_samples_of_a_verdict_are_explained_and_judged_to_the_same(
    real_redis: ground.Client, kind: str
) -> None:
    samples = [KINDS[kind](n) for n in range(10)]
    with at_work(real_redis, sandbox="local", gate="code", gate_limit=2):
        queue = CodeQueue(real_redis, "code")
        results = [await queue.judge(one.code, one.cases, **one.options) for one in samples]
    for sample, result in zip(samples, results, strict=True):
        job = result.correlation_id
        found = await why(real_redis, job)
        assert sample.says in found.sentence
        assert found.sentence.startswith(
            "it has no reward, it is masked" if kind == "data" else "its reward is "
        )
        assert said(found, "verdict").startswith(result.verdicts)
        assert said(found, "queue").startswith("code, waited")
        assert said(found, "program").startswith("python")
        assert said(found, "evidence") == _first_evidence(result)
        assert (said(found, "returned") != "") == ("return [x]" in sample.code)
        once_more = await again(real_redis, job)
        assert once_more.same is True, once_more
        assert sample.says in once_more.sentence


def _first_evidence(result: JudgeResult) -> str:
    """What the case that decides stands on, on one line and cut."""
    at = next((at for at, one in enumerate(result.verdicts) if one in "WECTLM"), -1)
    return cut(result.evidence.get(at, ""))


async def test_ten_samples_that_the_sandbox_broke_are_explained_and_judged_here(
    real_redis: ground.Client,
) -> None:
    away = {"sandbox": "fusion", "sandbox_fusion_url": "http://127.0.0.1:9", "sandbox_attempts": 1}
    with at_work(real_redis, **away):
        queue = CodeQueue(real_redis, "code")
        results = [await queue.judge(f"{SQUARE}  # {n}", NINE) for n in range(10)]
    for result in results:
        found = await why(real_redis, result.correlation_id)
        assert found.sentence.startswith("it has no reward, it is masked: case 0 has no verdict")
        assert "no fault of the program: the sandbox or Penstock failed" in found.sentence
        assert "127.0.0.1:9" in said(found, "evidence")
        once_more = await again(real_redis, result.correlation_id)
        assert once_more.same is False
        assert "its reward is 1: 2 of 2 cases passed" in once_more.sentence
        assert "then masked (connect), here passed" in said(once_more, "case 0")


async def test_an_item_is_explained_by_the_job_that_it_names(real_redis: ground.Client) -> None:
    truth = {"inputs": ["3", "4"], "outputs": ["9", "17"]}
    with at_work(real_redis, sandbox="local", gate="code", gate_limit=2):
        grade = await Grader(on=url_of(real_redis)).grade(f"```python\n{SQUARE}\n```", truth)
        at_a_gate = await why(real_redis, grade.job)
    assert said(at_a_gate, "queue").endswith("for a worker with a permit of gate code")
    assert said(at_a_gate, "permit").endswith("more after a worker took it")
    assert said(at_a_gate, "attempts").startswith("claimed once")
    buffer = RolloutBuffer(real_redis, "math", TaskConfig(group_size=3))
    shared = {"instance_id": "m7", "messages": [{"role": "assistant", "content": "…"}]}
    await buffer.write_many([
        {**shared, "uid": "m7-0", "reward": grade.value, "job": grade.job, "versions": [[9, 4]]},
        {**shared, "uid": "m7-1", "reward": 0.0, "extra_info": {"penstock_job": "gone"}},
        {**shared, "uid": "m7-2", "reward": 0.0,
         "metadata": {"traj_masked": 1, "traj_exit_reason": "SandboxBusy"}},
    ])  # fmt: skip
    await buffer.aclose()
    known = await why(real_redis, "m7-0")
    assert known.sentence == (
        "its reward is 0.5; by its job, its reward is 0.5: case 1 is wrong, the program's fault"
    )
    assert (known.kind, known.jobs) == ("item", (grade.job,))
    assert said(known, "group") == "m7:0 of task math, 3 items: it waits for a trainer"
    assert said(known, "versions") == "its tokens are of version 4"
    assert said(known, "expected") == "'17'"
    assert "its worker has left" in said(known, "permit")
    assert "PENSTOCK_RESULT_TTL" in said(await why(real_redis, "m7-1"), "job")
    masked = await why(real_redis, "m7-2")
    assert masked.sentence == "it is masked, so its reward does not count: SandboxBusy"
    group = await why(real_redis, "m7")
    assert (group.kind, said(group, "its rewards")) == ("group", "0.5, 0.0, 0.0")
    assert "m7-2: reward 0.0, masked: SandboxBusy" in said(group, "item")


async def test_a_group_is_found_whose_instance_is_named_as_if_with_a_round(
    real_redis: ground.Client,
) -> None:
    buffer = RolloutBuffer(real_redis, "math", TaskConfig(group_size=1))
    await buffer.write({"instance_id": "gsm8k:17", "uid": "one", "reward": 1.0})
    await buffer.aclose()
    assert (await why(real_redis, "gsm8k:17")).name == "gsm8k:17:0"
    assert (await why(real_redis, "gsm8k:17:0")).name == "gsm8k:17:0"
    async with FleetReader(target_of(real_redis)) as reader:
        fleet = await reader.read()
        for wanted in ("gsm8k:17", "gsm8k:17:0"):
            exact = [one for one in await find(reader, fleet, wanted) if one.exact]
            assert [(one.kind, one.name) for one in exact] == [("group", "gsm8k:17:0")]
    with pytest.raises(NothingFound):
        await why(real_redis, "gsm8k:" + "1" * 5000)


async def test_a_session_is_explained_while_it_lasts_and_after_its_end(
    real_redis: ground.Client,
) -> None:
    bench = Bench(real_redis)
    await bench.start()
    session = await bench.open("u1", "i1")
    async with FleetReader(target_of(real_redis)) as reader:
        (found,) = await explain(reader, session.sid)
        assert found.sentence == "it has no reward yet, it is live"
        (by_uid,) = await explain(reader, "u1")
        assert by_uid.name == session.sid
    await bench.log.finalize(session, 0.0, extra={"job": "no-job"})
    ended = await why(real_redis, session.sid)
    assert ended.sentence == "its reward is 0"
    assert said(ended, "put") == "its item is stored"
    assert "0 of 0 sampled tokens are trained on" in said(ended, "rows")
    assert said(ended, "job").startswith("no-job, which Redis has forgotten")
    await bench.aclose()


async def test_turns_and_versions_of_a_session_are_in_the_list(real_redis: ground.Client) -> None:
    from gateway.log import Asked, Fresh

    bench = Bench(real_redis)
    await bench.start()
    session = await bench.open("u1", "i1")
    begun = await bench.log.begin(session, Asked(b"d" * 16))
    assert isinstance(begun, Fresh)
    gate = TokenBucket(real_redis, gate_name("http://10.0.0.7:30000"), limit=1)
    held = await gate.acquire()
    asking = asyncio.create_task(gate.acquire())
    while not (await gate.status()).waiting:  # noqa: ASYNC110 - it waits on a connection of its own
        await asyncio.sleep(0.01)
    waits = await why(real_redis, session.sid)
    assert said(waits, "waits").startswith("1 turn under way, until an engine answers")
    assert said(waits, "engine").startswith("1 waits: gate 'engine-10.0.0.7-30000' is full")
    held.release()
    (await asking).release()
    call = Call(
        begun.call, delta=ids_of([1, 2]), out=ids_of([3, 4]), lps=floats_of([-0.1, -0.2]),
        spans=((2, 5),), req_digest=b"d" * 16, sent=Sent.WHOLE,
    )  # fmt: skip
    await bench.log.commit(session, begun.fence, call, b"h" * 16)
    found = await why(real_redis, session.sid)
    assert said(found, "turn") == "turn 1; 2 new, 2 sampled of version 5; stop"
    assert said(found, "rows") == "1 row, 2 of 2 sampled tokens are trained on"
    await bench.aclose()


@pytest.mark.parametrize(
    ("noted", "told"),
    [
        ({"reward": {"acc": 1.0}}, "its reward is {'acc': 1.0}"),
        ({"reward": "0.5"}, "its reward is 0.5"),
        (
            {"rows": [1, {"calls": [1, [], [["a"]]]}, {"calls": 2, "cause": ["x"]}]},
            "1 turn in 3 rows",
        ),
    ],
)
async def test_an_item_of_any_form_that_the_buffer_takes_is_explained(
    real_redis: ground.Client, noted: dict[str, Any], told: str
) -> None:
    buffer = RolloutBuffer(real_redis, "math", TaskConfig(group_size=1))
    item = {"instance_id": "i", "uid": "u", "messages": [], "reward": 1.0}
    await buffer.write(item | noted)
    await buffer.aclose()
    found = await why(real_redis, "u")
    assert any(one.startswith(told) for one in (found.sentence, said(found, "turns")))


@pytest.mark.parametrize(
    "data", ['["f", null, {"a": 1}, {}]', '[["x"], null, [], {}]', '["f", null, 5, {}]', "[]", "7"]
)
async def test_a_job_with_data_that_rq_does_not_write_is_shown_without_its_call(
    redis: ground.Client, data: str
) -> None:
    redis.hset("rq:job:odd", mapping={"status": "finished", "origin": "code", "data": data})
    redis.zadd("rq:finished:code", {"odd": 1})
    assert said(await why(redis, "odd"), "program") == (
        "what it calls is not RQ's JSON, and is not opened"
    )
    async with FleetReader(target_of(redis)) as reader:
        job = await reader.job("odd")
        page = await jobs_of(reader.client, "code", "finished")
    assert job is not None
    assert job["call"]["note"].startswith("its arguments are not RQ's JSON")
    assert [(one.id, one.program) for one in page.jobs] == [("odd", "")]


async def test_a_request_is_read_that_is_passed_by_its_name(redis: ground.Client) -> None:
    for job, named in (("named", {"request": {"code": "print(7)"}}), ("none", {})):
        data = json.dumps(["worker.jobs.run_code", None, [], named])
        redis.hset(f"rq:job:{job}", mapping={"status": "failed", "origin": "code", "data": data})
    assert said(await why(redis, "named"), "program") == "python, 8 bytes: print(7)"
    assert said(await why(redis, "none"), "program") == (
        "it calls worker.jobs.run_code without a request"
    )
    async with FleetReader(target_of(redis)) as reader:
        job_in_full = await reader.job("named")
    assert job_in_full is not None
    assert job_in_full["call"]["code"] == "print(7)"


async def test_words_of_one_letter_are_read(redis: ground.Client) -> None:
    """They look as packed bytes begin."""
    redis.hset("rq:job:one", mapping={
        "status": "failed", "origin": "q", "penstock_share": "a", "worker_name": "w",
        "penstock_attempts": "3", "started_at": "2026-08-02T10:11:12.000000Z", "exc_info": "x",
        "data": json.dumps(["worker.jobs.run_code", None, [{"code": "1"}], {}]),
    })  # fmt: skip
    redis.hset("rq:worker:w", "penstock_gate", "g")
    found = await why(redis, "one")
    assert found.sentence.endswith("no fault of the program: x")
    assert [said(found, what).partition(",")[0] for what in ("queue", "share", "permit")] == [
        "q", "a", "gate g",
    ]  # fmt: skip
    assert said(found, "attempts") == "claimed 3 times"


async def test_where_the_time_went_is_told_also_of_a_result_that_is_too_long_to_show(
    redis: ground.Client,
) -> None:
    result = {
        "status": "Success", "attempts": 2, "permit_seconds": 4.0, "running_seconds": 0.5,
        "run_result": {"status": "Finished", "return_code": 0, "stdout": "x" * 200_000},
    }  # fmt: skip
    at = "2026-08-02T10:11:1{}.000000Z".format
    redis.hset("rq:worker:w", "penstock_gate", "code")
    redis.hset("rq:job:long", mapping={
        "status": "finished", "origin": "code", "worker_name": "w", "enqueued_at": at(1),
        "started_at": at(2), "ended_at": at(7),
        "data": json.dumps(["worker.jobs.run_code", None, [{"code": "1"}], {}]),
    })  # fmt: skip
    redis.xadd("rq:results:long", {"return_value": b64encode(json.dumps(result).encode())})
    found = await why(redis, "long")
    assert "waited 4 s" in said(found, "permit")
    assert "the sandbox was asked 2 times" in said(found, "attempts")
    async with FleetReader(target_of(redis)) as reader:
        job = await reader.job("long")
    assert job is not None
    assert len(job["result"]) == 100_001
    assert {part["what"]: part["seconds"] for part in job["timeline"]} == {
        "queued": 1.0, "permit": 4.0, "start": 0.5, "run": 0.5,
    }  # fmt: skip


async def test_a_job_that_waits_says_why_and_one_that_failed_how(real_redis: ground.Client) -> None:
    handle = CodeQueue(real_redis, "code", abandon="keep").sync.submit("print(1)")
    waits = await why(real_redis, handle.id)
    assert (
        "it waits in queue 'code', number 1 of 1: no worker listens on queue 'code'"
        in waits.sentence
    )
    assert said(waits, "attempts") == "not claimed yet"
    assert (await again(real_redis, handle.id)).sentence == (
        "here its program ran to its end and returned 0; it has no result to compare with"
    )
    failing = open_queue(real_redis, "chores").enqueue(chores.add, 1, "x")
    await asyncio.to_thread(burst, real_redis, "chores")
    failed = await why(real_redis, failing.id)
    assert "its job failed, no fault of the program: TypeError" in failed.sentence
    assert "no program of a sandbox" in (await again(real_redis, failing.id)).sentence


async def test_a_function_that_returns_a_dict_asked_no_sandbox(real_redis: ground.Client) -> None:
    returns = open_queue(real_redis).enqueue("builtins.dict", [["attempts", 3]])
    await asyncio.to_thread(burst, real_redis)
    assert said(await why(real_redis, returns.id), "attempts") == "claimed once"


async def test_what_is_gone_is_said_with_the_setting_that_keeps_it(
    real_redis: ground.Client,
) -> None:
    large = [JudgeCase(input="1" * 20_000, expected="1")]
    with at_work(real_redis, sandbox="local"):
        result = await CodeQueue(real_redis, "code").judge("print(1)", large)
    job = result.correlation_id
    assert said(await why(real_redis, job), "cases") == "1, in Redis, as a suite"
    request = JudgeRequest.read(json.loads(_called(real_redis, job))[2][0])
    assert request.suite is not None
    real_redis.delete(suite_key(request.suite.sha256))
    gone = await again(real_redis, job)
    assert (gone.same, "its cases are gone" in gone.sentence) == (None, True)
    assert "PENSTOCK_RESULT_TTL" in gone.sentence
    real_redis.delete(f"rq:results:{job}")
    assert "its result has expired" in (await why(real_redis, job)).sentence
    real_redis.delete(f"rq:job:{job}")
    with pytest.raises(NothingFound, match=r"a job on any queue; .* PENSTOCK_RESULT_TTL"):
        await why(real_redis, job)
    assert "PENSTOCK_RESULT_TTL" in (await again(real_redis, job)).sentence


def _called(client: Any, job: str) -> bytes:
    from penstock.fleet.one_job import unpacked

    return unpacked(client.hget(f"rq:job:{job}", "data"))


async def test_a_setting_says_how_long_jobs_and_their_cases_are_kept(
    real_redis: ground.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_RESULT_TTL", "86400")
    large = [JudgeCase(input="1" * 20_000, expected="1")]
    with at_work(real_redis, sandbox="local"):
        result = await CodeQueue(real_redis, "code").judge("print(1)", large)
    kept = [f"rq:job:{result.correlation_id}", *real_redis.keys("penstock:suite:*"),
            *real_redis.keys("penstock:blob:*")]  # fmt: skip
    assert len(kept) >= 3
    assert all(80_000 < real_redis.ttl(key) <= 86_400 for key in kept)
    assert (await again(real_redis, result.correlation_id)).same is True


async def test_a_program_that_ran_is_explained_and_a_session_of_its_own_is_not_run_again(
    real_redis: ground.Client,
) -> None:
    with at_work(real_redis, sandbox="local"):
        queue = CodeQueue(real_redis, "code")
        result = await queue.run("import sys; print('no'); sys.exit('bad input')")
    found = await why(real_redis, result.correlation_id)
    assert found.sentence == "its program ended with exit code 1, the program's fault"
    assert (said(found, "printed"), said(found, "stderr")) == ("'no\\n'", "bad input")
    assert (await again(real_redis, result.correlation_id)).same is True
    asked = CodeRequest(code="x", instance_id="s1")
    handle = CodeQueue(real_redis, "other", abandon="keep").sync.submit(asked)
    assert "session 's1'" in (await again(real_redis, handle.id)).sentence


async def test_a_program_that_ends_otherwise_says_what_differs(real_redis: ground.Client) -> None:
    with at_work(real_redis, sandbox="local"):
        queue = CodeQueue(real_redis, "code")
        chance = "import time; print(time.time_ns())"
        judged = await queue.judge(f"import os; {SQUARE}", NINE)
        ran = await queue.run(chance)
    kept = real_redis.xrevrange(f"rq:results:{judged.correlation_id}", count=1)
    assert kept
    differs = await again(real_redis, ran.correlation_id)
    assert (differs.same, differs.facts[0].what) == (False, "printed")
    assert differs.facts[0].said.startswith("then '")


async def test_a_dropped_job_and_a_worker_of_that_name_are_said(real_redis: ground.Client) -> None:
    real_redis.sadd("rq:queues", "rq:queue:code")
    real_redis.xadd("penstock:work:{code}:dropped", {"job": "lost", "why": "gone", "worker": "w"})
    with pytest.raises(NothingFound, match="Queue 'code' dropped a job of that id: its hash is"):
        await why(real_redis, "lost")
    real_redis.hset("rq:worker:one", "state", "idle")
    with pytest.raises(NothingFound, match="There is a worker of that name"):
        await why(real_redis, "one")


def test_the_command_as_a_user_meets_it(real_redis: ground.Client) -> None:
    worker = penstock_worker(real_redis, *CHORES, "code", PENSTOCK_JOB_LEASE="60")
    try:
        wrong = CodeQueue(real_redis, "code").sync.judge("print(int(input()) + 1)", NINE)
    finally:
        worker.terminate()
        worker.communicate()
    job, redis = wrong.correlation_id, ("--redis-url", url_of(real_redis))
    shown = run(*redis, "why", job)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.splitlines()[0] == (
        f"job {job}: its reward is 0: case 0 is wrong, the program's fault"
    )
    assert "expected    '9\\n'" in shown.stdout
    assert "printed     '4\\n'" in shown.stdout
    same = run(*redis, "why", "--replay", job)
    assert same.returncode == 0, same
    assert f"replay of job {job}: the same here: its reward is 0" in same.stdout
    as_json = run(*redis, "why", "--json", "--replay", job)
    (found,) = json.loads(as_json.stdout)["found"]
    assert (found["kind"], found["replays"][0]["same"]) == ("job", True)
    nothing = run(*redis, "why", "nothing-like-it")
    assert (nothing.returncode, nothing.stdout) == (1, "")
    assert "nothing has the id 'nothing-like-it'. Looked for: a job on any queue" in nothing.stderr

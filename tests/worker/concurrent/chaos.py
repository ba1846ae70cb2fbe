"""Four workers killed at random, and their trainer cancelled and started anew: one result a job
for its caller, and never more in flight than the limit.

What ran is counted by the scripted sandbox, which shares no code with us.
"""

import asyncio
import json
import random
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from ground import connect
from limiter import TokenBucket
from tests.harness import killing
from tests.harness.remains import processes_named
from tests.harness.servers import until, url_of
from tests.worker.concurrent.crew import TIMES, nothing_left, work_in_process
from tests.worker.scripted_answers import Answer
from tests.worker.scripted_fusion import ScriptedFusion
from worker import CodeQueue, CodeRequest, Handle

LIMIT = 16
SETTINGS: dict[str, Any] = {
    "job_lease": 1.0, "gate": "code", "gate_limit": LIMIT, "concurrency": 64, "job_deaths": 20,
}  # fmt: skip


class Crew:
    """Worker processes, some of which are killed while the others work."""

    def __init__(self, url: str, size: int, seed: int, settings: dict[str, Any]) -> None:
        self._url = url
        self._settings = settings
        self._random = random.Random(seed)
        self._children = [self._new() for _ in range(size)]
        self.kills = 0

    def kill_one(self) -> None:
        at = self._random.randrange(len(self._children))
        self._children[at].kill()
        self._children[at].__exit__(None, None, None)
        self._children[at] = self._new()
        self.kills += 1

    def dismiss(self) -> None:
        for child in self._children:
            child.__exit__(None, None, None)

    def _new(self) -> killing.Child:
        return killing.Child(work_in_process, self._url, ["code"], self._settings)


async def train(
    url: str, life: str, count: int, program: dict[str, Any], shares: Sequence[str]
) -> None:
    """The trainer: asks for every job, each share's in turn, and tells each one's outcome under
    the name of its life."""
    # Nothing is lost with the trainer: its next life asks for the same tokens.
    queue = CodeQueue(url, "code", abandon="keep", retries=20)
    client: Any = connect(url)
    ids = job_ids(count)
    handles: list[Handle] = []
    for i in range(0, count, 500):
        programs = {
            id: CodeRequest(**program | {"code": program["code"].format(id)})
            for id in ids[i : i + 500]
        }
        handles += await asyncio.gather(
            *(
                queue.submit(request, token=id, share=shares[n % len(shares)])
                for n, (id, request) in enumerate(programs.items())
            )
        )
    async for handle in queue.as_completed(handles):
        result = await handle.result()
        client.rpush(life, json.dumps([handle.id, result.error_kind, result.stdout]))


def job_ids(count: int) -> list[str]:
    return [f"job{n:06d}" for n in range(count)]


def finished(client: Any) -> int:
    return int(client.zcard("rq:finished:code")) + int(client.zcard("rq:failed:code"))


# Each job that waits is in one list of those that RQ shows, or in the hand of a parked worker.
_WAITING = """
local listed, queued = 0, 0
for _, list in ipairs(redis.call('SMEMBERS', 'rq:queues')) do
  listed = listed + redis.call('LLEN', list)
end
for _, hand in ipairs(redis.call('KEYS', 'penstock:work:{code}:hand:*')) do
  listed = listed + redis.call('LLEN', hand)
end
for n = 0, ARGV[1] - 1 do
  local id = string.format('rq:job:job%06d', n)
  if redis.call('HGET', id, 'status') == 'queued' then queued = queued + 1 end
end
return {listed, queued}
"""


def expect_all_that_waits_is_listed(client: Any, count: int) -> None:
    listed, queued = client.eval(_WAITING, 0, count)
    assert listed == queued, f"RQ sees {listed} jobs that wait, and {queued} do"


def in_scripted_sandbox(
    client: Any, count: int, every: int, within: float, shares: Sequence[str] = ("",)
) -> dict[str, int]:
    """Counts what ran; docs/tools/killed.py keeps it of the long run."""
    with ScriptedFusion(default=Answer.ok("ok\n", seconds=0.05)) as fusion:
        sandbox = "tests.worker.concurrent.crew.brisk_fusion"
        settings = SETTINGS | {"sandbox_fusion_url": fusion.url, "sandbox": sandbox}
        program = {"code": "{}"} | TIMES
        ids, kills, _ = run_chaos(client, count, every, within, settings, program, shares)
        executions = sum(fusion.executions.values())
        counts = {"jobs": count, "kills": kills, "executions": executions, "peak": fusion.peak}
        assert set(fusion.executions) == set(ids)
        assert count <= executions <= count + kills * LIMIT, counts
        assert fusion.peak <= LIMIT
        return counts


def in_embedded_sandbox(client: Any, count: int, every: int, within: float) -> dict[str, int]:
    """Each worker has a fork server of its own, which must not outlive it."""
    with tempfile.TemporaryDirectory() as mark, pytest.MonkeyPatch.context() as environment:
        environment.setenv("PENSTOCK_SANDBOX_EXPOSE", mark)
        settings = SETTINGS | {"sandbox": "local", "concurrency": 8}
        program = {"code": "print('{}')", "run_timeout": 60}
        ids, kills, outputs = run_chaos(client, count, every, within, settings, program)
        claims = int(client.hget("penstock:work:{code}", "claimed"))
        assert count <= claims <= count + kills * LIMIT
        assert outputs == {id: f"{id}\n" for id in ids}
        until(lambda: processes_named(mark) == [], "every sandbox to be dead")
        return {"jobs": count, "kills": kills, "executions": claims}


def run_chaos(
    client: Any,
    count: int,
    every: int,
    within: float,
    settings: dict[str, Any],
    program: dict[str, Any],
    shares: Sequence[str] = ("",),
) -> tuple[list[str], int, dict[str, str]]:
    """The jobs, the kills among those who ran them, and what each job's program printed.

    One worker is killed for every so many jobs."""
    TokenBucket(client, "code", limit=LIMIT).sync.status()  # makes the gate
    url = url_of(client)
    crew = Crew(url, 4, count, settings)
    trainer = killing.Child(train, url, "first life", count, program, shares)
    lives, pause, deadline = 1, threading.Event(), time.monotonic() + within
    try:
        while client.llen("second life") < count:
            assert time.monotonic() < deadline, (lives, finished(client), nothing_left(client))
            pause.wait(0.1)
            expect_all_that_waits_is_listed(client, count)
            if finished(client) >= (crew.kills + 1) * every:
                crew.kill_one()
            if lives == 1 and finished(client) > count // 3:
                trainer.interrupt()
                trainer.wait()
                trainer.__exit__(None, None, None)
                trainer = killing.Child(train, url, "second life", count, program, shares)
                lives += 1
        assert trainer.outcome().returned is None
        until(lambda: nothing_left(client) == {}, "everything to be put away")
        assert client.smembers("rq:queues") == {b"rq:queue:code"}, "a share without jobs is listed"
    finally:
        trainer.__exit__(None, None, None)
        crew.dismiss()
    assert crew.kills >= 3
    assert 0 < client.llen("first life") < count
    return job_ids(count), crew.kills, expect_one_result_each(client, job_ids(count))


def expect_one_result_each(client: Any, ids: list[str]) -> dict[str, str]:
    with client.pipeline(transaction=False) as pipe:
        for id in ids:
            pipe.xlen(f"rq:results:{id}")
            pipe.hget(f"rq:job:{id}", "status")
        replies = pipe.execute()
    assert set(replies[::2]) == {1}
    assert set(replies[1::2]) == {b"finished"}
    assert sorted(id.decode() for id in client.zrange("rq:finished:code", 0, -1)) == ids
    for registry in ("wip", "failed", "deferred", "scheduled", "canceled"):
        assert client.zcard(f"rq:{registry}:code") == 0, registry
    assert [key for key in lasting_keys(client) if b"job0" in key] == []
    outcomes = [json.loads(said) for said in client.lrange("second life", 0, -1)]
    assert sorted(id for id, _, _ in outcomes) == ids
    assert {kind for _, kind, _ in outcomes} == {"none"}
    return {id: stdout for id, _, stdout in outcomes}


def lasting_keys(client: Any) -> list[bytes]:
    """Those without a time to live."""
    keys = list(client.scan_iter(count=1000))
    with client.pipeline(transaction=False) as pipe:
        for key in keys:
            pipe.ttl(key)
        return [key for key, ttl in zip(keys, pipe.execute(), strict=True) if ttl == -1]

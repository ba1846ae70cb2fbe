"""A token's second life: submitted again after its job was cancelled, stopped or left behind."""

import asyncio
import json
import math
from typing import Any

import pytest
from rq.command import send_stop_job_command
from rq.serializers import JSONSerializer

from ground.keys import tagged
from penstock.in_process import run_queued
from tests.harness import doomed, killing
from tests.harness.servers import until
from tests.worker.concurrent.crew import HEIR, at_work, burst, nothing_left
from tests.worker.scripted_answers import Answer
from worker import CodeQueue, DeadlineExceeded, JobCancelled
from worker.concurrent.worker import ConcurrentWorker
from worker.queue.order import SCRIPTS, Stage

BRISK: dict[str, Any] = {"job_lease": 6}  # it beats after 2 s, and may be late by 4
TOKENS = [f"sample-{n}" for n in range(20)]


@pytest.fixture
def queue(redis) -> CodeQueue:
    return CodeQueue(redis, "code")


@pytest.fixture
def hasty(real_redis) -> CodeQueue:
    """Looks at its jobs ten times a second."""
    return CodeQueue(real_redis, "code", no_workers_after=0.2)


def lost(client: Any) -> None:
    """As when a process is dead or frozen for longer than its key lives."""
    (key,) = [key for key in client.keys("penstock:client:*") if b":done" not in key]
    client.delete(key)


async def in_flight(fusion: Any, count: int) -> None:
    await asyncio.to_thread(fusion.wait_until, lambda: fusion.in_flight == count)


# Cancelled or stopped, and wanted again


async def test_a_cancelled_token_that_is_submitted_again_runs_once(redis, queue, fusion) -> None:
    await (await queue.submit("1", token="again")).cancel()
    handles = [await queue.submit("1", token="again", timeout=60) for _ in range(3)]
    assert redis.lrange("rq:queue:code", 0, -1) == [b"again"]
    assert redis.ttl("rq:job:again") == -1
    await asyncio.to_thread(run_queued, redis)
    assert all([(await handle.result()).ok for handle in handles])
    assert fusion.requests == 1


async def test_each_who_waits_for_one_job_gets_an_error_of_its_own(queue) -> None:
    handle = await queue.submit("1")
    waits = [asyncio.create_task(handle.result()) for _ in range(3)]
    await asyncio.sleep(0)
    await handle.cancel()
    errors = await asyncio.gather(*waits, handle.result(), return_exceptions=True)
    assert {type(error) for error in errors} == {JobCancelled}
    assert len({id(error) for error in errors}) == 4


async def test_a_stopped_token_that_is_submitted_again_runs_once(real_redis, fusion) -> None:
    fusion.default = Answer.ok(seconds=math.inf)
    queue = CodeQueue(real_redis, "code")
    with at_work(real_redis, **HEIR):
        first = await queue.submit("1", token="again", timeout=60)
        await in_flight(fusion, 1)
        send_stop_job_command(real_redis, "again", serializer=JSONSerializer)
        with pytest.raises(JobCancelled, match="was stopped"):
            await first.result()
        fusion.default = Answer.ok("42\n")
        assert (await queue.run("1", token="again", timeout=60)).ok
        until(lambda: nothing_left(real_redis) == {}, "everything to be put away")
    assert fusion.requests == 2
    assert real_redis.zrange("rq:failed:code", 0, -1) == []


async def test_a_token_that_is_being_stopped_runs_again_when_it_has(
    real_redis, fusion, monkeypatch
) -> None:
    monkeypatch.setattr(ConcurrentWorker, "handle_payload", lambda *_: None)  # so it lasts a while
    fusion.default = Answer.ok("42\n", seconds=math.inf)
    queue = CodeQueue(real_redis, "code")
    with at_work(real_redis, **HEIR):
        first = await queue.submit("1", token="again", timeout=60)
        await in_flight(fusion, 1)
        await first.cancel()
        assert real_redis.hget("rq:job:again", "status") == b"started"
        fusion.default = Answer.ok("42\n")
        again = asyncio.create_task(queue.run("1", token="again", timeout=60))
        assert (await again).ok
    assert fusion.requests == 2


async def test_a_late_copy_of_a_cancelled_submission_begins_nothing(redis, queue, fusion) -> None:
    handle = await queue.submit("1", token="late")
    copy = handle._order.hash.enqueue(handle._order.client.stream, "client", [handle._order])
    await handle.cancel()
    (script,) = [script for sha, script in SCRIPTS.items() if sha == copy[1]]
    assert redis.eval(script.source, *copy[2:]) == [b"canceled"]
    assert redis.llen("rq:queue:code") == 0


async def test_who_gives_up_leaves_a_job_to_another_process_that_asked_for_it_since(
    real_redis, shared_server, fusion
) -> None:
    # By another way to the same server: an engine of its own.
    old = CodeQueue(shared_server.target, "code")
    new = CodeQueue(shared_server.socket_target, "code")
    given_up = await old.submit("1", token="shared", timeout=0.3)
    wanted = await new.submit("1", token="shared", timeout=60)
    with pytest.raises(DeadlineExceeded):
        await given_up.result()
    await (await old.submit("next")).cancel()
    assert real_redis.lrange("rq:queue:code", 0, -1) == [b"shared"]
    await asyncio.to_thread(run_queued, real_redis)
    assert (await wanted.result()).ok


# A stop that gets lost


async def test_a_stop_that_is_lost_is_found_by_the_workers_heartbeat(
    real_redis, fusion, monkeypatch
) -> None:
    monkeypatch.setattr(ConcurrentWorker, "handle_payload", lambda *_: None)
    fusion.default = Answer.ok(seconds=math.inf)
    queue = CodeQueue(real_redis, "code")
    with at_work(real_redis, **BRISK):
        handle = await queue.submit("1", timeout=60)
        await in_flight(fusion, 1)
        await handle.cancel()
        key = f"rq:job:{handle.id}"
        await asyncio.to_thread(
            until, lambda: real_redis.hget(key, "status") == b"stopped", "its end"
        )
        assert not real_redis.hexists(key, "penstock_unwanted"), "who requeues it wants it"


async def test_a_stop_is_repeated_until_the_job_has_ended(real_redis) -> None:
    queue = CodeQueue(real_redis, "code")
    handle = await queue.submit("1")
    key = f"rq:job:{handle.id}"
    real_redis.lpop("rq:queue:code")
    real_redis.hset(key, mapping={"status": "started", "worker_name": "deaf"})
    heard = real_redis.pubsub()
    heard.subscribe("rq:pubsub:deaf")
    await handle.cancel()
    stops = []
    while len(stops) < 2:
        message = await asyncio.to_thread(heard.get_message, timeout=10)
        if message and message["type"] == "message":
            stops.append(json.loads(message["data"]))
    assert stops == [{"command": "stop-job", "job_id": handle.id}] * 2
    real_redis.hset(key, "status", "stopped")
    await asyncio.to_thread(
        until, lambda: handle._order.stage is Stage.OVER, "the engine to see it"
    )
    heard.close()


async def test_a_job_that_was_cancelled_while_it_ran_is_not_run_by_an_heir(
    real_redis, fusion
) -> None:
    queue = CodeQueue(real_redis, "code")
    handle = await queue.submit("1")
    real_redis.hset(f"rq:job:{handle.id}", mapping={"status": "started", "worker_name": "dead"})
    await handle.cancel()
    real_redis.hset(f"rq:job:{handle.id}", "status", "queued")  # its worker died, others take it
    await asyncio.to_thread(burst, real_redis)
    assert fusion.requests == 0
    assert real_redis.hget(f"rq:job:{handle.id}", "status") == b"canceled"


# A trainer that died, left, or was taken for dead


async def trainer_that_dies(url: str) -> None:
    queue = CodeQueue(url, "code")
    for token in TOKENS:
        await queue.submit(token, token=token)
    doomed.reached("submitted")
    await asyncio.sleep(3600)


async def trainer_that_leaves(url: str) -> None:
    queue = CodeQueue(url, "code")
    for token in TOKENS:
        await queue.submit(token, token=token)


@pytest.mark.parametrize("dropped", [False, True], ids=["still queued", "dropped by workers"])
async def test_a_restarted_trainer_uses_the_tokens_of_one_that_was_killed(
    real_redis, shared_server, fusion, dropped
) -> None:
    killing.run(trainer_that_dies, shared_server.url, at=killing.named("submitted"))
    if dropped:
        lost(real_redis)
        await asyncio.to_thread(burst, real_redis)
        assert fusion.requests == 0
        assert real_redis.hget("rq:job:sample-0", "status") == b"canceled"
    queue = CodeQueue(real_redis, "code")
    handles = [await queue.submit(token, token=token, timeout=60) for token in TOKENS]
    await asyncio.to_thread(burst, real_redis)
    assert all([(await handle.result()).ok for handle in handles])
    assert fusion.executions == dict.fromkeys(TOKENS, 1)


async def test_a_restarted_trainer_uses_the_tokens_of_one_that_left(
    real_redis, shared_server, fusion
) -> None:
    killing.run(trainer_that_leaves, shared_server.url)
    assert real_redis.llen("rq:queue:code") == 0
    queue = CodeQueue(real_redis, "code")
    handles = [await queue.submit(token, token=token, timeout=60) for token in TOKENS]
    await asyncio.to_thread(burst, real_redis)
    assert all([(await handle.result()).ok for handle in handles])
    assert fusion.executions == dict.fromkeys(TOKENS, 1)


async def test_what_runs_for_a_trainer_that_died_is_stopped(
    real_redis, shared_server, fusion
) -> None:
    fusion.default = Answer.ok(seconds=math.inf)
    killing.run(trainer_that_dies, shared_server.url, at=killing.named("submitted"))
    with at_work(real_redis, concurrency=len(TOKENS), **BRISK):
        await in_flight(fusion, len(TOKENS))
        lost(real_redis)
        await asyncio.to_thread(until, lambda: nothing_left(real_redis) == {}, "their ends")
    statuses = {real_redis.hget(f"rq:job:{token}", "status") for token in TOKENS}
    assert statuses == {b"stopped"}
    assert fusion.requests == len(TOKENS)


async def test_what_runs_for_a_trainer_that_is_back_at_the_next_heartbeat_goes_on(
    real_redis, fusion
) -> None:
    fusion.default = Answer.ok("42\n", seconds=math.inf)
    queue = CodeQueue(real_redis, "code")
    with at_work(real_redis, **HEIR):
        handle = await queue.submit("1", timeout=60)
        await in_flight(fusion, 1)
        client = real_redis.hget(f"rq:job:{handle.id}", "penstock_abandon").decode()
        key = tagged("client", client)
        real_redis.delete(key)
        mark = (f"rq:job:{handle.id}", "penstock_unwanted")
        await asyncio.to_thread(until, lambda: real_redis.hget(*mark) == b"missing", "a heartbeat")
        real_redis.hset(key, "seen", "now")
        await asyncio.to_thread(until, lambda: not real_redis.hexists(*mark), "the next")
        fusion.finish_held()
        assert (await handle.result()).ok
    assert fusion.requests == 1


async def test_a_trainer_that_was_taken_for_dead_gets_its_results(
    real_redis, hasty, fusion
) -> None:
    """Frozen for a minute: what was dropped is queued again, what was stopped runs again."""
    fusion.programs["runs"] = Answer.ok("42\n", seconds=math.inf)
    with at_work(real_redis, concurrency=1, **BRISK):
        running = await hasty.submit("runs", timeout=60)
        waiting = await hasty.submit("waits", timeout=60)
        await in_flight(fusion, 1)
        lost(real_redis)
        await asyncio.to_thread(fusion.wait_until, lambda: fusion.codes["runs"] == 2)
        fusion.programs.clear()
        fusion.finish_held()
        assert (await running.result()).ok
        assert (await waiting.result()).ok
    assert fusion.codes == {"runs": 2, "waits": 1}

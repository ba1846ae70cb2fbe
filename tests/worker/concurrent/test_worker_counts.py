"""What workers count of ended jobs, and a queue that is paused alone."""

from typing import Any

import pytest
from rq import Callback, Queue
from rq.registry import FinishedJobRegistry

import ground
from ground.lua import load_script
from tests.harness.servers import until
from tests.worker.concurrent import chores
from tests.worker.concurrent.crew import at_work, burst, nothing_left, open_queue

PAUSE = load_script("worker.queue", "pause")
KEYS = ["penstock:work:{code}", "penstock:work:{code}:workers"]
PROGRAMS = [
    {"error_kind": "none"}, {"error_kind": "none"}, {"error_kind": "user", "error_reason": "exit"},
    {"error_kind": "limit", "error_reason": "run_timeout"},
    {"error_kind": "limit", "error_reason": "memory_limit"}, {"verdicts": "PW"},
    {"error_kind": "infrastructure", "error_reason": "jail_lost"},
    {"verdicts": "PM", "reasons": {"1": "checker_error"}}, {"verdicts": "P", "shared": 1},
]  # fmt: skip


@pytest.fixture
def queue(real_redis: ground.Client) -> Queue:
    return open_queue(real_redis)


def counts(redis: Any) -> dict[str, int]:
    found = redis.hgetall("penstock:work:{code}")
    return {name.decode(): int(value) for name, value in found.items()}


@pytest.mark.parametrize("by_rq", [False, True], ids=["by the script", "by RQ's own code"])
def test_ends_of_programs_are_counted_by_how_they_ended(
    real_redis: ground.Client, queue: Queue, by_rq: bool
) -> None:
    more: dict[str, Any] = {"on_success": Callback(chores.on_success)} if by_rq else {}
    jobs = [queue.enqueue(chores.gives, value, **more) for value in PROGRAMS]
    queue.enqueue(chores.add, 1, 2, **more)
    queue.enqueue(chores.fail, "x")
    burst(real_redis, gate="code", gate_limit=2)
    found = counts(real_redis)
    assert {name: count for name, count in found.items() if name.startswith("programs:")} == {
        "programs:finished": 3, "programs:error": 1, "programs:timeout": 1, "programs:memory": 1,
        "programs:wrong": 1, "programs:masked": 1, "programs:data": 1,
    }  # fmt: skip
    assert found["programs_shared"] == 1
    assert (found["finished"], found["functions"]) == (10, 1)
    assert (found["masked"], found["failed"]) == (1, 1)
    for what in ("waited", "took"):
        steps = [count for name, count in found.items() if name.startswith(f"{what}:")]
        assert sum(steps) == 10, "of those that failed none is counted"
        assert 0 <= found[f"{what}_us"] < 10 * 300e6
    outcomes = [real_redis.hget(job.key, "penstock_outcome") for job in jobs]
    assert outcomes == [
        b"finished", b"finished", b"error", b"timeout", b"memory", b"wrong", b"masked",
        b"data", b"finished",
    ]  # fmt: skip
    assert nothing_left(real_redis) == {}


def test_a_worker_counts_its_own_programs_that_did_not_finish(
    real_redis: ground.Client, queue: Queue
) -> None:
    with at_work(real_redis) as worker:
        for value in PROGRAMS:
            queue.enqueue(chores.gives, value)
        done = FinishedJobRegistry(queue=queue)
        until(lambda: done.get_job_count(cleanup=False) == len(PROGRAMS), "the jobs")
        words = ("finished", "wrong", "error", "timeout", "memory", "masked", "data")
        found = real_redis.hmget(worker.key, [f"penstock_{word}" for word in words])
    assert found == [None, *[b"1"] * 6]


def test_a_paused_queue_rests_while_the_others_go_on_and_a_resume_wakes_its_worker(
    real_redis: ground.Client, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.concurrent.shift._HELD_FOR", 1e6)  # it does not look by itself
    other = open_queue(real_redis, "other")
    with at_work(real_redis, "code", "other") as worker:
        until(lambda: real_redis.execute_command("CLIENT", "LIST").count(b"cmd=blmove") == 2,
              "it to park")  # fmt: skip
        PAUSE.call(real_redis, KEYS, [1])
        held = queue.enqueue(chores.add, 1, 2)
        until(lambda: queue.job_ids == [held.id], "the job to be back in its queue")
        for _ in range(2):
            runs = other.enqueue(chores.add, 1, 2)
            until(lambda: runs.get_status() == "finished", "a job of the other queue")  # noqa: B023
        assert queue.job_ids == [held.id]
        until(lambda: real_redis.zscore(KEYS[1], worker.name), "its first heartbeat")
        assert PAUSE.call(real_redis, KEYS, [0]) == 1
        until(lambda: held.get_status() == "finished", "the held job")
        assert not real_redis.hexists(KEYS[0], "paused")


def test_a_queue_whose_mark_another_program_removes_goes_on(
    real_redis: ground.Client, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `rq resume` does with the mark of all queues: nobody is told."""
    monkeypatch.setattr("worker.concurrent.shift._HELD_FOR", 0.05)
    PAUSE.call(real_redis, KEYS, [1])
    job = queue.enqueue(chores.add, 1, 2)
    with at_work(real_redis):
        until(lambda: real_redis.zcard(KEYS[1]), "its first heartbeat")
        real_redis.hdel(KEYS[0], "paused")
        until(lambda: job.get_status() == "finished", "the job")


def test_a_burst_leaves_a_paused_queue_alone(real_redis: ground.Client, queue: Queue) -> None:
    real_redis.hset("penstock:work:{code}", "paused", 1)
    job, other = queue.enqueue(chores.add, 1, 2), open_queue(real_redis, "other")
    done = other.enqueue(chores.add, 1, 2)
    burst(real_redis, "code", "other", gate="code", gate_limit=1)
    assert (queue.job_ids, done.get_status()) == ([job.id], "finished")

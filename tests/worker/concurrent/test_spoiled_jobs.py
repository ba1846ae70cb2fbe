"""One job whose keys have the wrong shape is its own trouble, never its neighbours'."""

import time
from typing import Any

import pytest
from redis.exceptions import ResponseError
from rq.job import Dependency

from tests.harness.servers import until
from tests.worker.concurrent import chores
from tests.worker.concurrent.crew import LEASE, at_work, burst, nothing_left, open_queue
from worker.concurrent.commands import SCRIPTS, WorkCommands
from worker.queue.dropped_jobs import REASONS, dropped_of

GATED = {"gate": "code", "gate_limit": 8}


def ask(client: Any, command: tuple[Any, ...]) -> Any:
    name, sha, *rest = command
    assert name in ("EVAL", "EVALSHA")
    return client.execute_command("EVAL", SCRIPTS[sha].source if name == "EVALSHA" else sha, *rest)


def commands_of(worker: str, lease: float = LEASE) -> WorkCommands:
    return WorkCommands("code", worker, lease, None)


def hash_is_a_string(client: Any, id: str) -> None:
    client.delete(f"rq:job:{id}")
    client.set(f"rq:job:{id}", "spoiled")


def attempts_are_words(client: Any, id: str) -> None:
    client.hset(f"rq:job:{id}", "penstock_attempts", "many")


def deaths_and_retries_are_words(client: Any, id: str) -> None:
    client.hset(f"rq:job:{id}", mapping={"penstock_deaths": "many", "retries_left": "few"})


def time_to_live_is_words(client: Any, id: str) -> None:
    client.hset(f"rq:job:{id}", "ttl", "long")


def executions_are_a_string(client: Any, id: str) -> None:
    client.delete(f"rq:executions:{id}")
    client.set(f"rq:executions:{id}", "spoiled")
    client.hset(f"rq:job:{id}", "status", "started")


def results_are_a_string(client: Any, id: str) -> None:
    client.set(f"rq:results:{id}", "spoiled")
    try:
        client.xadd(f"rq:results:{id}", {"type": 1})
    except ResponseError:
        return  # as a server refuses it
    except AttributeError:
        pytest.skip("fakeredis before 2.40 fails in its own code here")


SPOILED = [
    hash_is_a_string, attempts_are_words, deaths_and_retries_are_words, time_to_live_is_words,
    executions_are_a_string, results_are_a_string,
]  # fmt: skip


@pytest.mark.in_turns("settings")
@pytest.mark.parametrize("settings", [{}, GATED], ids=["no gate", "gated"])
@pytest.mark.parametrize("spoil", SPOILED, ids=lambda spoil: spoil.__name__)
def test_the_neighbours_of_a_spoiled_job_run(redis, spoil, settings) -> None:
    queue = open_queue(redis)
    before, spoiled, after = [queue.enqueue(chores.add, 1, n) for n in range(3)]
    spoil(redis, spoiled.id)
    burst(redis, **settings)
    assert [before.return_value(), after.return_value()] == [1, 3]
    if spoil is not hash_is_a_string:
        assert redis.hget(spoiled.key, "status") in (b"finished", b"failed")
    assert nothing_left(redis) == {}


@pytest.mark.parametrize("id", [b"\xff\xfe", b"with:colon", b"with blank", b""])
def test_an_id_that_rq_refuses_to_read_ends_no_worker(redis, id) -> None:
    queue = open_queue(redis)
    before = queue.enqueue(chores.add, 1, 2)
    redis.hset(b"rq:job:" + id, mapping={"origin": "code", "status": "queued", "data": "[]"})
    redis.rpush(queue.key, id)
    after = queue.enqueue(chores.add, 1, 3)
    burst(redis)
    assert [before.return_value(), after.return_value()] == [3, 4]
    assert nothing_left(redis) == {}


def test_jobs_that_are_dropped_can_be_found_with_the_reason(redis, caplog) -> None:
    queue = open_queue(redis)
    for id in ("report:42", "a.b"):  # as RQ 1 has taken them
        redis.hset(f"rq:job:{id}", mapping={"origin": "code", "status": "queued", "data": "[]"})
        redis.rpush(queue.key, id)
    over, gone = (queue.enqueue(chores.add, 1, n) for n in range(2))
    redis.hset(over.key, "status", "finished")
    redis.delete(gone.key)
    worker = burst(redis)
    dropped = dropped_of(redis, "code")
    assert [(one.job, one.why) for one in dropped] == [
        (gone.id, "gone"), (over.id, "over"), ("a.b", "id"), ("report:42", "id"),
    ]  # fmt: skip
    assert {one.worker for one in dropped} == {worker.name}
    assert f"'report:42' ({REASONS['id']})" in caplog.text
    assert redis.hget("rq:job:report:42", "status") == b"failed"
    assert redis.zscore("rq:failed:code", "report:42") is not None
    assert redis.hget("penstock:work:{code}", "dropped") == b"4"


def test_an_idle_worker_gets_behind_any_number_of_dropped_jobs(redis) -> None:
    queue = open_queue(redis)
    redis.rpush(queue.key, *(f"gone-{n}" for n in range(1200)))  # more than a claim drops
    job = queue.enqueue(chores.add, 1, 2)
    with at_work(redis):
        until(lambda: job.get_status() == "finished", "the job behind them")
    assert redis.hget("penstock:work:{code}", "dropped") == b"1200"


def test_a_job_that_is_enqueued_under_the_id_of_a_running_one_is_dropped_and_can_be_found(
    redis,
) -> None:
    queue, mine = open_queue(redis), commands_of("me", lease=60.0)
    first = queue.enqueue(chores.add, 1, 2, job_id="nightly")
    assert len(ask(redis, mine.claim(1))) == 4 + 1
    queue.enqueue(chores.add, 5, 6, job_id="nightly")
    assert ask(redis, mine.claim(1))[4:] == [[b"nightly", b"running"]]
    assert [(one.job, one.why) for one in dropped_of(redis, "code")] == [(first.id, "running")]


def test_a_result_that_is_refused_can_be_found(redis) -> None:
    job = open_queue(redis).enqueue(chores.add, 1, 2)
    mine = commands_of("me")
    ((id, execution, *_),) = ask(redis, mine.claim(1))[4:]
    redis.hset(job.key, "penstock_execution", "another")
    ask(redis, mine.finish([(id, execution, "1", 60, "", "0", "", "", 0)]))
    assert [(one.job, one.why) for one in dropped_of(redis, "code")] == [(job.id, "refused")]


@pytest.mark.parametrize("spoil", SPOILED, ids=lambda spoil: spoil.__name__)
def test_the_neighbours_of_a_spoiled_job_are_taken_from_a_dead_worker(redis, spoil) -> None:
    queue = open_queue(redis)
    before, spoiled, after = [queue.enqueue(chores.add, 1, n) for n in range(3)]
    dead = commands_of("dead", lease=0.0)
    assert len(ask(redis, dead.claim(10))) == 4 + 3
    spoil(redis, spoiled.id)
    redis.zadd(dead.leases, {"no execution at all": 1})
    ask(redis, commands_of("alive").reap(3))
    assert redis.zcard(dead.leases) == 0
    assert redis.lrange(queue.key, 0, -1)[0] == before.id.encode()
    assert redis.lrange(queue.key, 0, -1)[-1] == after.id.encode()
    burst(redis)
    assert [before.return_value(), after.return_value()] == [1, 3]


def test_a_job_whose_shares_list_is_spoiled_is_taken_from_a_dead_worker(redis) -> None:
    """It goes to the queue's own list."""
    queue = open_queue(redis)
    jobs = [queue.enqueue(chores.add, 1, n) for n in range(2)]
    dead = commands_of("dead", lease=0.0)
    ask(redis, dead.claim(10))
    redis.hset(jobs[0].key, "penstock_share", "a")
    redis.set("rq:queue:code~a", "a string, where a list is meant")
    assert ask(redis, commands_of("alive").reap(3))[:2] == [2, 0]
    burst(redis)
    assert [job.return_value() for job in jobs] == [1, 2]


@pytest.mark.parametrize("spoil", SPOILED, ids=lambda spoil: spoil.__name__)
def test_a_spoiled_job_keeps_nobody_from_their_heartbeats(redis, spoil) -> None:
    queue = open_queue(redis)
    jobs = [queue.enqueue(chores.add, 1, n) for n in range(3)]
    mine = commands_of("me")
    rows = [(id, execution, 0, 0) for id, execution, *_ in ask(redis, mine.claim(10))[4:]]
    spoil(redis, jobs[1].id)
    assert ask(redis, mine.beat("2026-01-01T00:00:00Z", rows)) == [1, 1, 1]
    held = [(id, execution, 0) for id, execution, *_ in rows]
    assert ask(redis, mine.give_back(held, leaving=True))[0] >= 2


def test_a_job_ends_in_rqs_way_though_its_callers_inbox_is_no_stream(redis) -> None:
    queue = open_queue(redis)
    job = queue.enqueue(chores.fail, "x")
    dependent = queue.enqueue(chores.add, 1, 2, depends_on=Dependency(job, allow_failure=True))
    redis.set("inbox", "a string, where a stream is meant")
    redis.hset(job.key, "penstock_reply_to", "inbox")
    burst(redis)
    assert (job.get_status(), dependent.return_value()) == ("failed", 3)
    assert redis.hget("penstock:work:{code}", "failed") == b"1"
    assert nothing_left(redis) == {}


def test_what_many_dead_workers_had_in_hand_comes_back(redis) -> None:
    """More than one call looks through, and dead for so long that they are forgotten."""
    ids = [f"job-{n:03}" for n in range(450)]
    alive = commands_of("alive")
    for n, id in enumerate(ids):
        dead = commands_of(f"dead-{n:03}")
        redis.hset(f"rq:job:{id}", mapping={"origin": "code", "status": "queued"})
        redis.rpush(dead.hand, id)
        redis.zadd("penstock:work:{code}:workers", {f"dead-{n:03}": 1})
    found = [ask(redis, alive.reap(3))[1] for _ in range(4)]
    assert sum(found) == 450
    assert max(found) < 450, "one call is to stay short"
    assert sorted(redis.lrange("rq:queue:code", 0, -1)) == [id.encode() for id in ids]
    assert redis.zcard("penstock:work:{code}:workers") == 0
    assert "hands" not in nothing_left(redis)


def test_a_dead_workers_hand_is_looked_into_for_a_minute(redis) -> None:
    """A server may put a job into it for as long as it takes the worker to be blocked."""
    dead, alive = commands_of("dead"), commands_of("alive")
    redis.zadd("penstock:work:{code}:workers", {"dead": int((time.time() - 30) * 1e6)})
    assert ask(redis, alive.reap(3))[:2] == [0, 0]
    redis.hset("rq:job:late", mapping={"origin": "code", "status": "queued"})
    redis.rpush(dead.hand, "late")
    assert ask(redis, alive.reap(3))[:2] == [0, 1]

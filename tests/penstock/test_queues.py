"""`penstock queues`: what waits, and the weights of shares."""

import json
import subprocess

import pytest

from tests.harness import commands
from tests.harness.servers import until
from tests.worker.concurrent import chores
from tests.worker.concurrent.crew import at_work, burst, open_queue
from worker import CodeQueue
from worker.queue.dropped_jobs import REASONS


@pytest.fixture
def queues(real_redis, shared_server):
    """Runs `penstock queues …` on the server of this test."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return commands.run(["queues", *arguments, "--redis-url", shared_server.url])

    return run


def rows(result: subprocess.CompletedProcess[str]) -> list[list[str]]:
    assert result.returncode == 0, result.stderr
    return [line.split() for line in result.stdout.splitlines()[1:]]


def test_a_queue_is_listed_with_the_jobs_of_all_its_shares(queues, real_redis) -> None:
    assert "no queue" in queues("ls").stderr
    queue = CodeQueue(real_redis, "code", abandon="keep").sync
    for share in ("training", "training", "evaluation", ""):
        queue.submit("1", share=share)
    (row,) = rows(queues("ls"))
    assert row[:4] == ["code", "4", "0", "0"]
    (listed,) = json.loads(queues("ls", "--json").stdout)
    assert (listed["name"], listed["depth"]) == ("code", 4)


def test_weights_are_set_and_shown_with_who_waits(queues, real_redis) -> None:
    queue = CodeQueue(real_redis, "code", abandon="keep").sync
    for n in range(4):
        queue.submit("1", share="training" if n else "evaluation")
    shown = rows(queues("share", "code", "training=4", "debug=0.5", "*=2", "=3"))
    assert shown == [
        ["training", "3", "4"], ["(none)", "1", "3"], ["debug", "0", "0.5"], ["*", "2"],
    ]  # fmt: skip
    assert {one.name: one.weight for one in queue.shares().shares} == {
        "training": 4, "": 3, "debug": 0.5,
    }  # fmt: skip
    ((_, noted),) = real_redis.xrange("penstock:audit")
    weights = '{"training": 4.0, "debug": 0.5, "*": 2.0, "": 3.0}'
    assert noted[b"what"].decode() == f"change queue: weights {weights}"
    forgotten = json.loads(queues("share", "code", "training=", "=", "--json").stdout)
    assert forgotten["others"] == 2
    assert [(one["name"], one["own"]) for one in forgotten["shares"]] == [
        ("training", False), ("debug", True),
    ]  # fmt: skip


def test_more_shares_than_fit_are_summed_up(queues, real_redis) -> None:
    queue = CodeQueue(real_redis, "code", abandon="keep").sync
    for n in range(5):
        for _ in range(2):
            queue.submit("1", share=f"run{n}")
    assert rows(queues("share", "code", "--most", "2"))[-1] == ["and", "3", "more"]


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("training", "NAME=WEIGHT"),
        ("training=many", "NAME=WEIGHT"),
        ("training=-1", "weight is 0"),
        ("training=nan", "weight is 0"),
        ("a b=1", "letters"),
    ],
)
def test_what_is_no_weight_is_refused_and_nothing_changes(queues, real_redis, word, said) -> None:
    result = queues("share", "code", "fine=2", word)
    assert (result.returncode, result.stdout) == (2, "")
    assert said in result.stderr
    assert CodeQueue(real_redis).sync.shares().shares == ()


def test_a_paused_queue_rests_until_it_is_resumed_and_both_are_noted(queues, real_redis) -> None:
    queue = open_queue(real_redis)
    with at_work(real_redis, job_lease=60.0):
        queue.enqueue(chores.add, 1, 2)
        until(lambda: real_redis.zcard("rq:finished:code") == 1, "the queue is known")
        assert queues("pause", "code").stdout == "code: paused\n"
        queue.enqueue(chores.add, 3, 4)
        assert rows(queues("ls"))[0][-1] == "paused"
        (shown,) = json.loads(queues("ls", "--json").stdout)
        assert shown["reason"] == "queue 'code' is paused"
        assert "`penstock queues resume code`" in shown["remedy"]
        assert queues("resume", "code").stdout == "code: resumed\n"
        until(lambda: real_redis.zcard("rq:finished:code") == 2, "the second job runs")
    noted = [change for _, change in real_redis.xrange("penstock:audit")]
    assert [(one[b"what"], one[b"target"], one[b"outcome"]) for one in noted] == [
        (b"pause queue", b"code", b"done"), (b"resume queue", b"code", b"done"),
    ]  # fmt: skip
    assert all(one[b"who"] and one[b"address"].startswith(b"queues on ") for one in noted)


def test_a_queue_that_had_no_job_yet_is_paused_if_a_worker_listens_to_it(
    queues, real_redis
) -> None:
    with at_work(real_redis, job_lease=60.0):
        until(lambda: rows(queues("ls"))[:1], "its worker is listed")
        assert queues("pause", "code").stdout == "code: paused\n"
    assert real_redis.hget("penstock:work:{code}", "paused") == b"1"


def test_a_queue_that_nobody_used_is_not_paused(queues, real_redis) -> None:
    result = queues("pause", "none")
    assert (result.returncode, result.stdout) == (1, "")
    assert "there is no queue 'none'" in result.stderr
    assert not real_redis.exists("penstock:work:{none}")


def test_jobs_that_were_dropped_are_listed_with_the_reason(queues, real_redis) -> None:
    assert "no job was dropped" in queues("dropped", "code").stderr
    queue = open_queue(real_redis)
    for n in range(2):
        real_redis.delete(queue.enqueue(chores.add, 1, n, job_id=f"job-{n}").key)
    burst(real_redis)
    assert [row[0] for row in rows(queues("dropped", "code"))] == ["job-1", "job-0"]
    assert REASONS["gone"] in queues("dropped", "code").stdout
    (latest,) = json.loads(queues("dropped", "code", "--most", "1", "--json").stdout)
    assert (latest["job"], latest["why"]) == ("job-1", "gone")

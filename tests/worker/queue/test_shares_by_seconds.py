"""Shares that are charged for the time that their jobs run."""

from collections import Counter
from collections.abc import Callable

import pytest

from ground import SettingError
from ground.redis.connect import target_of
from tests.worker.queue.shares_alone import SharesAlone
from worker import CodeQueue

SLOW, QUICK = 10.0, 1.0


@pytest.fixture
def alone(redis) -> SharesAlone:
    alone = SharesAlone(redis, target_of(redis))
    alone.weigh({}, by="seconds")
    return alone


def seconds_by_share(
    alone: SharesAlone, jobs: int, end: Callable[[SharesAlone, float], None] = SharesAlone.finish
) -> Counter[str]:
    """One job at a time, each as slow as its share's are."""
    spent: Counter[str] = Counter()
    for _ in range(jobs):
        (id,) = alone.claim()
        share = alone.of_jobs[id]
        end(alone, SLOW if share == "slow" else QUICK)
        spent[share] += SLOW if share == "slow" else QUICK
    return spent


def test_shares_get_the_time_of_workers_by_weight(alone):
    alone.weigh({"slow": 2})
    alone.enqueue("slow", 100)
    alone.enqueue("quick", 300)
    spent = seconds_by_share(alone, 240)
    assert abs(spent["slow"] - 2 * spent["quick"]) <= 3 * SLOW


def test_what_is_cancelled_is_charged_for_what_it_ran(alone):
    alone.enqueue("slow", 60)
    alone.enqueue("quick", 150)
    spent = seconds_by_share(alone, 120, SharesAlone.stop)
    assert abs(spent["slow"] - spent["quick"]) <= 3 * SLOW


def test_jobs_without_a_share_are_charged_too(alone):
    alone.enqueue("slow", 100)
    alone.enqueue("", 300)
    spent = seconds_by_share(alone, 220)
    assert abs(spent["slow"] - spent[""]) <= 3 * SLOW


def test_a_share_that_left_owes_what_its_jobs_took_longer_while_others_wait(alone):
    alone.enqueue("quick", 200)
    spent: Counter[str] = Counter()
    for _ in range(200):  # a job at a time: it never has a backlog
        if alone.client.llen("rq:queue:code~slow") == 0:
            alone.enqueue("slow", 1)
        spent += seconds_by_share(alone, 1)
    assert abs(spent["slow"] - spent["quick"]) <= 4 * SLOW


def test_shares_that_come_and_go_are_not_remembered_for_good(alone):
    """Each takes longer than it was charged for, and leaves ahead of the others."""
    alone.enqueue("backlog", 200)
    for n in range(40):
        alone.enqueue(f"run{n}")
        for _ in range(3):
            (id,) = alone.claim()
            alone.finish(QUICK if id.startswith("backlog") else 2 * QUICK)
    assert alone.client.zcard("penstock:work:{code}:idle") < 10


def test_a_job_given_back_is_charged_once(alone):
    alone.enqueue("slow", 100)
    alone.enqueue("quick", 300)
    for _ in range(30):
        alone.claim(4)
        alone.give_back()
    spent = seconds_by_share(alone, 220)
    assert abs(spent["slow"] - spent["quick"]) <= 3 * SLOW


def test_by_jobs_again_it_is_the_number_that_counts(alone):
    alone.enqueue("slow", 100)
    alone.enqueue("quick", 100)
    seconds_by_share(alone, 20)
    alone.weigh({}, by="jobs")
    served = alone.claimed_by_share(60)
    assert abs(served["slow"] - 30) <= 3


def test_what_is_charged_can_be_read_and_is_one_of_two(redis):
    queue = CodeQueue(redis).sync
    assert queue.shares().by == "jobs"
    queue.set_weights({"training": 2}, by="seconds")
    now = queue.shares()
    assert (now.by, [one.name for one in now.shares]) == ("seconds", ["training"])
    with pytest.raises(SettingError, match=r"by.*'jobs' or 'seconds'"):
        queue.set_weights({"training": 3}, by="minutes")
    assert queue.shares().shares[0].weight == 2

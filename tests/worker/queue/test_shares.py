"""Shares of a queue: workers serve them in turn, by weight; RQ sees all that waits."""

import asyncio
import math
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rq import Queue, SimpleWorker
from rq.serializers import JSONSerializer

from ground import SettingError
from ground.redis.connect import connect_async, target_of
from penstock.fleet.work import read_queues
from tests.worker.concurrent.crew import at_work, burst, open_queue
from tests.worker.queue.shares_alone import SharesAlone
from tests.worker.scripted_answers import Answer
from worker import CodeQueue
from worker.errors import JobCancelled, NoWorkers


@pytest.fixture
def alone(redis) -> SharesAlone:
    return SharesAlone(redis, target_of(redis))


def test_a_small_share_waits_behind_no_backlog(alone):
    alone.enqueue("sweep", 100)
    alone.claim(50)
    alone.enqueue("evaluation", 3)
    assert alone.claimed_by_share(8)["evaluation"] == 3


def test_shares_with_jobs_are_served_by_weight(alone):
    alone.weigh({"training": 4, "evaluation": 1, "debug": 0.5})
    for share in ("training", "evaluation", "debug"):
        alone.enqueue(share, 90)
    served = alone.claimed_by_share(110)
    for share, weight in {"training": 4, "evaluation": 1, "debug": 0.5}.items():
        assert abs(served[share] - 110 * weight / 5.5) <= 1 + 0.01 * 110 * weight / 5.5


def test_a_thousand_jobs_are_divided_by_weight_however_many_are_claimed_at_once(alone):
    weights = {"training": 5.0, "evaluation": 2.0, "sweep": 1.0, "debug": 0.3}
    alone.weigh(weights)
    due = {share: 1000 * weight / sum(weights.values()) for share, weight in weights.items()}
    for share in weights:
        alone.enqueue(share, int(due[share]) + 10)
    alone.claim()  # it lay at the front before the other shares came
    served = alone.claimed_by_share(1000, at_once=50)
    for share, jobs in due.items():
        assert abs(served[share] - jobs) <= 1 + 0.01 * jobs


def test_what_was_enqueued_without_a_share_is_a_share_too(alone):
    alone.enqueue("", 60)
    alone.enqueue("training", 60)
    served = alone.claimed_by_share(60)
    assert abs(served[""] - 30) <= 2


def test_jobs_of_one_share_keep_their_order(alone):
    ids = [order.id for order in alone.enqueue("training", 20)]
    alone.enqueue("evaluation", 20)
    claimed = [id for _ in range(40) for id in alone.claim()]
    assert [id for id in claimed if id.startswith("training")] == ids


def test_a_cancelled_backlog_owes_nothing(alone):
    gone = alone.enqueue("alice", 100)
    alone.enqueue("bob", 100)
    alone.claim(10)
    alone.withdraw(gone)
    alone.enqueue("alice", 60)
    served = alone.claimed_by_share(80)
    assert abs(served["alice"] - 40) <= 6  # five were served before


@pytest.mark.parametrize("share", ["", "alice"])
def test_many_cancellations_read_a_long_queue_once(real_redis, share):
    alone = SharesAlone(real_redis, target_of(real_redis))
    orders = alone.enqueue(share, 2500)
    gone = orders[1::20]
    real_redis.config_resetstat()
    alone.withdraw(gone)
    calls = {name: used["calls"] for name, used in real_redis.info("commandstats").items()}
    assert calls["cmdstat_lrem"] <= 2
    assert calls["cmdstat_lrange"] <= 4
    kept = [order.id for order in orders if order not in gone]
    assert [id for ids in alone.listed().values() for id in ids] == kept


def test_what_rq_itself_cancels_is_not_charged(alone):
    orders = alone.enqueue("alice", 90)
    alone.enqueue("bob", 90)
    queue = open_queue(alone.client)
    for order in orders[1:50]:
        job = queue.job_class.fetch(order.id, connection=alone.client, serializer=JSONSerializer)
        job.cancel()
    served = alone.claimed_by_share(60)
    assert abs(served["alice"] - 30) <= 2


def test_weights_turn_at_once(alone):
    alone.enqueue("alice", 120)
    alone.enqueue("bob", 120)
    alone.claimed_by_share(20)
    alone.weigh({"alice": 9})
    assert abs(alone.claimed_by_share(60)["alice"] - 54) <= 2
    alone.weigh({"alice": None})
    assert abs(alone.claimed_by_share(40)["alice"] - 20) <= 2


def test_a_share_with_weight_0_is_served_when_no_other_waits(alone):
    alone.weigh({"spare": 0})
    alone.enqueue("spare", 20)
    alone.enqueue("training", 20)
    served = [alone.of_jobs[id] for _ in range(40) for id in alone.claim()]
    assert served.index("spare") == 0  # it was alone when it came
    assert served[1:21] == ["training"] * 20
    assert served[21:] == ["spare"] * 19


def test_a_weight_given_to_one_that_had_none_counts_at_once(alone):
    alone.weigh({"spare": 0})
    alone.enqueue("spare", 100)
    alone.enqueue("training", 100)
    alone.claim()
    alone.weigh({"spare": 1})
    assert abs(alone.claimed_by_share(50)["spare"] - 25) <= 2


def test_a_share_with_a_small_weight_need_not_wait_for_its_old_turn(alone):
    alone.weigh({"small": 0.001})
    alone.enqueue("small", 60)
    alone.enqueue("training", 200)
    alone.claimed_by_share(20)
    alone.weigh({"small": 1})
    assert abs(alone.claimed_by_share(60)["small"] - 30) <= 2


def test_a_share_that_was_never_served_for_weight_0_gets_nothing_back(alone):
    alone.weigh({"spare": 0})
    alone.enqueue("training", 300)
    alone.enqueue("spare", 100)
    alone.claimed_by_share(100)
    alone.weigh({"*": 2, "spare": None})
    assert abs(alone.claimed_by_share(60)["spare"] - 30) <= 2


def test_what_comes_back_of_weight_0_stays_behind_the_others(alone):
    alone.weigh({"spare": 0})
    alone.enqueue("spare", 30)
    alone.claim(10)
    alone.give_back()
    alone.enqueue("training", 20)
    served = [alone.of_jobs[id] for _ in range(49) for id in alone.claim()]
    assert served[1:21] == ["training"] * 20  # one lay at the front of the queue
    alone.enqueue("late", 5)
    assert alone.claimed_by_share(5)["late"] >= 4


def test_jobs_given_back_are_the_next_of_their_share_and_charged_once(alone):
    alone.enqueue("alice", 100)
    alone.enqueue("bob", 100)
    first = alone.claim(10)
    alone.give_back()
    again = alone.claim(10)
    assert len(set(again) & set(first)) >= 9  # one lay at the front of the queue
    served = Counter(alone.of_jobs[id] for id in again) + alone.claimed_by_share(90)
    assert abs(served["alice"] - 50) <= 2


def test_rq_sees_all_that_waits_and_no_empty_share(alone):
    alone.enqueue("alice", 5)
    alone.enqueue("bob", 2)
    alone.enqueue("", 1)
    listed = alone.listed()
    assert set(listed) == {"code", "code~alice", "code~bob"}
    assert alone.waiting() == 8
    alone.claim(8)
    assert alone.listed() == {"code": []}


def test_the_fleet_shows_one_queue_with_all_its_shares(real_redis):
    alone = SharesAlone(real_redis, target_of(real_redis))
    alone.enqueue("alice", 5)
    first, _ = alone.enqueue("bob", 2)
    real_redis.hset(f"rq:job:{first.id}", "enqueued_at", "2026-01-01T00:00:00.000000Z")

    async def read():
        client = connect_async(target_of(real_redis))
        try:
            return await read_queues(client, [], datetime(2026, 1, 2, tzinfo=UTC).timestamp())
        finally:
            await client.aclose()

    (queue,) = asyncio.run(read())
    assert (queue.name, queue.depth) == ("code", 7)
    assert queue.oldest == 86_400


def test_the_front_of_the_queue_is_fed_for_rqs_own_workers(alone):
    alone.client.sadd("rq:workers:code", "rq:worker:stock")
    alone.enqueue("alice", 50)
    alone.enqueue("bob", 50)
    popped = []
    for _ in range(40):
        popped.append(alone.client.lpop("rq:queue:code").decode())
        alone.enqueue("carol")  # whoever changes something feeds
    served = Counter(alone.of_jobs[id] for id in popped)
    assert max(served.values()) - min(served.values()) <= 4  # what lay there at first, and a turn


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("enqueue"), st.sampled_from(["", "a", "b", "c"]), st.integers(1, 6)),
            st.tuples(st.just("claim"), st.just(""), st.integers(1, 7)),
            st.tuples(st.just("give_back"), st.just(""), st.just(0)),
            st.tuples(
                st.just("withdraw"), st.sampled_from(["", "a", "b", "c"]), st.integers(1, 12)
            ),
            st.tuples(st.just("weigh"), st.sampled_from(["a", "b", "*"]), st.integers(0, 5)),
            st.tuples(st.just("pop"), st.just(""), st.just(0)),  # by a worker of RQ's own
        ),
        max_size=40,
    )
)
def test_whatever_happens_each_job_is_served_once_and_listed_until_then(redis, steps):
    redis.flushdb()
    alone = SharesAlone(redis, target_of(redis))
    wait: dict[str, object] = {}
    held: list[str] = []
    for what, share, number in steps:
        if what == "enqueue":
            wait |= {order.id: order for order in alone.enqueue(share, number)}
        elif what == "claim":
            held = alone.claim(number)
            assert len(held) == min(number, len(wait))
            assert all(wait.pop(id) for id in held)
        elif what == "give_back" and held:
            alone.give_back()
            wait |= dict.fromkeys(held, True)
            held = []
        elif what == "withdraw":
            gone = [o for id, o in wait.items() if o is not True and alone.of_jobs[id] == share]
            alone.withdraw(gone[:number])
            for order in gone[:number]:
                del wait[order.id]
        elif what == "weigh":
            alone.weigh({share: number})
        elif what == "pop" and (id := alone.client.lpop("rq:queue:code")):
            assert wait.pop(id.decode())
        listed = alone.listed()
        assert sorted(id for ids in listed.values() for id in ids) == sorted(wait)
        assert all(ids for name, ids in listed.items() if name != "code")
        places = alone.client.zrange("penstock:work:{code}:shares", 0, -1)
        backlogged = {name.partition("~")[2].encode() for name in listed if name != "code"}
        assert set(places) - {b""} == backlogged


# With clients and workers


def test_run_under_shares_ends_with_results(redis, fusion):
    queue = CodeQueue(redis, "code", share="training")

    async def story():
        with at_work(redis, concurrency=4):
            mine = queue.run_many(["print(42)"] * 20)
            theirs = asyncio.gather(
                *(queue.run("print(42)", share="evaluation") for _ in range(20))
            )
            return [*await mine, *await theirs]

    results = asyncio.run(story())
    assert [each.stdout for each in results] == ["42\n"] * 40


def test_an_idle_worker_starts_a_shared_job_as_it_comes(redis, fusion):
    queue = CodeQueue(redis, "code", share="training", no_workers_after=600)
    with at_work(redis, concurrency=2):
        for _ in range(5):  # each finds the worker parked
            assert queue.sync.run("print(42)", timeout=60).ok


def test_two_idle_workers_take_up_what_comes_at_once(redis, fusion):
    queue = CodeQueue(redis, "code")
    fusion.script.extend([Answer.ok("42\n", seconds=math.inf)] * 2)
    with (
        at_work(redis, concurrency=1),
        at_work(redis, concurrency=1),
        ThreadPoolExecutor(1) as trainer,
    ):
        ran = trainer.submit(queue.sync.run_many, ["print(42)"] * 6, share="training")
        fusion.wait_until(lambda: fusion.in_flight == 2)
        fusion.finish_held()
        assert len(ran.result(100)) == 6
    workers = {redis.hget(key, "worker_name") for key in redis.keys("rq:job:*")}
    assert len(workers) == 2


def test_rqs_own_worker_runs_all_shares(real_redis, fusion):
    queue = CodeQueue(real_redis, "code", abandon="keep")
    with_share = [queue.sync.submit("print(42)", share=share) for share in ("a", "b") * 3]
    stock = SimpleWorker(
        [Queue("code", connection=real_redis, serializer=JSONSerializer)],
        connection=real_redis, serializer=JSONSerializer,
    )  # fmt: skip
    stock.work(burst=True, logging_level="WARNING")
    assert all(handle.result(timeout=60).ok for handle in with_share)


def test_a_job_requeued_by_rq_runs(redis, fusion):
    queue = CodeQueue(redis, "code", retries=0, abandon="keep")
    handle = queue.sync.submit("print(42)", token="again", share="training")
    handle.cancel()
    with pytest.raises(JobCancelled):
        handle.result(timeout=60)
    job = open_queue(redis).fetch_job("again")
    open_queue(redis).enqueue_job(job)  # as `rq requeue` does
    burst(redis)
    assert redis.hget("rq:job:again", "status") == b"finished"


@pytest.mark.parametrize("share", ["a b", "~", "-a", "a" * 65, "a\n"])
def test_a_share_that_is_no_name_is_refused(redis, share):
    with pytest.raises(SettingError, match="share"):
        CodeQueue(redis, share=share)
    with pytest.raises(SettingError, match="share"):
        CodeQueue(redis).sync.run("1", share=share)


def test_a_share_that_is_not_named_is_that_of_the_process(alone, monkeypatch):
    monkeypatch.setenv("PENSTOCK_SHARE", "training")
    for share in (None, "", "evaluation"):
        queue = CodeQueue(alone.client, "code", abandon="keep", share=share).sync
        queue.submit("1", token=f"by-{share}")
    shares = [alone.share_of(f"by-{share}") for share in (None, "", "evaluation")]
    assert shares == ["training", "", "evaluation"]


def test_a_share_of_the_process_that_is_no_name_is_refused_by_its_variable(redis, monkeypatch):
    monkeypatch.setenv("PENSTOCK_SHARE", "a b")
    with pytest.raises(SettingError, match=r"PENSTOCK_SHARE.*letters"):
        CodeQueue(redis)


@pytest.mark.parametrize("weight", [-1, math.nan, math.inf, 1e9, 1e-9, "4", True])
def test_a_weight_that_is_none_is_refused_and_nothing_changes(redis, weight):
    queue = CodeQueue(redis).sync
    with pytest.raises(SettingError, match=r"weights.*a weight is 0"):
        queue.set_weights({"fine": 2, "wrong": weight})
    assert queue.shares().shares == ()


def test_more_weights_than_a_queue_can_have_are_refused_and_nothing_changes(alone):
    alone.client.hset("penstock:work:{code}:weights", mapping={f"a{n}": 1 for n in range(9_999)})
    alone.weigh({"a1": 2, "one-more": 1})
    with pytest.raises(SettingError, match=r"weights.*'\*'"):
        alone.weigh({"a1": 3, "too-many": 1})
    assert alone.client.hget("penstock:work:{code}:weights", "a1") == b"2.0"


def test_who_waits_and_the_weights_can_be_read(redis):
    queue = CodeQueue(redis)
    asyncio.run(queue.set_weights({"training": 4, "*": 2}))
    queue.sync.submit("1", share="evaluation")
    queue.sync.submit("1", share="evaluation")
    now = asyncio.run(queue.shares())
    assert now.others == 2
    assert now.waiting == 1
    assert [(s.name, s.waiting, s.weight, s.own) for s in now.shares] == [
        ("evaluation", 1, 2, False),  # the other one is at the front of the queue
        ("training", 0, 4, True),
    ]


def test_shares_without_jobs_are_forgotten(alone):
    for at in range(300):
        alone.enqueue(f"run{at}")
    while alone.claim(500):
        pass
    assert alone.listed() == {"code": []}
    left = alone.client.zcard("penstock:work:{code}:shares")
    assert left == 0
    alone.enqueue("last", 3)
    alone.claim(3)
    assert alone.client.zcard("penstock:work:{code}:idle") <= 1


async def test_callers_without_a_worker_cost_the_same_however_many_shares_wait(real_redis):
    """Each look of a caller counted the jobs of every share: ten thousand kept Redis busy."""
    queue = CodeQueue(target_of(real_redis), "code", abandon="keep", no_workers_after=0.1)
    await asyncio.gather(*(queue.submit("print(1)", share=f"s{n}") for n in range(300)))
    real_redis.config_resetstat()
    with pytest.raises(NoWorkers, match="and 301 jobs wait"):
        await queue.run("print(1)", share="s1")
    calls = {name: said["calls"] for name, said in real_redis.info("commandstats").items()}
    assert calls["cmdstat_llen"] <= 110 * calls["cmdstat_evalsha"]

"""What RQ's own commands do to the lists of shares, and what they leave."""

import pytest
from rq import Queue, Retry
from rq.serializers import JSONSerializer

from ground.redis.connect import target_of
from tests.worker.concurrent import chores
from tests.worker.concurrent.crew import burst, new_worker, open_queue
from tests.worker.queue.shares_alone import SharesAlone


@pytest.fixture
def alone(redis) -> SharesAlone:
    return SharesAlone(redis, target_of(redis))


def share_as_queue(alone: SharesAlone, share: str) -> Queue:
    return Queue(f"code~{share}", connection=alone.client, serializer=JSONSerializer)


def claimed(alone: SharesAlone) -> list[str]:
    return [id for _ in range(100) for id in alone.claim(50)]


def test_a_share_that_rq_empties_is_not_served_and_owes_nothing(alone):
    alone.enqueue("alice", 9)
    alone.enqueue("bob", 40)
    share_as_queue(alone, "alice").empty()
    assert alone.waiting() == 41  # of alice's, one lay at the front of the queue
    assert len(claimed(alone)) == 40 + alone.client.exists("rq:job:alice_0")
    alone.enqueue("alice", 60)
    alone.enqueue("bob", 60)
    assert abs(alone.claimed_by_share(60)["alice"] - 30) <= 2


@pytest.mark.parametrize("served_meanwhile", [False, True])
def test_a_share_that_rq_compacts_loses_no_job(alone, served_meanwhile):
    """RQ empties the list, and puts its jobs there again one by one; a worker may look between."""
    orders = alone.enqueue("alice", 20)
    alone.enqueue("bob", 5)
    queue = share_as_queue(alone, "alice")
    alone.client.rename(queue.key, "rq:queue:_compact")
    done = claimed(alone) if served_meanwhile else []
    while id := alone.client.lpop("rq:queue:_compact"):
        alone.client.rpush(queue.key, id)
    alone.reap()
    assert sorted(done + claimed(alone)) == sorted(alone.of_jobs)
    assert alone.listed()["code"] == []
    assert len(orders) == 20


def test_a_queue_whose_name_looks_like_a_share_is_not_served_by_workers_of_another(redis):
    gpu = open_queue(redis, "code~gpu")
    job = gpu.enqueue(chores.add, 1, 2)
    burst(redis, "code")
    assert gpu.job_ids == [job.id]
    burst(redis, "code~gpu")
    assert job.return_value() == 3


def test_a_job_that_runs_again_waits_under_its_share(alone):
    """RQ puts it into the queue's list, which has no share."""
    alone.enqueue("alice", 10)
    alone.claim(10)
    alone.run_again()
    alone.weigh({"alice": 0})
    alone.enqueue("bob", 20)
    assert alone.claimed_by_share(20) == {"bob": 20}
    assert alone.claimed_by_share(10) == {"alice": 10}
    alone.run_again()
    alone.enqueue("bob", 5)
    assert alone.claimed_by_share(5) == {"bob": 5}
    assert alone.claimed_by_share(1) == {"alice": 1}
    assert alone.waiting() == 0


def test_a_job_of_one_of_rqs_workers_waits_under_its_share_too(alone):
    """Of a claim by us it knows nothing."""
    (order,) = alone.enqueue("alice")
    queue = Queue("code", connection=alone.client, serializer=JSONSerializer)
    assert alone.client.lpop(queue.key) == order.id.encode()
    job = queue.fetch_job(order.id)
    job.prepare_for_execution("stock", alone.client.pipeline())
    queue._enqueue_job(job)
    alone.weigh({"alice": 0})
    alone.enqueue("bob", 3)
    assert alone.claimed_by_share(4) == {"bob": 3, "alice": 1}
    assert alone.claim() == []


def test_a_workers_own_retry_is_the_last_of_its_share_before_anybody_claims(real_redis):
    queue = open_queue(real_redis)
    first, second = (queue.enqueue(chores.add, 1, "x", retry=Retry(max=1)) for _ in range(2))
    for job in (first, second):
        real_redis.hset(job.key, "penstock_share", "alice")
    for _ in range(2):
        new_worker(real_redis).work(burst=True, max_jobs=1, logging_level="WARNING")
    assert [real_redis.hget(job.key, "penstock_again") for job in (first, second)] == [b"1"] * 2
    listed = [id.decode() for id in real_redis.lrange("rq:queue:code", 0, -1)]
    listed += [id.decode() for id in real_redis.lrange("rq:queue:code~alice", 0, -1)]
    assert listed == [first.id, second.id]
    burst(real_redis)
    assert {job.get_status() for job in (first, second)} == {"failed"}


def test_a_job_that_runs_again_alone_is_claimed_at_once(alone):
    (order,) = alone.enqueue("alice")
    for _ in range(3):
        assert alone.claim() == [order.id]
        alone.run_again()
    assert alone.claim() == [order.id]
    assert not alone.client.hexists(f"rq:job:{order.id}", "penstock_again")
    kept = {key.decode().rpartition(":")[2] for key in alone.client.keys("penstock:work:{code}:*")}
    assert not kept & {"shares", "idle", "clock"}


def test_a_job_that_rq_deletes_is_not_run(alone):
    orders = alone.enqueue("alice", 3)
    alone.enqueue("bob", 1)
    queue = Queue("code", connection=alone.client, serializer=JSONSerializer)
    queue.fetch_job(orders[2].id).delete()
    assert orders[2].id not in claimed(alone)
    assert alone.waiting() == 0


def test_all_queues_that_rq_lists_together_have_every_job_once(alone):
    for share in ("", "alice", "bob", "carol"):
        alone.enqueue(share, 7)
    alone.claim(5)
    queues = Queue.all(connection=alone.client, serializer=JSONSerializer)
    assert sum(queue.count for queue in queues) == 23
    ids = [id for queue in queues for id in queue.job_ids]
    assert len(set(ids)) == 23


def test_cancelled_jobs_leave_room_for_the_next_in_turn(alone):
    """RQ's own worker takes from the queue's list alone: that must not stay empty."""
    alone.client.sadd("rq:workers:code", "rq:worker:stock")
    ahead = alone.enqueue("alice", 3)
    alone.enqueue("bob", 10)
    alone.withdraw(ahead)
    assert alone.client.llen("rq:queue:code") == 3


def test_a_worker_of_ours_that_died_does_not_count_as_one_of_rqs(alone):
    for n in range(20):
        alone.client.zadd("penstock:work:{code}:workers", {f"gone{n}": 1})
        alone.client.sadd("rq:workers:code", f"rq:worker:gone{n}")
    alone.reap()
    alone.enqueue("alice", 50)
    assert alone.client.llen("rq:queue:code") == 1


def test_thousands_of_rqs_workers_are_no_reason_to_serve_thousands_ahead(alone):
    alone.client.sadd("rq:workers:code", *(f"rq:worker:stock{n}" for n in range(9000)))
    alone.enqueue("alice", 1200)
    assert alone.client.llen("rq:queue:code") == 1001


def test_of_a_million_shares_most_wait_without_one(alone):
    """Each share is a queue to RQ. The job beyond the bound runs, and is no share's."""
    places = {f"run{n}": n for n in range(10_000)}
    alone.client.zadd("penstock:work:{code}:shares", places)
    (order,) = alone.enqueue("one-more")
    assert alone.share_of(order.id) == ""
    assert alone.listed() == {"code": [order.id]}
    assert alone.claim(1) == [order.id]
    alone.client.delete("penstock:work:{code}:shares")
    (order,) = alone.enqueue("one-more")
    assert alone.share_of(order.id) == "one-more"


def test_when_all_has_been_served_only_weights_are_kept(alone):
    alone.weigh({"alice": 3})
    alone.enqueue("alice", 5)
    alone.enqueue("bob", 5)
    alone.enqueue("", 5)
    claimed(alone)
    kept = {key.decode().rpartition(":")[2] for key in alone.client.keys("penstock:work:{code}:*")}
    assert kept & {"shares", "idle", "clock", "weights"} == {"weights"}

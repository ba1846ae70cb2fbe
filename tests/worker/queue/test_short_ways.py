"""Where the queue path saves a way, nothing is lost on it."""

import asyncio
from typing import Any

from rq.job import Job

from ground.redis.connect import target_of
from tests.harness.servers import blocked
from tests.worker.concurrent import chores
from tests.worker.concurrent.crew import burst, nothing_left, open_queue
from tests.worker.queue.orders_alone import Heard, order_of, orders_alone, said
from worker.concurrent.commands import Claim, WorkCommands
from worker.concurrent.parking import Parking


def test_a_notice_may_overtake_the_reply_to_its_enqueue() -> None:
    orders, answer = orders_alone(), Heard()
    order = order_of("job-1", orders)
    order.answers.append(answer)
    orders.add(order)
    (enqueue,) = said(orders)
    orders.read_entries([{b"job": b"job-1", b"status": b"finished", b"result": b"{}"}])
    assert orders.engine.settled == [(answer, b"{}")]
    enqueue.read([b"new"], 0.0)
    assert not orders.waiting
    assert len(orders.engine.settled) == 1


async def test_what_wakes_a_parked_worker_is_claimed_already(real_redis) -> None:
    parking, commands, job = await _woken(real_redis, wanted=1)
    claim = parking.brought()
    assert claim is not None
    assert [taken[0].decode() for taken in claim.jobs] == [job.id]
    assert job.get_status() == "started"
    assert not real_redis.exists(commands.hand)
    assert parking.brought() is None, "it is handed out once"
    await parking.close()


async def test_where_there_is_no_room_the_job_stays_in_the_hand(real_redis) -> None:
    parking, commands, job = await _woken(real_redis, wanted=0)
    assert parking.brought() is None
    assert real_redis.lrange(commands.hand, 0, -1) == [job.id.encode()]
    await parking.close()


async def test_what_is_claimed_as_a_worker_leaves_is_not_lost(real_redis) -> None:
    parking, _ = await _parked(real_redis, asyncio.Event(), wanted=1)
    jobs = [open_queue(real_redis).enqueue(chores.add, 1, 2) for _ in range(2)]
    await parking.leave()
    claim = parking.brought() or Claim(0.0, 0.0, 0, suspended=False, shut=False, jobs=[])
    held = [taken[0].decode() for taken in claim.jobs]
    waiting = [id.decode() for id in real_redis.lrange("rq:queue:code", 0, -1)]
    assert held + waiting == [job.id for job in jobs]
    await parking.close()


def test_a_second_id_of_a_finished_job_leaves_its_time_to_live(real_redis) -> None:
    job = open_queue(real_redis).enqueue(chores.add, 1, 2, ttl=600, result_ttl=500)
    burst(real_redis)
    real_redis.rpush("rq:queue:code", job.id)
    burst(real_redis)
    assert job.get_status() == "finished"
    assert 0 < real_redis.ttl(job.key) <= 500
    assert nothing_left(real_redis) == {}


async def _woken(client: Any, wanted: int) -> tuple[Parking, WorkCommands, Job]:
    """Parked, until a job came."""
    woken = asyncio.Event()
    parking, commands = await _parked(client, woken, wanted)
    job = open_queue(client).enqueue(chores.add, 1, 2)
    await woken.wait()
    return parking, commands, job


async def _parked(client: Any, woken: asyncio.Event, wanted: int) -> tuple[Parking, WorkCommands]:
    commands = WorkCommands("code", "me", 30.0, None)
    parking = Parking(target_of(client), commands, woken.set)
    parking.park(wanted)
    await blocked(client)
    return parking, commands

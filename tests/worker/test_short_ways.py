"""Where the queue path saves a way, nothing is lost on it."""

import asyncio
import math
from typing import Any

import pytest
from redis.exceptions import RedisError

from ground import target_of
from limiter.answers import Answer
from tests.harness.servers import until
from tests.worker import chores
from tests.worker.crew import burst, nothing_left, open_queue
from worker.async_wire import AsyncWire
from worker.claims import Claim
from worker.job_hash import JobHash
from worker.order import Order
from worker.orders import Orders
from worker.parking import Parking
from worker.work_commands import SCRIPTS, WorkCommands


class Heard(Answer):
    """An answer that only keeps what it was given."""


def test_a_notice_may_overtake_the_reply_to_its_enqueue() -> None:
    orders, answer = Orders("me", "notices"), Heard()
    order = _order("job-1")
    order.answers.append(answer)
    orders.add(order)
    ((_, digest),) = list(orders.exchange())
    orders.read_notice({b"job": b"job-1", b"status": b"finished", b"result": b"{}"})
    assert orders.settled == [(answer, b"{}")]
    digest([b"new"])
    assert not orders.waiting
    assert len(orders.settled) == 1


async def test_what_wakes_a_parked_worker_is_claimed_already(real_redis) -> None:
    woken = asyncio.Event()
    parking, commands = _parking(real_redis, woken)
    parking.park(wanted=1)
    await _blocked(real_redis)
    job = open_queue(real_redis).enqueue(chores.add, 1, 2)
    await woken.wait()
    claim = parking.brought()
    assert claim is not None
    assert [taken[0].decode() for taken in claim.jobs] == [job.id]
    assert job.get_status() == "started"
    assert not real_redis.exists(commands.hand)
    assert parking.brought() is None, "it is handed out once"
    await parking.close()


async def test_where_there_is_no_room_the_job_stays_in_the_hand(real_redis) -> None:
    woken = asyncio.Event()
    parking, commands = _parking(real_redis, woken)
    parking.park(wanted=0)
    await _blocked(real_redis)
    job = open_queue(real_redis).enqueue(chores.add, 1, 2)
    await woken.wait()
    assert parking.brought() is None
    assert real_redis.lrange(commands.hand, 0, -1) == [job.id.encode()]
    await parking.close()


async def test_what_is_claimed_as_a_worker_leaves_is_not_lost(real_redis) -> None:
    woken = asyncio.Event()
    parking, _ = _parking(real_redis, woken)
    parking.park(wanted=1)
    await _blocked(real_redis)
    jobs = [open_queue(real_redis).enqueue(chores.add, 1, 2) for _ in range(2)]
    await parking.leave()
    claim = parking.brought() or Claim(0.0, 0, suspended=False, shut=False, jobs=[])
    held = [taken[0].decode() for taken in claim.jobs]
    waiting = [id.decode() for id in real_redis.lrange("rq:queue:code", 0, -1)]
    assert held + waiting == [job.id for job in jobs]
    await parking.close()


async def test_a_wire_outlives_a_server_that_was_silent(proxy) -> None:
    wire = AsyncWire(proxy.target, SCRIPTS, timeout=0.2)
    assert await wire.ask(("PING",)) in (b"PONG", "PONG")
    proxy.freeze()
    with pytest.raises((RedisError, OSError)):
        await wire.ask(("PING",))
    proxy.thaw()
    assert await wire.ask(("ECHO", "again")) == b"again", "and no earlier question's reply"
    await wire.close()


async def test_who_waits_on_a_wire_hears_that_it_was_broken_off(real_redis) -> None:
    wire = AsyncWire(target_of(real_redis), SCRIPTS, timeout=60)
    asked = asyncio.create_task(wire.ask(("BLPOP", "nothing", 0)))
    await _blocked(real_redis)
    wire.break_off()
    with pytest.raises(RedisError, match="broken off"):
        await asked
    assert await wire.ask(("ECHO", "again")) == b"again"
    await wire.close()


def test_a_second_id_of_a_finished_job_leaves_its_time_to_live(real_redis) -> None:
    job = open_queue(real_redis).enqueue(chores.add, 1, 2, ttl=600, result_ttl=500)
    burst(real_redis)
    real_redis.rpush("rq:queue:code", job.id)
    burst(real_redis)
    assert job.get_status() == "finished"
    assert 0 < real_redis.ttl(job.key) <= 500
    assert nothing_left(real_redis) == {}


def _order(id: str) -> Order:
    hash = JobHash(
        "code", result_ttl=60, failure_ttl=60, retries=0, abandon=True, patience=60.0,
        no_workers_after=60.0,
    )  # fmt: skip
    return Order(hash, id, (10, "a job", "", b"data"), 0.0, math.inf)


def _parking(client: Any, woken: asyncio.Event) -> tuple[Parking, WorkCommands]:
    commands = WorkCommands("code", "me", 30.0, None)
    return Parking(target_of(client), commands, woken.set), commands


async def _blocked(client: Any) -> None:
    def blocked() -> bool:
        return bool(client.info("clients")["blocked_clients"])

    await asyncio.to_thread(until, blocked, "somebody to wait on the server")

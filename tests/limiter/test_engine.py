"""The engine's thread among failures: it answers everybody, and neither spins nor dies."""

import asyncio
import contextlib
import gc
import math
import threading
from dataclasses import replace
from enum import IntEnum
from functools import partial

import pytest

import ground
from ground.keys import tagged
from ground.redis.answers import LoopAnswer, ThreadAnswer
from limiter import GateError, GateUnavailable, TokenBucket
from limiter import engine as engines
from limiter.ledger import Call
from tests.limiter.in_flight import settled, settled_sync


@pytest.fixture
def gate(redis) -> TokenBucket:
    return TokenBucket(redis, "g", limit=2)


async def test_a_broken_key_is_everybodys_error_and_mending_it_is_enough(redis, gate, exchanges):
    key = tagged("gate", "g", "leases")
    redis.set(key, "not a sorted set")
    outcomes = await asyncio.gather(
        *(gate.acquire() for _ in range(5)), gate.try_acquire(), gate.status(),
        return_exceptions=True,
    )  # fmt: skip
    assert all(isinstance(outcome, GateError) for outcome in outcomes)
    assert "WRONGTYPE" in str(outcomes[0])
    assert len(exchanges) < 10
    redis.delete(key)
    async with gate.hold(timeout=100):
        pass
    await settled(gate, in_flight=0)


async def test_an_error_of_one_command_leaves_no_caller_without_an_answer(redis, gate):
    """Some scripts succeed and others fail in one exchange: nobody is told twice."""
    held = await gate.acquire()
    redis.delete(tagged("gate", "g", "queue"))
    redis.set(tagged("gate", "g", "queue"), "not a sorted set")
    held.release()
    outcomes = await asyncio.gather(
        *(gate.acquire() for _ in range(4)), gate.status(), gate.try_acquire(),
        return_exceptions=True,
    )  # fmt: skip
    assert all(isinstance(outcome, GateError) for outcome in outcomes)
    redis.delete(tagged("gate", "g", "queue"))
    assert (await gate.status()).name == "g"


@pytest.mark.parametrize("letter", [{"no": "letter"}, {"at": "x"}, {"at": 1, "grants": "id"}])
async def test_a_letter_that_cannot_be_read_ends_nobody(redis, gate, caplog, letter):
    held = [await gate.acquire() for _ in range(2)]
    waiting = asyncio.create_task(gate.acquire(timeout=100))
    while not (await gate.status()).waiting:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.001)
    redis.xadd(gate._client.unit.commands.inbox, letter)
    while "an entry that cannot be read is ignored" not in caplog.text:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    held[0].release()
    (await waiting).release()
    held[1].release()
    await settled(gate, in_flight=0)


async def test_a_wrong_password_is_told_and_not_tried_without_pause(private_redis, exchanges):
    server = private_redis(aof=False)
    gate = TokenBucket(server.target, "g", limit=1, lease=2)
    permit = await gate.acquire()
    server.ask("CONFIG", "SET", "requirepass", "secret")
    redis = ground.connect(server.url.replace("redis://", "redis://:secret@"))
    redis.client_kill_filter(_type="normal", skipme=True)
    exchanges.clear()
    with pytest.raises(GateUnavailable, match="uthentication"):
        await gate.acquire(timeout=5)
    while not permit.lost:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    assert len(exchanges) < 100
    redis.close()


class Forgetful:
    """A provider of credentials whose service fails once, when it is told to."""

    fails = False

    def get_credentials(self):
        if self.fails:
            self.fails = False
            raise RuntimeError("the token service is away")
        return ("default", "secret")


async def test_credentials_that_cannot_be_had_once_are_asked_for_again(private_redis):
    server = private_redis(aof=False)
    server.ask("CONFIG", "SET", "requirepass", "secret")
    redis = ground.connect(server.url.replace("redis://", "redis://:secret@"))
    provider = Forgetful()
    target = replace(server.target, options={"credential_provider": provider})
    gate = TokenBucket(target, "g", limit=1)
    (await gate.acquire()).release()
    await settled(gate, in_flight=0)
    provider.fails = True
    redis.client_kill_filter(_type="normal", skipme=True)
    (await gate.acquire(timeout=100)).release()
    assert not provider.fails
    engines.stop_all()
    redis.close()


def test_who_asks_as_the_engine_ends_is_answered(gate):
    """However the ending and the asking meet."""
    for _ in range(20):
        gate.sync.status()
        answers: list[object] = []

        def ask(answers: list[object] = answers) -> None:
            try:
                with contextlib.closing(_Released(gate.sync.acquire())):
                    answers.append("served")
            except GateError as refusal:
                answers.append(refusal)

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        engines.stop_all()
        for thread in threads:
            thread.join(100)
        assert len(answers) == 4
    settled_sync(gate, in_flight=0, waiting=0)


def test_an_ended_engine_takes_no_more_requests(gate):
    gate.sync.status()
    unit = gate._client.unit
    engines.stop_all()
    with pytest.raises(GateError, match="ending"):
        unit.engine.request(unit, lambda: None, ThreadAnswer())


def test_a_failing_engine_refuses_everybody_and_the_next_one_serves(gate, monkeypatch):
    held = [gate.sync.acquire(), gate.sync.acquire()]
    refused: list[BaseException] = []

    def wait() -> None:
        try:
            gate.sync.acquire()
        except GateError as refusal:
            refused.append(refusal)

    waiter = threading.Thread(target=wait)
    waiter.start()
    settled_sync(gate, waiting=1)
    failed = threading.Event()
    monkeypatch.setattr(threading, "excepthook", lambda _: failed.set())
    unit = gate._client.unit
    unit.engine.post(unit, lambda: 1 / 0)
    assert failed.wait(100)
    waiter.join(100)
    assert "internal error" in str(refused[0])
    assert gate.sync.status().in_flight == 2  # until their leases end
    del held


class Urgency(IntEnum):
    HIGH = -1


async def test_what_cannot_be_said_to_redis_is_its_callers_error_alone(real_redis):
    gate, other = TokenBucket(real_redis, "g", limit=2), TokenBucket(real_redis, "other", limit=1)
    held = await other.acquire()
    (await gate.acquire(lane=Urgency.HIGH)).release()
    for permit in ("\ud83d", None):
        with pytest.raises(GateError, match="cannot be said to Redis"):
            await gate.revoke(permit)
    unit = gate._client.unit
    for command in (("PING", object()), ("PING",)):  # not to be packed; a reply not to be read
        answer = LoopAnswer()
        call = partial(unit.call, Call(command, answer, math.inf))
        unit.engine.request(unit, call, answer)
        await asyncio.gather(answer.future, other.status())
    assert not unit.engine.stopped
    held.release()
    await settled(other, in_flight=0)
    await settled(gate, in_flight=0)


async def test_scripts_that_a_server_forgot_are_sent_again_in_order(redis, gate):
    for _ in range(3):
        async with gate:
            redis.script_flush()
            assert (await gate.status()).in_flight == 1
        redis.script_flush()
    await settled(gate, in_flight=0)


async def test_a_first_release_goes_before_the_try_behind_it(redis):
    gate = TokenBucket(redis, "g", limit=1)
    (await gate.acquire()).release()
    assert await gate.try_acquire()


async def test_a_gate_with_a_short_lease_bounds_a_connection_that_is_open_already(real_redis):
    """One blocked command must not outlast a lease's margin."""
    async with TokenBucket(real_redis, "long", limit=1, lease=60) as permit:
        engine = permit._lease.keeper.engine
    opened = engine.connection.connect()
    async with TokenBucket(real_redis, "short", limit=1, lease=1.2):
        pass
    assert engine.connection.connect() is not opened
    assert engine.connection.connect().timeout == pytest.approx(0.2)


class _Released:
    def __init__(self, permit) -> None:
        self.close = permit.release


async def test_a_release_that_was_refused_is_made_once_the_key_is_mended(redis, gate):
    held = await gate.acquire()
    leases = tagged("gate", "g", "leases")
    redis.rename(leases, "elsewhere")
    redis.set(leases, "not a sorted set")
    held.release()
    with pytest.raises(GateError, match="WRONGTYPE"):
        await gate.status()
    redis.rename("elsewhere", leases)
    await settled(gate, in_flight=0)
    assert (await gate.status()).released == 1


async def test_a_wish_that_was_refused_leaves_the_line(redis, gate):
    held = [await gate.acquire(), await gate.acquire()]
    waiting = asyncio.create_task(gate.acquire())
    await settled(gate, waiting=1)
    holders = tagged("gate", "g", "holders")
    redis.rename(holders, "elsewhere")
    redis.set(holders, "not a hash")
    with pytest.raises(GateError, match="WRONGTYPE"):
        await gate.try_acquire()
        await held[0].renew()
    with pytest.raises(GateError, match="WRONGTYPE"):
        await waiting
    redis.rename("elsewhere", holders)
    await settled(gate, waiting=0)


async def test_gates_that_nobody_has_any_more_are_forgotten(redis):
    kept = TokenBucket(redis, "kept", limit=1)
    engine_of = kept._client.unit.engine
    for n in range(200):
        async with TokenBucket(redis, f"g{n}", limit=1, lease=3):
            pass
        waited = TokenBucket(redis, f"g{n}", limit=1, lease=3)
        await settled(waited, in_flight=0)
        del waited
    while len(engine_of._units) > 2 or len(engine_of.busy) > 1:
        gc.collect()
        await asyncio.sleep(0.02)


async def test_a_permit_outlives_its_gate_object(redis):
    permit = await TokenBucket(redis, "g", limit=1).acquire()
    gc.collect()
    await permit.renew()
    permit.release()
    await settled(TokenBucket(redis, "g", limit=1), in_flight=0)

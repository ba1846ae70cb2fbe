"""One gate for coroutines, threads, event loops, forked children and decorated functions."""

import asyncio
import os
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from limiter import GateError, Permit, SyncPermit, TokenBucket
from tests.limiter.in_flight import Observer, settled, settled_sync


@pytest.fixture
def gate(redis) -> TokenBucket:
    return TokenBucket(redis, "g", limit=4)


def test_thirty_two_threads_are_never_more_than_four_inside(gate):
    observer, rounds = Observer(), 20

    def worker(_: int) -> None:
        for _ in range(rounds):
            with gate, observer:
                time.sleep(0.0005)  # others come meanwhile

    with ThreadPoolExecutor(32) as pool:
        list(pool.map(worker, range(32)))
    assert 1 < observer.peak <= 4
    settled_sync(gate, in_flight=0, waiting=0)
    assert gate.sync.status().granted == 32 * rounds


async def test_a_hundred_coroutines_are_never_more_than_four_inside(gate):
    observer = Observer()

    async def worker():
        async with gate:
            with observer:
                await asyncio.sleep(0.001)  # others come meanwhile

    await asyncio.gather(*(worker() for _ in range(100)))
    assert observer.peak == 4


def test_event_loops_of_several_threads_share_a_gate(gate):
    observer = Observer()

    async def worker():
        async with gate:
            with observer:
                await asyncio.sleep(0.001)  # others come meanwhile

    async def loop():
        await asyncio.gather(*(worker() for _ in range(20)))

    def thread(_: int) -> None:
        asyncio.run(loop())

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(thread, range(4)))
    assert observer.peak == 4
    settled_sync(gate, in_flight=0, waiting=0)


async def test_a_permit_tells_of_itself(gate):
    async with gate as permit:
        assert isinstance(permit, Permit)
        assert permit
        assert not permit.lost
        assert permit.waited >= 0
        assert permit.id in repr(permit)
        assert "held" in repr(permit)
        await permit.renew()
        (lease,) = (await gate.status()).leases
        assert (lease.id, lease.fence) == (permit.id, permit.fence)
    assert "released" in repr(permit)


def test_fences_grow_with_every_grant(gate):
    fences = []
    for _ in range(20):
        with gate as permit:
            assert isinstance(permit, SyncPermit)
            permit.renew()
            fences.append(permit.fence)
    assert fences == sorted(set(fences))


async def test_a_released_permit_is_not_taken_in_again_by_renewing_it(gate):
    permit = await gate.acquire()
    permit.release()
    with pytest.raises(GateError, match="released already"):
        await permit.renew()
    permit = await gate.acquire()
    renewing = asyncio.create_task(permit.renew())
    await asyncio.sleep(0)
    permit.release()
    await asyncio.gather(renewing, return_exceptions=True)
    await settled(gate, in_flight=0)
    assert (await gate.status()).readmitted == 0


async def test_a_decorated_coroutine_function_holds_a_permit_a_call(gate):
    @gate.limited
    async def in_flight(more):
        """Its own words."""
        return (await gate.status()).in_flight + more

    assert await in_flight(10) == 11
    assert in_flight.__doc__ == "Its own words."
    await settled(gate, in_flight=0)


def test_a_decorated_function_holds_a_permit_a_call(gate):
    @gate.limited
    def in_flight(more):
        return gate.sync.status().in_flight + more

    assert in_flight(10) == 11
    settled_sync(gate, in_flight=0)


def test_a_generator_function_cannot_be_decorated(gate):
    """Its call ends before its body begins: the permit would cover nothing."""

    def generate():
        yield

    async def generate_async():
        yield

    for function in (generate, generate_async):
        with pytest.raises(TypeError, match="generator function"):
            gate.limited(function)


def test_a_function_that_returns_a_coroutine_is_refused(gate):
    """The permit would be given back before the coroutine runs."""

    async def work():
        raise AssertionError("it ran")

    with pytest.raises(TypeError, match="decorate the coroutine function itself"):
        gate.limited(lambda: work())()
    settled_sync(gate, in_flight=0)


async def test_a_gate_may_be_entered_again_inside(gate):
    async with gate as outer, gate as inner:
        assert outer.id != inner.id
        assert (await gate.status()).in_flight == 2
    await settled(gate, in_flight=0)


async def test_a_gate_is_not_left_by_a_task_that_did_not_enter_it(gate):
    await gate.__aenter__()
    with pytest.raises(RuntimeError, match="another task or thread"):
        await asyncio.create_task(gate.__aexit__(None, None, None))
    await gate.__aexit__(None, None, None)


async def test_the_end_of_a_task_gives_back_what_a_generator_of_its_own_held(gate, caplog):
    """asyncio closes a generator that was not read to its end in a task of its own."""
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # that one's RuntimeError

    async def numbers():
        async with gate:
            yield 1
            yield 2

    async def reads_one() -> int:
        async for number in numbers():
            return number
        return 0

    assert await asyncio.create_task(reads_one()) == 1
    await settled(gate, in_flight=0)
    assert "ended without leaving it, and its permit is given back" in caplog.text


async def test_a_hold_is_for_one_block_at_a_time(gate):
    hold = gate.hold()
    async with hold:
        with pytest.raises(RuntimeError, match="for each block"):
            await hold.__aenter__()
    with hold, pytest.raises(RuntimeError, match="for each block"):
        hold.__enter__()
    await settled(gate, in_flight=0)


async def test_what_a_body_raises_goes_through(gate):
    with pytest.raises(KeyError):
        async with gate:
            raise KeyError("its own")
    with pytest.raises(KeyError), gate:
        raise KeyError("its own")
    await settled(gate, in_flight=0)


def test_a_gate_pickles_also_after_its_first_use_and_without_its_permits(real_redis):
    gate = TokenBucket(real_redis, "g", limit=2, lease=9.0)
    with gate:
        twin = pickle.loads(pickle.dumps(gate))
        assert (repr(twin), twin.terms) == (repr(gate), gate.terms)
        with pytest.raises(RuntimeError, match="another task or thread"):
            twin.__exit__(None, None, None)
        with twin:
            assert pickle.loads(pickle.dumps(gate.sync)).status().in_flight == 2
    settled_sync(gate, in_flight=0)


def in_a_child(deed) -> int:
    """What the deed returns in a forked child, which then ends as an interpreter does."""
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            code = deed()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_has_the_gate_but_not_its_parents_permits(real_redis):
    from limiter import engine as engines

    gate = TokenBucket(real_redis, "g", limit=2)
    parents = gate.sync.acquire()

    def child() -> int:
        parents.release()
        with gate as own:
            inside = gate.sync.status().in_flight
            assert own.fence > parents.fence
        engines.stop_all()
        return inside

    assert in_a_child(child) == 2
    status = gate.sync.status()
    assert (status.in_flight, status.granted, status.released) == (1, 2, 1)
    assert not parents.lost
    parents.renew()
    parents.release()
    settled_sync(gate, in_flight=0)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_forked_while_threads_wait_is_not_stuck(real_redis):
    gate = TokenBucket(real_redis, "g", limit=1)
    held = gate.sync.acquire()
    waiter = threading.Thread(target=lambda: gate.sync.acquire(timeout=100).release())
    waiter.start()
    settled_sync(gate, waiting=1)
    assert in_a_child(lambda: gate.sync.status().waiting) == 1
    held.release()
    waiter.join(100)
    assert not waiter.is_alive()

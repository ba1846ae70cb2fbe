"""The nine holes that were found in uni-agent's lifecycle by running it, each closed here."""

import asyncio
import threading

import pytest

from tests.worker.lifecycle.conftest import gate_of, until, waiting_at
from worker.lifecycle import StartFailed


async def until_gone(cloud, life, reaper=None):
    """Until nothing lives and nothing is registered, whoever has to end it."""
    async with asyncio.timeout(100):
        while cloud.live or life.registry.look().count:
            if reaper is not None:
                await reaper.look(wait=False)
            await asyncio.sleep(0.02)


async def test_a_callers_number_of_attempts_is_not_overridden(lifecycle, cloud):
    """A: five were made whatever was asked for."""
    cloud.set(create_fails=1.0)
    with pytest.raises(StartFailed, match="after 2 attempts"):
        await lifecycle().start()
    with pytest.raises(StartFailed, match="after 1 attempt in"):
        await lifecycle().start(attempts=1)
    assert cloud.stats()["creates"] == 3


async def test_a_start_cancelled_while_its_creation_is_in_flight_leaves_no_sandbox(
    lifecycle, cloud
):
    """B: the id was never known, and one sandbox lived on."""
    cloud.set(latency=[0.3, 0.3])
    life = lifecycle()
    start = asyncio.create_task(life.start())
    await until(lambda: cloud.live)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    await until_gone(cloud, life)
    assert (await gate_of(life).status()).in_flight == 0


async def test_a_runtime_whose_closing_is_cancelled_does_not_keep_the_sandbox(lifecycle, cloud):
    """C: CancelledError is no Exception, and skipped the terminate."""
    life = lifecycle()
    for failure in (asyncio.CancelledError(), ConnectionError("server disconnected")):
        cloud.provider.runtime_fails = failure
        sandbox = await life.start()
        assert await life.stop(sandbox)
        assert cloud.live == 0
    assert cloud.provider.closed_runtimes == 2


async def test_a_body_that_is_cancelled_has_its_sandbox_ended(lifecycle, cloud):
    """C, seen from the agent's loop."""
    life, inside = lifecycle(), asyncio.Event()

    async def body():
        async with life.open():
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(body())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until_gone(cloud, life)


async def test_waiting_for_a_permit_costs_nothing_of_the_budget(lifecycle, cloud, monkeypatch):
    """D: one permit, four healthy starts, a budget of one and a half: three failed.

    A start takes 100 s of the budget's clock, and no time to speak of.
    """
    now, create = [0.0], cloud.provider.create

    async def creates(*args, **more):
        now[0] += 100.0
        return await create(*args, **more)

    monkeypatch.setattr("worker.lifecycle.starting.monotonic", lambda: now[0])
    monkeypatch.setattr(cloud.provider, "create", creates)
    life = lifecycle(
        limit=1, init_wall_budget=150.0, attempt_floor=0.0, startup_timeout=150.0, start_attempts=1
    )
    opened = await asyncio.gather(*(life.start() for _ in range(4)))
    assert now[0] == 400.0
    await asyncio.gather(*map(life.stop, opened))
    with pytest.raises(StartFailed, match="after 1 attempt in 100 s"):
        cloud.set(create_fails=1.0)
        await life.start()


@pytest.mark.soak
async def test_waiting_for_a_permit_costs_nothing_of_the_budget_in_real_time(lifecycle, cloud):
    """D, as it was found: 16 s for four, of which each has 6."""
    cloud.set(latency=[4.0, 4.0])
    life = lifecycle(limit=1, init_wall_budget=6.0, attempt_floor=0.0, startup_timeout=60.0)
    opened = await asyncio.gather(*(life.start() for _ in range(4)))
    assert cloud.stats()["creates"] == len(opened) == 4
    await asyncio.gather(*map(life.stop, opened))


async def test_a_sandbox_that_fails_is_counted_until_it_is_dead(lifecycle, cloud):
    """E: the permit was back before the end had begun: a peak of three at a limit of one."""
    cloud.set(create=["never", "never", "never"], dying=0.2)
    life = lifecycle(limit=1, startup_timeout=1.0, attempt_floor=0.0, start_attempts=1)
    outcomes = await asyncio.gather(*(life.start() for _ in range(4)), return_exceptions=True)
    assert sum(isinstance(outcome, StartFailed) for outcome in outcomes) == 3
    assert cloud.stats()["peak"] == 1
    await life.stop(next(o for o in outcomes if not isinstance(o, BaseException)))


async def test_the_floor_of_an_attempt_is_clamped_to_the_deadline(lifecycle, cloud):
    """F: a floor of 60 s made 60 s of a budget of less: this would run into the test's timeout."""
    cloud.set(never_ready=1.0)
    life = lifecycle(init_wall_budget=1.5, attempt_floor=3600.0, startup_timeout=3600.0)
    with pytest.raises(StartFailed, match="not ready within"):
        await life.start()
    await until_gone(cloud, life)


def test_one_lifecycle_serves_several_event_loops(lifecycle, cloud):
    """G: the semaphore was bound to the first loop that met it."""
    life, failures = lifecycle(limit=1), []

    async def opens():
        async with life.open() as sandbox:
            assert (await sandbox.exec(["echo", "x"])).exit_code == 0

    def on_its_own_loop():
        try:
            asyncio.run(opens())
        except BaseException as problem:  # noqa: BLE001 - told to the test's own thread
            failures.append(problem)

    threads = [threading.Thread(target=on_its_own_loop) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert cloud.stats()["creates"] == 3


async def test_a_terminate_that_hangs_is_left_to_the_reaper(lifecycle, cloud, reaper):
    """H: it blocked the loop for ever."""
    life = lifecycle(teardown_timeout=0.2)
    sandbox = await life.start()
    cloud.set(terminate=["hang", "hang"])
    assert not await life.stop(sandbox)
    assert cloud.live == 1
    assert life.registry.look().records[0].state == "TERMINATING"
    await until_gone(cloud, life, reaper())


async def test_a_sandbox_whose_terminates_fail_is_never_forgotten(lifecycle, cloud, reaper):
    """I: both failed, and the handle was dropped."""
    life = lifecycle()
    sandbox = await life.start()
    cloud.set(terminate=["fail", "fail", "fail", "fail"])
    assert not await life.stop(sandbox)
    (record,) = life.registry.look().records
    assert "cannot terminate" in record.error
    await until_gone(cloud, life, reaper())
    assert cloud.stats()["terminates"] >= 5


async def test_a_start_that_waits_in_line_is_cancelled_without_a_trace(lifecycle, cloud):
    life = lifecycle(limit=1)
    cloud.set(latency=[0.3, 0.3])
    first = asyncio.create_task(life.start())
    second = asyncio.create_task(life.start())
    await waiting_at(gate_of(life), 1)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    await life.stop(await first)
    await until_gone(cloud, life)
    assert cloud.stats()["creates"] == 1

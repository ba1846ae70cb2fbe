"""What uni-agent's tests promise of a start, and that it holds over any number of processes.

Theirs of the semaphore's size have become `tests/limiter/test_settings.py` and
`test_the_cap_is_exact_whatever_the_number_of_workers`: there is one cap, and no share of it.
"""

import asyncio

import pytest

from tests.worker.lifecycle.conftest import gate_of, quick, waiting_at
from worker.lifecycle import SandboxSpec, StartFailed, StartRefused


async def settled(life):
    assert (await gate_of(life).status()).in_flight == 0
    assert life.registry.look().count == 0


async def test_a_start_succeeds_at_its_first_attempt(lifecycle, cloud):
    life = lifecycle()
    async with life.open() as sandbox:
        assert (await sandbox.exec(["echo", "hello"])).stdout == b"hello\n"
        assert life.registry.look().records[0].state == "READY"
        assert (await gate_of(life).status()).in_flight == 0
    assert cloud.stats()["creates"] == cloud.stats()["terminates"] == 1
    assert cloud.live == 0
    await settled(life)


async def test_a_start_that_fails_once_is_tried_again_after_its_end(lifecycle, cloud):
    cloud.set(create=["never", "ok"])
    life = lifecycle(startup_timeout=1.5, attempt_floor=0.0)
    async with life.open():
        assert cloud.live == 1
        assert cloud.stats()["creates"] == 2
        assert cloud.stats()["terminates"] == 1


async def test_two_attempts_are_made_and_the_message_says_two(lifecycle, cloud):
    cloud.set(create_fails=1.0)
    with pytest.raises(StartFailed, match="after 2 attempts"):
        await lifecycle().start()
    assert cloud.stats()["creates"] == 2


async def test_no_attempt_is_made_when_the_budget_is_spent(lifecycle, cloud):
    cloud.set(never_ready=1.0)
    life = lifecycle(init_wall_budget=0.4, attempt_floor=0.0)
    with pytest.raises(StartFailed, match="after 1 attempt in"):
        await life.start()
    assert cloud.stats()["creates"] == 1


async def test_a_hung_creation_is_given_up_at_the_deadline(lifecycle, cloud):
    cloud.set(create=["hang"])
    life = lifecycle(init_wall_budget=0.4, attempt_floor=60.0)
    with pytest.raises(StartFailed, match="TimeoutError"):
        await life.start()


async def test_many_starts_at_a_limit_of_one_are_each_made_once(lifecycle, cloud):
    life = lifecycle(limit=1)
    opened = await asyncio.gather(*(life.start() for _ in range(6)))
    assert cloud.stats()["creates"] == 6
    assert cloud.stats()["peak"] == 1
    await asyncio.gather(*map(life.stop, opened))
    await settled(life)


@pytest.mark.parametrize("workers", [1, 3, 8])
async def test_the_cap_is_exact_whatever_the_number_of_workers(lifecycle, cloud, workers):
    cloud.set(latency=[0.02, 0.05], together=3)
    lives = [lifecycle(limit=3, startup_timeout=20.0) for _ in range(workers)]
    opened = await asyncio.gather(*(lives[n % workers].start() for n in range(9)))
    assert cloud.stats()["peak"] == 3
    await asyncio.gather(*(lives[n % workers].stop(box) for n, box in enumerate(opened)))
    await settled(lives[0])


async def test_a_failed_start_gives_its_permit_back(lifecycle, cloud):
    cloud.set(create=["fail", "fail", "ok"])
    life = lifecycle(limit=1)
    with pytest.raises(StartFailed):
        await life.start()
    async with life.open():
        pass
    await settled(life)


async def test_a_run_may_have_a_limit_of_its_own_under_the_fleets(lifecycle, cloud):
    cloud.set(latency=[0.02, 0.04], together=2)
    life = lifecycle(limit=8, max_starting_run=2, startup_timeout=20.0)
    opened = await asyncio.gather(*(life.start() for _ in range(6)))
    assert cloud.stats()["peak"] == 2
    await asyncio.gather(*map(life.stop, opened))
    await settled(life)


@pytest.mark.parametrize("whose", ["the fleet's", "its run's"])
async def test_a_limit_is_changed_while_it_is_used(lifecycle, cloud, whose):
    cloud.set(together=2)
    of_the_run = {} if whose == "the fleet's" else {"max_starting_run": 1}
    life = lifecycle(limit=8 if of_the_run else 1, startup_timeout=20.0, **of_the_run)
    gate = life.keeper.gates[0]
    first = asyncio.create_task(life.start())
    others = [asyncio.create_task(life.start()) for _ in range(4)]
    await waiting_at(gate, 4)
    await gate.configure(limit=4)
    opened = await asyncio.gather(first, *others)
    assert 2 <= cloud.stats()["peak"] <= 4
    await asyncio.gather(*map(life.stop, opened))


async def test_an_image_that_does_not_exist_is_refused_at_once(lifecycle, cloud):
    life = lifecycle()
    with pytest.raises(StartRefused, match="'absent' does not exist"):
        await life.start(SandboxSpec(image="absent"))
    assert cloud.stats()["creates"] == 1
    await settled(life)


@pytest.mark.parametrize("step", ["create", "wait_ready", "open_runtime"])
async def test_a_provider_that_cancels_itself_has_failed(lifecycle, cloud, monkeypatch, step):
    real, calls = getattr(cloud.provider, step), []

    async def cancels_first(*args, **more):
        calls.append(step)
        if len(calls) == 1:
            raise asyncio.CancelledError
        return await real(*args, **more)

    monkeypatch.setattr(cloud.provider, step, cancels_first)
    life = lifecycle()
    async with asyncio.timeout(100), life.open() as sandbox:
        states = {record.name: record.state for record in life.registry.look().records}
        assert states[sandbox.name] == "READY"
    assert len(calls) == 2
    assert cloud.live == 0


def test_blocking_code_has_the_same(lifecycle, cloud):
    life = lifecycle()
    with life.sync.open() as sandbox:
        sandbox.write_file("a/b.txt", "text")
        assert sandbox.read_file("a/b.txt") == b"text"
        assert sandbox.exec(["cat", "a/b.txt"]).stdout == b"text"
    assert cloud.live == 0


def test_blocking_code_without_a_block_has_the_same_too(lifecycle, cloud):
    life = lifecycle()
    sandbox = life.sync.start(SandboxSpec())
    assert sandbox.meta == life.registry.look().records[0].ref.meta
    assert life.sync.stop(sandbox)
    assert (cloud.live, life.sync.stop(sandbox)) == (0, True)
    life.sync.close()


def test_uniagents_names_of_the_settings_are_read(monkeypatch):
    monkeypatch.setenv("MODAL_INIT_WALL_BUDGET", "77")
    from worker.lifecycle import LifecycleSettings

    assert LifecycleSettings.load().init_wall_budget == 77.0


@pytest.mark.parametrize(
    ("left", "floor", "startup", "seconds"),
    [(900, 60, 300, 300), (40, 60, 300, 40), (900, 60, 10, 60), (5, 0, 10, 5)],
)
def test_an_attempts_floor_never_beats_the_budget(left, floor, startup, seconds):
    settings = quick(attempt_floor=floor, startup_timeout=startup)
    assert settings.attempt(left) == seconds


def test_a_short_startup_timeout_holds_unless_a_floor_is_set(monkeypatch):
    from worker.lifecycle import LifecycleSettings

    monkeypatch.setenv("PENSTOCK_STARTUP_TIMEOUT", "20")
    assert LifecycleSettings.load().attempt(900) == 20
    monkeypatch.setenv("PENSTOCK_ATTEMPT_FLOOR", "30")
    assert LifecycleSettings.load().attempt(900) == 30

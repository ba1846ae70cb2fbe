"""miles' fully asynchronous rollouts with their groups in the buffer.

`MILES_SOURCE=CHECKOUT` runs it with miles' own rollouts, samples and filters.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest

import ground
from buffer.adapters.miles import DataBuffer
from ground import SettingError
from ground.tasks import ended
from tests.buffer.miles_stand_in import (
    BATCH,
    MAX_AGE,
    SIZE,
    Engines,
    Prompts,
    Sample,
    arguments,
    install,
)
from tests.harness.servers import PrivateRedis

SOURCE = os.environ.get("MILES_SOURCE", "")
engines = Engines()


@pytest.fixture(params=["stand-in", "miles itself"])
def rollouts(
    request: pytest.FixtureRequest,
    shared_server: PrivateRedis,
    real_redis: ground.Client,
    monkeypatch: pytest.MonkeyPatch,
) -> Any:
    if request.param == "miles itself" and not SOURCE:
        pytest.skip("MILES_SOURCE names no checkout of miles")
    monkeypatch.setenv("PENSTOCK_REDIS_URL", shared_server.url)
    engines.__init__()  # type: ignore[misc]
    source = SOURCE if request.param == "miles itself" else ""
    return install(lambda *named: monkeypatch.setitem(sys.modules, *named), engines, source)


@pytest.fixture
async def begin(rollouts: Any) -> AsyncIterator[Callable[..., tuple[DataBuffer, list[Any]]]]:
    """A data buffer of a process that has just begun, and what it hands back unused."""
    begun: list[DataBuffer] = []

    def make(**more: Any) -> tuple[DataBuffer, list[Any]]:
        unused: list[Any] = []
        input = SimpleNamespace(args=arguments(**more), unused_handler_fn=unused.append)
        begun.append(DataBuffer(input))
        return begun[-1], unused

    yield make
    for one in begun:
        await one.buffer.aclose()


def finished(number: int, version: int, status: str = "completed") -> SimpleNamespace:
    sample: Any = sys.modules["miles.utils.types"].Sample  # type: ignore[attr-defined]
    group = [
        sample(
            group_index=number, index=number * SIZE + n, response_length=3, reward=0.5,
            weight_versions=[str(version)], status=sample.Status(status),
        )
        for n in range(SIZE)
    ]  # fmt: skip
    return SimpleNamespace(prompt_group=[Sample(number)], group=group)


async def test_steps_get_whole_batches_and_what_is_too_old_is_made_again(rollouts: Any) -> None:
    prompts = Prompts(sys.modules["miles.utils.types"].Sample)  # type: ignore[attr-defined]
    run = rollouts(SimpleNamespace(args=arguments(), data_source=prompts))
    trained: list[int] = []
    for step in range(12):
        version = engines.updates
        asked = SimpleNamespace(rollout_id=step, evaluation=False, weight_version=version)
        output = await run(asked)
        assert len(output.samples) == BATCH
        for group in output.samples:
            assert len(group) == SIZE
            assert version - min(int(w) for one in group for w in one.weight_versions) <= MAX_AGE
            trained.append(group[0].group_index)
        engines.updates += step > 0  # miles begins the second step before it updates weights
    assert len(set(trained)) == len(trained)
    assert {0, 8} <= set(prompts.recycled) & set(trained), "slow ones were recycled, then trained"
    assert output.metrics["rollout/fully_async/max_staleness"] <= MAX_AGE
    await ended({run._worker})
    await run._output.buffer.aclose()


async def test_finished_groups_outlive_the_process(
    begin: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    before, _ = begin()
    for number in range(3):
        await before.put(finished(number, version=7))
    assert (await before.get(current_version=7)).group[0].group_index == 0
    await before.buffer.aclose()
    after, _ = begin()  # its engines count from 1 again
    await after.put(finished(3, version=1))
    names = [(await after.get(current_version=1)).group[0].group_index for _ in range(4)]
    assert names == [0, 1, 2, 3], "no update of the weights followed the first one"
    (found,) = [one for one in caplog.records if "groups of an earlier process" in one.message]
    assert (found.levelname, found.__dict__["returned"]) == ("WARNING", 1)


async def test_a_get_that_is_cancelled_at_its_acknowledgement_loses_no_group(
    begin: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer, _ = begin()
    ack = buffer.buffer.ack

    async def is_not_heard(batch: Any) -> None:
        await ack(batch)
        raise asyncio.CancelledError

    for number in range(2):
        await buffer.put(finished(number, version=1))
    with monkeypatch.context() as cut:
        cut.setattr(buffer.buffer, "ack", is_not_heard)
        with pytest.raises(asyncio.CancelledError):
            await buffer.get(current_version=1)
    names = [(await buffer.get(current_version=1)).group[0].group_index for _ in range(2)]
    assert names == [0, 1]


async def test_a_full_buffer_holds_the_producer_until_a_step_takes_a_group(
    begin: Callable[..., Any],
) -> None:
    buffer, _ = begin()
    for number in range(2 * BATCH):
        await buffer.put(finished(number, version=1))
    late = asyncio.create_task(buffer.put(finished(99, version=1)))
    done, _ = await asyncio.wait({late}, timeout=0.2)
    assert not done
    await buffer.get(current_version=1)
    await asyncio.wait_for(late, 20)


class Room(asyncio.Event):
    """Tells that somebody waits for room."""

    def __init__(self) -> None:
        super().__init__()
        self.waited_for = asyncio.Event()

    async def wait(self) -> Any:
        self.waited_for.set()
        return await super().wait()


async def test_a_producer_that_is_cancelled_as_room_comes_ends(begin: Callable[..., Any]) -> None:
    buffer, _ = begin()
    room = buffer._room = Room()
    for number in range(2 * BATCH):
        await buffer.put(finished(number, version=1))
    late = asyncio.create_task(buffer.put(finished(99, version=1)))
    await room.waited_for.wait()
    await buffer.get(current_version=1)
    late.cancel()
    await asyncio.wait({late})
    assert late.cancelled()


async def test_aborted_groups_go_back_and_filtered_ones_are_dropped(
    begin: Callable[..., Any],
) -> None:
    buffer, unused = begin(dynamic_sampling_filter_path=f"{__name__}.no_zeros")
    await buffer.put(finished(0, 1, "aborted"))
    filtered = finished(1, 1)
    filtered.group[0].reward = 0
    await buffer.put(filtered)
    assert [group[0].group_index for group in unused] == [0]
    metrics = buffer.get_metrics()
    assert metrics["rollout/fully_async/aborted_groups_filtered"] == 1
    assert metrics["rollout/dynamic_filter/drop_zero"] == 1
    assert await buffer.buffer.available() == 0


def no_zeros(_: Any, group: list[Any]) -> Any:
    keep = all(sample.reward for sample in group)
    base: Any = sys.modules["miles.rollout.filter_hub.base_types"]
    output = getattr(base, "DynamicFilterOutput", SimpleNamespace)
    return output(keep=keep, reason=None if keep else "zero")


async def test_a_policy_with_too_few_groups_for_miles_is_refused(begin: Callable[..., Any]) -> None:
    buffer, _ = begin()
    few = buffer._policy.model_copy(update={"groups_per_version": BATCH})
    await buffer.buffer.set_policy(few)
    with pytest.raises(SettingError, match=f"{BATCH} in the task's policy are fewer than the 8"):
        await buffer.get(current_version=1)

"""The scripts on an item's path are plain until a trainer publishes a version."""

import re
from collections.abc import Callable

import pytest

from buffer import ItemRefused, Policy, RolloutBuffer
from buffer.task import PLAIN
from ground.lua import load_script
from tests.buffer.conftest import Bench, item

FEATURES = re.compile(r"function \w*(?:slot|outst|stand|aim|old|tally|part|may)\w*")
POLICY = Policy(groups_per_version=2, max_age=1, when_old="drop")


@pytest.mark.parametrize("name", sorted(PLAIN))
def test_the_plain_scripts_make_no_function_of_versions_and_slots(name: str) -> None:
    assert FEATURES.findall(load_script("buffer", name).source) == []
    assert FEATURES.findall(load_script("buffer", name, "full").source) != []


async def test_a_version_that_another_process_publishes_holds_at_once(
    make: Callable[..., Bench], trainer: RolloutBuffer
) -> None:
    """Writer, reader and trainer are processes of their own, and have sent plain scripts before."""
    writer, reader = make(group_size=2), make(group_size=2)
    await writer.fill("a", [0, 1])
    first = await reader.buffer.take(1)
    await writer.fill("b", [0, 1])
    await trainer.set_policy(POLICY)
    assert first is not None
    assert first.version is None
    await trainer.publish(3)
    with pytest.raises(ItemRefused, match="a version that no trainer has published"):
        await writer.buffer.write(item("c", "u0", 1, version_start=4))
    second = await reader.buffer.take(1)
    assert second is not None
    assert (second.version, second.ages) == (3, (0,))
    await reader.buffer.ack(first)
    await writer.fill("d", [0, 1], version_start=1)
    assert await reader.buffer.take(1) is None, "it is too old"


async def test_a_batch_that_was_taken_before_the_first_version_is_acknowledged_after_it(
    make: Callable[..., Bench], trainer: RolloutBuffer
) -> None:
    bench = make(group_size=2)
    await bench.fill("a", [0, 1])
    batch = await bench.buffer.take(1)
    assert batch is not None
    await trainer.set_policy(POLICY)
    await trainer.publish(0)
    await bench.buffer.ack(batch)
    assert (await trainer.versions()).outstanding == {}
    assert (await bench.buffer.catalog.stats())["consumed"] == 1


@pytest.fixture
def trainer(make: Callable[..., Bench]) -> RolloutBuffer:
    """Another process of the task."""
    return make(group_size=2).buffer

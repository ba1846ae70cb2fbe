"""`order="batch"`: each group is for one version, which is fixed when it begins."""

from collections.abc import Callable
from typing import Any

import pytest

from buffer import Policy, Slot
from tests.buffer.conftest import Bench, item


@pytest.fixture
async def bench(make: Callable[..., Bench]) -> Bench:
    """Groups of two; two groups a version, for three versions."""
    bench = make(group_size=2)
    policy = Policy(groups_per_version=2, max_age=2, depth=2, order="batch", slot_lease=60)
    await bench.buffer.set_policy(policy)
    await bench.buffer.publish(10)
    return bench


async def begin(bench: Bench, *names: str) -> dict[str, Slot]:
    slots = await bench.buffer.admit(len(names), instances=names)
    return {str(slot.instance_id): slot for slot in slots}


async def finish(bench: Bench, *slots: Slot) -> None:
    for slot in slots:
        items = [item(str(slot.instance_id), f"{slot.id}-{n}", n) for n in range(2)]
        await bench.buffer.write_many(items, slot=slot)


async def taken(bench: Bench, groups: int = 2) -> list[Any]:
    batch = await bench.buffer.take(groups)
    if batch is None:
        return []
    await bench.buffer.ack(batch)
    return [name for name, _ in batch.groups]


async def test_each_version_gets_its_own_groups_whichever_finish_first(bench: Bench) -> None:
    slots = await begin(bench, "a", "b", "c", "d", "e", "f")
    await finish(bench, *(slots[name] for name in "fedcb"))
    assert await taken(bench) == ["b"]
    assert await taken(bench) == []
    (waited, *_) = (await bench.buffer.versions()).waits_for
    assert waited.instance_id == "a"
    await finish(bench, slots["a"])
    assert await taken(bench) == ["a"]
    await bench.buffer.publish(11)
    assert sorted(await taken(bench)) == ["c", "d"]
    await bench.buffer.publish(12)
    assert sorted(await taken(bench)) == ["e", "f"]


async def test_a_lost_group_is_made_again_for_its_version(bench: Bench) -> None:
    slots = await begin(bench, "a", "b", "c", "d")
    await finish(bench, slots["b"], slots["c"], slots["d"])
    bench.advance(61)  # whoever made `a` died
    assert await taken(bench) == ["b"]
    again = await begin(bench, "new")
    assert list(again) == ["a"]
    await finish(bench, again["a"])
    assert await taken(bench) == ["a"]


async def test_a_group_that_is_given_up_leaves_its_place_to_another(bench: Bench) -> None:
    slots = await begin(bench, "a", "b", "c", "d")
    await slots["a"].end()
    await finish(bench, *(slots[name] for name in "bcd"), *(await begin(bench, "new")).values())
    assert sorted(await taken(bench)) == ["b", "new"]


async def test_what_lags_after_an_early_publication_goes_first(bench: Bench) -> None:
    slots = await begin(bench, "a", "b", "c", "d")
    await finish(bench, slots["a"], slots["c"], slots["d"])
    assert await taken(bench) == ["a"]
    await bench.buffer.publish(11)
    await finish(bench, slots["b"])
    assert await taken(bench, 1) == ["b"]


async def test_the_order_may_be_changed_while_groups_are_under_way(bench: Bench) -> None:
    old = Policy(groups_per_version=2, max_age=2, depth=2)
    await bench.buffer.set_policy(old)
    slots = await begin(bench, "a", "b", "c")
    await finish(bench, slots["c"])
    await bench.buffer.set_policy(old.model_copy(update={"order": "batch"}))
    assert await taken(bench) == []
    await finish(bench, slots["a"], slots["b"])
    assert sorted(await taken(bench)) == ["a", "b"]


async def test_a_returning_trainer_takes_the_same_groups_in_the_same_versions(bench: Bench) -> None:
    await bench.buffer.publish(10, saved=10)
    slots = await begin(bench, "a", "b", "c", "d")
    await finish(bench, *slots.values())
    assert sorted(await taken(bench)) == ["a", "b"]
    await bench.buffer.publish(11, saved=10)
    assert sorted(await taken(bench)) == ["c", "d"]
    assert (await bench.buffer.publish(10, saved=10)).returned == 4
    assert sorted(await taken(bench)) == ["a", "b"]
    await bench.buffer.publish(11, saved=10)
    assert sorted(await taken(bench)) == ["c", "d"]

"""What producers and trainers under a policy send by mistake: refused with a sentence, and nothing
else is touched."""

import asyncio
import json
import math
from collections.abc import Callable
from typing import Any

import pytest

import ground
from buffer import ItemRefused, Outcome, Policy, TaskConfig
from buffer.item import entry_from
from ground import SettingError
from tests.buffer.conftest import Bench, item
from tests.buffer.serving import served

AT = "/v1/tasks/math"
HALF = "\ud800"  # JSON may hold half a surrogate pair, and Redis no such text


@pytest.fixture
async def bench(make: Callable[..., Bench]) -> Bench:
    """Groups of two; two groups a version, at most two versions old."""
    bench = make(group_size=2)
    await bench.buffer.set_policy(Policy(groups_per_version=2, max_age=2, depth=2))
    await bench.buffer.publish(10)
    return bench


async def test_a_slot_parks_items_of_one_instance(bench: Bench) -> None:
    (slot,) = await bench.buffer.admit(1, instances=["a"])
    parts = [item("a", "u0", None, version_start=9), item("b", "u1", None)]
    with pytest.raises(ItemRefused, match="several instances"):
        await slot.park(parts)
    assert (await bench.buffer.versions()).outstanding == {0: 1}
    await slot.park(parts[:1])
    assert (await bench.buffer.versions()).outstanding == {1: 1}


@pytest.mark.parametrize("number", [-1, True, 0.5, "0", 2**53])
async def test_a_slot_is_for_a_round_from_0_up(bench: Bench, number: Any) -> None:
    with pytest.raises(ItemRefused, match="round_number must be an integer from 0 up"):
        await bench.buffer.admit(1, instances=[("a", number)])
    assert (await bench.buffer.versions()).outstanding == {}


async def test_one_id_is_no_list_of_ids(bench: Bench) -> None:
    with pytest.raises(TypeError, match=r"instances is a list of ids, such as \['slow'\]"):
        await bench.buffer.admit(1, instances="slow")
    assert (await bench.buffer.versions()).outstanding == {}


async def test_a_slot_whose_parking_was_refused_is_still_renewed(bench: Bench) -> None:
    (slot,) = await bench.buffer.admit(1, instances=["a"])
    with pytest.raises(ItemRefused, match="needs a uid"):
        await slot.park([item("a", None, None)])
    (keeper,) = bench.buffer.slots._keepers.values()
    assert slot.id in keeper.held
    await slot.park([item("a", "u0", None)])
    assert slot.id not in keeper.held


async def test_an_item_of_another_instance_is_not_the_end_of_its_slot(bench: Bench) -> None:
    (slot,) = await bench.buffer.admit(1, instances=["a"])
    with pytest.raises(ItemRefused, match="of instance 'b' under a slot for 'a'"):
        await bench.buffer.write(item("b", "u0", 0), slot=slot)
    assert await bench.buffer.write(item("a", "u0", 0), slot=slot) is Outcome.STORED


async def test_a_fence_that_is_no_text_fails_no_other_writer(bench: Bench) -> None:
    beside = asyncio.create_task(bench.buffer.write(item("a", "u0", 0)))
    body = json.dumps(item("a", "u1", 0, slot="s", fence=HALF)).encode()
    with pytest.raises(ItemRefused, match="fence holds half a surrogate pair"):
        await bench.buffer.write_entries([entry_from(body, 1 << 20)])
    assert await beside is Outcome.STORED


async def test_a_wait_is_a_number(bench: Bench) -> None:
    buffer = bench.buffer
    for call in (
        buffer.take(wait=math.nan), buffer.admit(wait=math.nan), buffer.wait_for(1, math.nan),
        buffer.published(9, math.nan),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="not NaN"):
            await call


async def test_a_rollout_without_room_for_its_policy_is_refused(bench: Bench) -> None:
    with pytest.raises(SettingError, match=r"\(2 \+ 1\) \* 2 groups of 4 are 24"):
        await bench.buffer.check_room(TaskConfig(group_size=4, max_buffer_size=20))


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("/versions", '{"version": NaN, "owner": "t"}', "version"),
        ("/versions", '{"version": 11, "saved": NaN, "owner": "t"}', "saved"),
        ("/slots", '{"owner": "g", "wait": NaN}', "wait"),
        ("/take", '{"wait": NaN}', "wait"),
        ("/take", '{"lease": NaN}', "lease"),
        ("/slots/SLOT/park", '{"fence": "1", "items": [], "go_on": "yes"}', "go_on"),
        ("/slots/SLOT/park", json.dumps({"fence": HALF, "items": []}), "fence"),
        ("/items", json.dumps({"items": [item("a", "u", 0, version_end=math.nan)]}), "NaN"),
    ],
)
async def test_what_is_no_number_and_no_text_is_refused_over_http(
    redis: ground.Client, path: str, body: str, reason: str
) -> None:
    async with served(redis) as client:
        await client.put(AT, json={"group_size": 2})
        await client.put(f"{AT}/policy", json={"groups_per_version": 2, "max_age": 2})
        answer = await client.post(
            AT + path.replace("SLOT", "0" * 32 + ".1"), content=body,
            headers={"Content-Type": "application/json"},
        )  # fmt: skip
        assert answer.status_code in (400, 422)
        assert reason in answer.json()["message"]


async def test_a_rollout_whose_groups_have_no_room_under_the_policy_does_not_start(
    redis: ground.Client,
) -> None:
    async with served(redis) as client:
        await client.put(AT, json={"group_size": 2, "max_buffer_size": 20})
        await client.put(f"{AT}/policy", json={"groups_per_version": 2, "max_age": 2})
        asked = {"task_type": "math", "num_repeat_per_sample": 4}
        answer = await client.post("/start_rollout", json=asked)
        assert answer.status_code == 400
        assert "are 24" in answer.json()["message"]
        assert (await client.get(AT)).json()["group_size"] == 2

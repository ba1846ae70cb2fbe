"""Upstream's own figures, executed: every case of data/slime_cases.json.

Where upstream crashed or lost data, the fixed behaviour stands here by name.
"""

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fakeredis.commands_mixins.server_mixin
import pytest

import buffer.default_functions as ours
import ground
from buffer import TaskConfig
from buffer.generator import base_generator
from tests.buffer.conftest import Bench

CASES = {
    case["name"]: case
    for case in json.loads((Path(__file__).parent / "data/slime_cases.json").read_text())["cases"]
}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "default_normalize_group_data": ours.default_normalize_group_data,
    "default_pad_group_data": ours.default_pad_group_data,
    "default_is_valid_group": ours.default_is_valid_group,
    "default_get_group_data_meta_info": ours.default_get_group_data_meta_info,
    "default_filter_item": ours.default_filter_item,
    "math.is_valid_group": base_generator.is_valid_group,
    "v1.default_is_valid_group": ours.v1_is_valid_group,
    "v1.math.is_valid_group": ours.v1_is_valid_group,
    "v1.default_get_group_data_meta_info": ours.v1_get_group_data_meta_info,
}
PLAIN = [n for n, c in CASES.items() if c["function"] in FUNCTIONS and "raises" not in c]
PIPES = [n for n in CASES if n.startswith("pipe_")]
FIXED = {
    "pipe_timeout_below_ratio_kept_until_someone_reads",
    "pipe_more_items_than_group_size",
    "pipe_bug_padded_timeouts_lose_groups",
    "pipe_bug_small_batch_loses_rest",
}


def test_every_case_is_a_test() -> None:
    crashes = {n for n, c in CASES.items() if "raises" in c}
    assert crashes == {"normalize_no_valid_items", "pad_below_half_3_to_8"}
    assert {*PLAIN, *PIPES, *crashes, "thresholds"} == set(CASES)


@pytest.mark.parametrize("name", PLAIN)
def test_a_function_gives_upstreams_figures(name: str) -> None:
    case = CASES[name]
    arguments = [_argument(given) for given in copy.deepcopy(case["input"])]
    assert_same(FUNCTIONS[case["function"]](*arguments, **case["kwargs"]), case["output"])


def test_a_group_without_a_valid_reward_stays_as_it_is() -> None:
    """normalize_no_valid_items: upstream divides by zero."""
    (group,) = copy.deepcopy(CASES["normalize_no_valid_items"]["input"])
    _, items = ours.default_normalize_group_data(tuple(group))
    assert [(i["reward"], i["raw_reward"]) for i in items] == [(-1, -1), (-1, -1)]


def test_padding_from_less_than_half_keeps_the_total_reward() -> None:
    """pad_below_half_3_to_8: upstream fails an assertion, with the rewards already scaled."""
    group, size = copy.deepcopy(CASES["pad_below_half_3_to_8"]["input"])
    total = sum(i["reward"] for i in group[1])
    _, items = ours.default_pad_group_data(tuple(group), size)
    assert [i["uid"] for i in items] == ["u0", "u1", "u2", "u0", "u1", "u2", "u0", "u1"]
    assert math.isclose(sum(i["reward"] for i in items), total * 8 / 3)


def test_thresholds_are_truncated_as_upstream_does() -> None:
    for row in CASES["thresholds"]["output"]:
        config = TaskConfig(
            group_size=row["group_size"],
            min_valid_group_size_ratio=row["ratio"],
            min_valid_item_size_ratio=row["ratio"],
        )
        assert config.finish_at == config.keep_at == row["int(group_size*ratio)"]


@pytest.mark.parametrize("name", [name for name in PIPES if name not in FIXED])
async def test_a_read_gives_upstreams_figures(
    name: str, redis: ground.Client, make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]
    exact_clock = "exactly" in name
    if exact_clock:
        if not isinstance(redis, fakeredis.FakeRedis):
            pytest.skip("a real server's clock cannot be stopped")
        stop_clock(monkeypatch)
    bench = await played(make, case)
    for step, expected in zip(case["input"]["steps"], case["output"], strict=True):
        assert_same(await read(bench, step["batch_size"]), expected["result"])


async def test_a_timed_out_group_with_too_few_items_is_discarded_and_told(
    make: Callable[..., Bench],
) -> None:
    """pipe_timeout_below_ratio_kept_until_someone_reads: upstream keeps it for ever."""
    bench = await played(make, CASES["pipe_timeout_below_ratio_kept_until_someone_reads"])
    assert await bench.buffer.take() is None
    assert await bench.buffer.unreported() == ["a"]
    stats = await bench.buffer.catalog.stats()
    assert (stats["expired"], stats["expired_items"], stats["open_groups"]) == (1, 6, 0)


async def test_a_group_never_comes_out_larger_than_group_size(make: Callable[..., Bench]) -> None:
    """pipe_more_items_than_group_size: upstream delivers 6 of a group of 4."""
    bench = await played(make, CASES["pipe_more_items_than_group_size"])
    batch = await bench.buffer.take()
    assert batch is not None
    assert [i["uid"] for i in batch.items] == ["a-u0", "a-u1", "a-u2", "a-u3"]
    assert_same([i["reward"] for i in batch.items], [0.9999999800000003, -0.9999999800000003] * 2)


async def test_six_timed_out_groups_are_all_delivered(make: Callable[..., Bench]) -> None:
    """pipe_bug_padded_timeouts_lose_groups: upstream delivers five and loses g5."""
    case = CASES["pipe_bug_padded_timeouts_lose_groups"]
    bench = await played(make, case)
    batch = await bench.buffer.take()
    assert batch is not None
    assert [instance for instance, _ in batch.groups] == [f"g{n}" for n in range(6)]
    assert batch.finished_groups == [f"g{n}" for n in range(6)]
    upstream = case["output"][0]["result"]["data"]
    assert_same(shown(batch.items)[: len(upstream)], upstream)


async def test_a_small_batch_leaves_the_rest_in_place(make: Callable[..., Bench]) -> None:
    """pipe_bug_small_batch_loses_rest: upstream deletes b and c with a."""
    bench = await played(make, CASES["pipe_bug_small_batch_loses_rest"])
    for instance_id in ("a", "b", "c"):
        batch = await bench.buffer.take(1)
        assert batch is not None
        assert batch.finished_groups == [instance_id]
    assert await bench.buffer.take(1) is None


async def played(make: Callable[..., Bench], case: dict[str, Any]) -> Bench:
    """The writes of a pipe case."""
    bench = make(**case["kwargs"])
    for write in case["input"]["writes"]:
        if "advance" in write:
            bench.advance(write["advance"])
        else:
            await bench.fill(write["instance_id"], write["rewards"])
    return bench


async def read(bench: Bench, batch_size: int) -> dict[str, Any]:
    """One read, shown as the cases show it."""
    size = (await bench.buffer.config()).group_size
    batch = await bench.buffer.take(None if batch_size < 0 else batch_size // size)
    left = {group.instance_id: group.items for group in await bench.buffer.catalog.groups("open")}
    if batch is None:
        return {"data": [], "meta_info": {}, "left_in_data": left}
    # Upstream lists finished groups in the order of their first write, discarded or not.
    told = {name: value for name, value in batch.meta_info.items() if name != "receipt"}
    told["finished_groups"] = sorted(told["finished_groups"])
    return {"data": shown(batch.items), "meta_info": told, "left_in_data": left}


def shown(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    keys = ("instance_id", "uid", "reward", "raw_reward")
    return [{key: found[key] for key in keys} for found in items]


def stop_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    module = fakeredis.commands_mixins.server_mixin

    class Stopped:
        time = staticmethod(lambda: 1_000_000.0)

    monkeypatch.setattr(module, "time", Stopped)


def assert_same(found: Any, expected: Any) -> None:
    """Equal, tuples being lists and floats within 1e-12."""
    if isinstance(expected, dict):
        assert set(found) == set(expected)
        for key in expected:
            assert_same(found[key], expected[key])
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, float) or (isinstance(found, float) and expected is not None):
        assert math.isclose(found, expected, rel_tol=1e-12, abs_tol=1e-15)
        assert type(found) is type(expected)
    else:
        assert found == expected


def _argument(given: Any) -> Any:
    if isinstance(given, list) and len(given) == 2 and isinstance(given[1], list):
        return tuple(given)
    if isinstance(given, dict) and given.get("reward") == "NaN (float)":
        return given | {"reward": math.nan}
    return given

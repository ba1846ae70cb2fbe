"""A task's own functions: their order, their defaults, and what each may do wrong."""

import asyncio
import math
import threading
import time
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

from buffer import TaskConfig
from buffer.default_functions import (
    default_filter_item,
    default_get_group_data_meta_info,
    default_is_valid_group,
    default_normalize_group_data,
    default_pad_group_data,
)
from buffer.generator import base_generator
from buffer.group_functions import GroupFunctions
from buffer.reading.taking import Taking
from tests.buffer.conftest import Bench

Make = Callable[..., Bench]
DEFAULTS: dict[str, Callable[..., Any]] = {
    "get_group_data_meta_info": default_get_group_data_meta_info,
    "is_valid_group": default_is_valid_group,
    "filter_item": default_filter_item,
    "normalize_group_data": default_normalize_group_data,
    "pad_group_data": default_pad_group_data,
}
HARMS: dict[str, Callable[[], Any]] = {
    "raises": lambda: {}["reward"],
    "ends the process": lambda: (_ for _ in ()).throw(SystemExit),
    "sleeps": lambda: time.sleep(60),
    "returns nonsense": lambda: object(),
}


async def test_the_steps_of_a_read_run_in_the_documents_order(make: Make) -> None:
    called: list[str] = []

    def noted(name: str) -> Callable[..., Any]:
        def step(*given: Any) -> Any:
            called.append(name)
            return DEFAULTS[name](*given)

        return step

    names = [name for name in DEFAULTS if name != "is_valid_group"]
    bench = make(functions=GroupFunctions(**{name: noted(name) for name in names}))
    await bench.fill("a", [1, 0, 1, 0])
    assert await bench.buffer.take() is not None
    assert list(dict.fromkeys(called)) == names


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("name", DEFAULTS)
async def test_a_function_harms_the_group_it_fails_on_alone(
    make: Make, name: str, harm: str
) -> None:
    def step(given: Any, *more: Any) -> Any:
        if "bad" in str(given):
            return HARMS[harm]()
        return DEFAULTS[name](given, *more)

    limit = 0.5 if harm == "sleeps" else 30
    bench = make(functions=GroupFunctions(**{name: step}), function_timeout=limit)
    await bench.fill("bad", [1, 0, 1, 0])
    await bench.fill("good", [1, 0, 1, 0])
    batch = await bench.buffer.take()
    assert batch is not None
    if name == "get_group_data_meta_info":
        assert (batch.finished_groups, batch.figures) == (["bad", "good"], {})
    elif (name, harm) == ("filter_item", "returns nonsense"):  # whatever is true keeps the item
        assert batch.finished_groups == ["bad", "good"]
    else:
        assert batch.finished_groups == ["good"]
        (found,) = await bench.buffer.catalog.quarantined()
        assert found.instance_id == "bad"
        assert name in found.reason


async def test_what_is_no_json_is_told_with_the_name_of_the_function_that_made_it(
    make: Make,
) -> None:
    def by_zero(group: Any) -> Any:
        return group[0], [found | {"reward": math.nan} for found in group[1]]

    bench = make(functions=GroupFunctions(normalize_group_data=by_zero))
    await bench.fill("a", [1, 0, 1, 0])
    assert await bench.buffer.take() is None
    (found,) = await bench.buffer.catalog.quarantined()
    assert found.reason == (
        "normalize_group_data of math: ValueError: Out of range float values are not JSON compliant"
    )


@pytest.mark.parametrize(
    "name",
    ["is_valid_group", "filter_item", "normalize_group_data", "pad_group_data", "transform_group"],
)
async def test_an_async_function_is_refused_by_its_name(make: Make, name: str) -> None:
    async def step(*given: Any) -> Any: ...

    bench = make(functions=GroupFunctions(**{name: step}))
    await bench.fill("a", [1, 0, 1, 0])
    assert await bench.buffer.take() is None
    (found,) = await bench.buffer.catalog.quarantined()
    assert found.reason == (
        f"{name} of math: TypeError: it is async; group functions are plain functions"
    )


async def test_functions_that_all_run_out_of_time_do_not_outlast_the_lease(make: Make) -> None:
    functions = GroupFunctions(filter_item=lambda *_: time.sleep(60))
    bench = make(functions=functions, function_timeout=0.3, lease=2)
    for n in range(8):
        await bench.fill(f"g{n}", [1, 0, 1, 0])
    while len(await bench.buffer.catalog.quarantined()) < 8:
        assert await bench.buffer.take() is None


@pytest.mark.parametrize("name", ["is_valid_group", "filter_item"])
async def test_a_read_whose_time_is_over_leaves_the_rest_for_the_next(
    make: Make, name: str
) -> None:
    def step(given: Any, *more: Any) -> Any:
        return time.sleep(60) if "bad" in str(given) else DEFAULTS[name](given, *more)

    functions = GroupFunctions(**{name: step})
    bench = make(functions=functions, function_timeout=0.3, longest_wait=0.3)
    for group in ("bad 1", "bad 2", "good"):
        await bench.fill(group, [1, 0, 1, 0])
    assert await bench.buffer.take() is None
    assert [group.instance_id for group in await bench.buffer.catalog.quarantined()] == ["bad 1"]
    assert await bench.buffer.take() is None
    batch = await bench.buffer.take()
    assert batch is not None
    assert batch.finished_groups == ["good"]
    assert await bench.buffer.catalog.stats() | {"quarantined": 2, "ready_groups": 0} == (
        await bench.buffer.catalog.stats()
    )


def test_a_time_limit_is_for_functions_of_a_user_alone() -> None:
    names = [field.name for field in fields(GroupFunctions)]
    assert not GroupFunctions().custom
    assert all(GroupFunctions(**{name: list}).custom for name in names)
    assert GroupFunctions(**dict.fromkeys(names, list)).custom


def test_the_parameters_have_the_documents_defaults() -> None:
    config = TaskConfig(group_size=8)
    assert config.min_valid_group_size_ratio == 1
    assert config.min_valid_item_size_ratio == 0.7
    assert config.group_timeout_seconds == 300
    assert config.min_timeout_group_size_ratio == 0.7
    assert config.max_buffer_size == 1_000_000_000
    assert (config.finish_at, config.keep_at) == (8, 5)


def test_a_rollout_has_ten_epochs_and_a_hundred_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, Any] = {}

    class Recorded:
        def __init__(self, *_: Any, **given: Any) -> None:
            made.update(given)

        def entry(self, *given: Any) -> None:
            made["num_epoch"] = given[-1]

    monkeypatch.setattr(base_generator, "BaseGenerator", Recorded)
    urls = {"remote_engine_url": "http://engine", "remote_buffer_url": "http://buffer"}
    base_generator.run_rollout(
        {**urls, "task_type": "math", "input_file": "x", "num_repeat_per_sample": "8"}
    )
    assert (made["num_epoch"], made["num_process"]) == (10, 100)


@pytest.mark.parametrize(("ratio", "warned"), [(0.5, 1), (0.51, 0)])
async def test_a_ratio_that_pads_from_half_warns_once(
    make: Make, ratio: float, warned: int, caplog: pytest.LogCaptureFixture
) -> None:
    bench = make(min_valid_item_size_ratio=ratio)
    for _ in range(3):
        assert await bench.buffer.take() is None
    assert sum("greater than 0.5" in line for line in caplog.messages) == warned
    await bench.buffer.configure(TaskConfig(group_size=8, min_valid_item_size_ratio=ratio))
    assert sum("greater than 0.5" in line for line in caplog.messages) == 2 * warned


async def test_a_reader_without_the_tasks_validity_is_told_why_it_gets_nothing(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    other = make(functions=GroupFunctions(is_valid_group=default_is_valid_group))
    bench = make()
    await other.buffer.config()
    assert await bench.buffer.take() is None
    assert caplog.messages == []
    await other.fill("a", [1, 0, 1, 0])
    for _ in range(2):
        assert await bench.buffer.take() is None
    (said,) = caplog.messages
    assert "groups wait for an is_valid_group" in said
    assert await other.buffer.take() is not None


async def test_a_read_that_is_cancelled_gives_its_groups_back(make: Make) -> None:
    asked, go_on = threading.Event(), threading.Event()

    def is_slow(*given: Any) -> Any:
        asked.set()
        go_on.wait(100)
        return default_normalize_group_data(*given)

    bench = make(functions=GroupFunctions(normalize_group_data=is_slow))
    for name in "ab":
        await bench.fill(name, [1, 0, 1, 0])
    read = asyncio.create_task(bench.buffer.take(10))
    await asyncio.to_thread(asked.wait, 100)
    assert (await bench.buffer.catalog.stats())["leased_groups"] == 2
    read.cancel()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await read
    batch = await bench.buffer.take(10)
    assert batch is not None
    assert batch.finished_groups == ["a", "b"]


async def test_a_read_that_fails_gives_its_groups_back(make: Make, monkeypatch) -> None:
    bench = make()
    await bench.fill("a", [1, 0, 1, 0])
    with monkeypatch.context() as failing:
        failing.setattr(Taking, "_seal", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await bench.buffer.take()
    assert await bench.buffer.take() is not None

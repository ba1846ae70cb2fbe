"""What scripts read of a task's settings stands in one field, `packed`."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import buffer
from buffer import Policy, TaskConfig
from tests.buffer.conftest import Bench

LUA = Path(buffer.__file__).parent / "lua"
ELSEWHERE = {
    "set": {"idle"},  # a field of its own
    "policy": {
        "version", "taken", "epoch", "top", "line", "since", "saved", "fence", "lua",
        "todo", "stale", "returned", "gone",
    },
}  # fmt: skip


def packed(flat: list[Any]) -> set[str]:
    return set(json.loads(dict(zip(flat[::2], flat[1::2], strict=True))["packed"]))


def read_of(table: str) -> set[str]:
    scripts = "".join(file.read_text() for file in LUA.glob("*.lua"))
    return set(re.findall(rf"\b{table}\.([a-z_]+)", scripts)) - ELSEWHERE[table]


def test_every_setting_that_a_script_reads_is_packed() -> None:
    config = TaskConfig(group_size=2, max_bytes=1000)
    assert read_of("set") <= packed(config.to_redis(custom=False, custom_meta=False))
    assert read_of("policy") <= packed(Policy(groups_per_version=2, max_age=1).to_redis())


async def test_a_task_that_an_earlier_release_configured_goes_on(
    make: Callable[..., Bench],
) -> None:
    bench = make(group_size=2)
    await bench.buffer.config()
    bench.redis.hdel(bench.key("config"), "packed")
    await bench.fill("p", [1, 0])
    batch = await bench.buffer.take()
    assert batch is not None
    assert [name for name, _ in batch.groups] == ["p"]

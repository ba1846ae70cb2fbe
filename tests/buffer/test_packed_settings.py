"""What scripts read of a task's settings stands in one field, `packed`."""

import json
import re
from pathlib import Path
from typing import Any

import buffer
from buffer import Policy, TaskConfig

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

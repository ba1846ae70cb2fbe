"""The math task, and the template: copy this file to `<your task>_generator.py`.

1. Name your task in `TASK_TYPE`; no two generators share a name.
2. Write `run_rollout(data)`: it produces trajectories and sends them to the buffer.
3. Where the defaults do not fit, define any of `get_group_data_meta_info`,
   `is_valid_group`, `filter_item`, `normalize_group_data` and `pad_group_data`.
"""

from typing import Any

from buffer.generator import (
    SAMPLING_PARAMS,
    BaseGenerator,
    get_rule_based_math_reward,
    query_single_turn,
)

TASK_TYPE = "math"


def run_rollout(data: dict[str, Any]) -> None:
    """Generate for every line of `input_file`; `data` is what the trainer sent."""
    SAMPLING_PARAMS.update(data.get("sampling_params", {}))
    generator = BaseGenerator(
        data["remote_engine_url"],
        data["remote_buffer_url"],
        num_repeat_per_sample=int(data["num_repeat_per_sample"]),
        max_tokens=int(SAMPLING_PARAMS.get("max_tokens") or data.get("max_tokens", 4096)),
        num_process=int(data.get("num_process", 100)),
        task_type=data["task_type"],
        skip_instance_ids=data.get("skip_instance_ids"),
        interrupt_on_publish=data.get("interrupt_on_publish") or False,
    )
    generator.entry(
        data["input_file"],
        query_single_turn,
        get_rule_based_math_reward,
        int(data.get("num_epoch", 10)),
    )


def is_valid_group(
    group: tuple[Any, list[dict[str, Any]]], min_valid_group_size: int, task_type: str = "math"
) -> tuple[bool, bool]:
    """(valid, finished): finished by count, valid if enough answers are not blank."""
    _, items = group
    answered = [item for item in items if (item["messages"][-1]["content"] or "").strip()]
    finished = len(items) >= min_valid_group_size
    return finished and len(answered) >= min_valid_group_size, finished

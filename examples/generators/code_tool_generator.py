"""Trajectories of a model that runs code: its tool goes through a `CodeQueue`.

    penstock worker --sandbox local &
    penstock buffer serve --generators examples/generators --inputs data

The trainer starts it with `task_type` "code_tool". Each line of `input_file` has a
`prompt`, as chat messages, and a `label`, the number that is right. Whatever the model
puts between ```python and ``` is run by the workers of the queue "code", on the Redis
of PENSTOCK_REDIS_URL, and it reads the output, for a few turns.

What a program does wrong is the model's to see. What goes wrong around it is nobody's
fault here: the question is asked again, and written as a failure after three times,
which no trainer learns from.
"""

import os
import re
from functools import cache
from typing import Any

from buffer.generator import BaseGenerator, query_single_turn
from worker import CodeQueue, CodeRequest, CodeResult

TASK_TYPE = "code_tool"
TURNS = 4
CODE = re.compile(r"```python\n(.*?)```", re.DOTALL)
ANSWER = re.compile(r"Answer: *(-?\d+)")
Messages = list[dict[str, Any]]


def run_rollout(data: dict[str, Any]) -> None:
    """Answer every line of the input file."""
    generator = BaseGenerator(
        data["remote_engine_url"],
        data["remote_buffer_url"],
        num_repeat_per_sample=int(data["num_repeat_per_sample"]),
        num_process=int(data.get("num_process", 100)),
        task_type=data["task_type"],
        max_tokens=int(data.get("max_tokens", 4096)),
        skip_instance_ids=data.get("skip_instance_ids"),
    )
    generator.entry(data["input_file"], solve, reward, int(data.get("num_epoch", 10)))


def solve(client: Any, messages: Messages, sampling: dict[str, Any]) -> tuple[Messages, str | None]:
    """Ask the model and run its code, until it writes no more of it."""
    reason = None
    for _ in range(TURNS):
        messages, reason = query_single_turn(client, messages, sampling)
        programs = CODE.findall(messages[-1]["content"] or "")
        if not programs:
            break
        result = code_queue().sync.run(CodeRequest(code=programs[-1], run_timeout=10), timeout=120)
        messages = [*messages, {"role": "user", "content": output_of(result)}]
    return messages, reason


def output_of(result: CodeResult) -> str:
    """What the model reads."""
    if result.error_kind == "infrastructure":
        raise RuntimeError(f"no sandbox ran the program: {result.message}")
    return f"Output:\n{result.stdout}{result.stderr}"


def reward(item: dict[str, Any]) -> float:
    """1 for the right number in the last answer, else 0."""
    said = [turn["content"] for turn in item["messages"] if turn["role"] == "assistant"]
    found = ANSWER.search(said[-1] or "")
    return float(found is not None and found[1] == str(item["label"]))


@cache
def code_queue() -> CodeQueue:
    """One per process: its connection serves all of its programs."""
    return CodeQueue(os.environ["PENSTOCK_REDIS_URL"], "code")

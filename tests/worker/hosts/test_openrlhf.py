"""Our file for OpenRLHF, loaded by its path and called as OpenRLHF calls it."""

import asyncio
import importlib.util
import json
import math
import subprocess
import sys
from types import ModuleType

import pytest

from tests.architecture.source import ROOT
from tests.harness import killing
from tests.harness.servers import free_port, until, url_of
from tests.worker.concurrent.crew import at_work, nothing_left
from tests.worker.hosts.programs import ASLEEP, ENDLESS, RIGHT, SQUARES

PROMPT = (
    "<|im_start|>user\nAs ```python\nprint(0)\n```, but squared<|im_end|>\n<|im_start|>assistant\n"
)
LABEL = json.dumps(SQUARES)


@pytest.fixture(scope="module")
def loaded() -> ModuleType:
    """As `SingleTurnAgentExecutor` loads it."""
    path = subprocess.run(
        [sys.executable, "-m", "worker.hosts.openrlhf"],
        capture_output=True, text=True, cwd=ROOT, check=True,
    ).stdout.strip()  # fmt: skip
    spec = importlib.util.spec_from_file_location("reward_func", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_it_is_asked_in_threads_about_one_completion_each(loaded) -> None:
    answers = [f"{RIGHT}<|im_end|>", "I do not know.<|im_end|>", f"{RIGHT}<|im_end|>"]
    labels = [LABEL, LABEL, "{"]
    found = await asyncio.gather(
        *(
            asyncio.to_thread(loaded.reward_func, [PROMPT + answer], [PROMPT], [label])
            for answer, label in zip(answers, labels, strict=True)
        )
    )
    assert found[:2] == [
        {"rewards": value, "scores": value, "extra_logs": {"traj_masked": 0.0}}
        for value in (1.0, 0.0)
    ]
    assert (found[2]["rewards"], found[2]["extra_logs"]) == (0.0, {"traj_masked": 1.0})
    assert math.isnan(found[2]["scores"])


def test_a_prompt_that_was_cut_is_no_part_of_the_answer(loaded) -> None:
    found = loaded.reward_func([PROMPT[20:] + RIGHT], [PROMPT], [LABEL])
    assert found["rewards"] == 1.0


def test_a_prompt_whose_blanks_changed_is_no_part_of_the_answer(loaded) -> None:
    """A tokenizer may take a blank out. The prompt's own program must not be graded."""
    prompt = PROMPT.replace("print(0)", "print(int(input()) ** 2)").replace(", but", " , but")
    query = prompt.replace(" , but", ", but") + "I do not know.<|im_end|>"
    assert loaded.reward_func([query], [prompt], [LABEL])["rewards"] == 0.0


def test_a_slow_program_is_a_zero_and_a_dead_redis_masks(loaded) -> None:
    slow = loaded.CodeReward(case_timeout=0.3)([PROMPT + ENDLESS], [PROMPT], [LABEL])
    assert (slow["scores"], slow["extra_logs"]["traj_masked"]) == (0.0, 0.0)
    dead = loaded.CodeReward(on=f"redis://127.0.0.1:{free_port()}", patience=0.3)
    found = dead([PROMPT + RIGHT] * 2, [PROMPT] * 2, [LABEL] * 2)
    assert found["rewards"] == [0.0, 0.0]
    assert all(map(math.isnan, found["scores"]))
    assert found["extra_logs"] == {"traj_masked": 1.0}


def asks(url: str) -> None:
    """A scenario: killed while its program runs."""
    from worker.hosts.openrlhf import CodeReward

    CodeReward(on=url, case_timeout=600.0)([ASLEEP], [""], [LABEL])


def test_a_killed_trainers_programs_end(real_redis) -> None:
    with at_work(real_redis, sandbox="local", job_lease=2.0):
        with killing.Child(asks, url_of(real_redis)) as child:
            until(lambda: real_redis.zcard("rq:wip:code") == 1, "the job")
            child.kill()
        until(lambda: nothing_left(real_redis) == {}, "the end of the job")

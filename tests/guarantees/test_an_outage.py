"""A sandbox is away for minutes: a training waits for it, and trains on nothing that is false."""

import asyncio
import subprocess
from typing import Any

import pytest

from ground.breaker import State
from tests.harness.servers import url_of
from tests.penstock import commands
from tests.worker.concurrent.outage import (
    TRUTH,
    Watch,
    fleet,
    trained_through_an_outage,
)
from worker import TrainingPaused
from worker.hosts.grading import Grader

# A clock on which a minute is about a second: fewer attempts, and a shorter window.
QUICK = {"PENSTOCK_SANDBOX_ATTEMPTS": "2", "PENSTOCK_BREAKER_LAST": "16"}
QUEUE, GATE = "penstock:work:{code}", "penstock:gate:{box}"
GATED = ("--gate", "box", "--gate-limit", "4")


@pytest.fixture(params=[(QUEUE, ()), (GATE, GATED)], ids=["a queue", "a gate"])
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


def is_true(training: Any, most_masked: int) -> None:
    """Nothing false was trained on, and every program was either masked or trained on."""
    assert training.false == []
    assert training.counts["masked"] < most_masked
    assert training.counts["masked"] + training.counts["trained"] == training.counts["programs"]


async def test_a_training_with_an_outage_trains_on_nothing_false_and_resumes(
    real_redis: Any, kind: Any
) -> None:
    key, options = kind
    with fleet(real_redis, *options, **QUICK) as sandbox:
        watch = Watch(real_redis, key)
        training, back, _ = await trained_through_an_outage(real_redis, sandbox, watch, 1, 3, 1)
    is_true(training, most_masked=16)
    assert sum(step > back for step in training.steps) >= 1
    assert any("programs had no outcome: no connection to" in reason for reason in watch.reasons)


@pytest.mark.soak
async def test_a_training_of_ten_minutes_with_an_outage_of_three(
    real_redis: Any, kind: Any
) -> None:
    """With the settings that everybody has."""
    key, options = kind
    with fleet(real_redis, *options) as sandbox:
        watch = Watch(real_redis, key)
        training, back, closed = await trained_through_an_outage(
            real_redis, sandbox, watch, 180, 180, 240
        )
    print(training.counts, len(training.steps), f"closed {closed:.1f} s after the outage")
    is_true(training, most_masked=64)
    assert sum(step > back for step in training.steps) > 10
    assert closed < 30


async def test_a_grader_that_is_to_raise_raises_and_grades_again_when_it_is_asked_later(
    real_redis: Any, kind: Any
) -> None:
    key, options = kind
    with fleet(real_redis, *options, **QUICK) as sandbox:
        watch = Watch(real_redis, key)
        grader = Grader(on=url_of(real_redis), when_paused="raise")
        program = "```python\nprint(9)\n```"
        assert (await grader.grade(program, TRUTH)).value == 1.0
        sandbox.kill()
        with pytest.raises(TrainingPaused, match=r"had no outcome.* penstock top"):
            await asyncio.gather(*(grader.grade(program, TRUTH) for _ in range(40)))
        sandbox.start()
        async with asyncio.timeout(100):
            while True:
                try:
                    grade = await grader.grade(program, TRUTH)
                except TrainingPaused as paused:
                    await asyncio.sleep(paused.retry_after)
                    continue
                break
        assert grade.value == 1.0
        await watch.until(State.CLOSED)


async def test_who_looks_reads_what_the_breaker_has_counted(real_redis: Any, kind: Any) -> None:
    key, options = kind
    with fleet(real_redis, *options, **QUICK) as sandbox:
        watch = Watch(real_redis, key)
        grader = Grader(on=url_of(real_redis))
        sandbox.kill()
        grades = [
            asyncio.create_task(grader.grade("```python\nprint(9)\n```", TRUTH)) for _ in range(40)
        ]
        await watch.until(State.OPEN)
        seen: list[subprocess.CompletedProcess[str]] = []
        for words in (["top", "--once"], ["queues", "ls", "--json"], ["limits", "ls", "--json"]):
            given = {"PENSTOCK_REDIS_URL": url_of(real_redis)}
            seen.append(await asyncio.to_thread(commands.run, *words, **given))
        sandbox.start()
        assert sum(grade.value == 1.0 for grade in await asyncio.gather(*grades)) > 24
    reason = "of the last 8 programs had no outcome: no connection to"
    assert f"by {'its' if key == QUEUE else 'a'} breaker: 8 {reason}" in seen[0].stdout
    assert reason in seen[1].stdout if key == QUEUE else reason in seen[2].stdout

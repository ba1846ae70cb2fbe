"""The demo's trainer counts every group once, whichever way it hears of it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

import ground
from buffer import RolloutBuffer, TaskConfig
from penstock.demo.story import Trainer


@pytest.fixture
async def buffer(redis: ground.Client) -> AsyncIterator[RolloutBuffer]:
    config = TaskConfig(group_size=2, group_timeout_seconds=0.001)
    made = RolloutBuffer(redis, "demo", config, run="demo")
    yield made
    await made.aclose()


def an_item(question: str, sample: int) -> dict[str, Any]:
    return {"instance_id": question, "uid": f"{question}-{sample}", "messages": [],
            "reward": sample}  # fmt: skip


async def timed_out(buffer: RolloutBuffer, question: str) -> None:
    """A group of which one item came in time."""
    await buffer.write(an_item(question, 0))
    async with asyncio.timeout(100):
        while question not in await buffer.unreported():
            await buffer.sweep()


async def test_a_group_that_timed_out_is_heard_of_with_the_next_batch(
    buffer: RolloutBuffer,
) -> None:
    await timed_out(buffer, "stray")
    await buffer.write_many([an_item("whole", 0), an_item("whole", 1)])
    told: list[Any] = []
    trainer = Trainer(buffer, told.append)
    async with asyncio.timeout(100):
        await trainer.train(2)
    assert (trainer.delivered, trainer.timed_out, told) == (1, ["stray"], ["stray"])


async def test_a_group_that_timed_out_is_heard_of_without_a_batch(buffer: RolloutBuffer) -> None:
    await timed_out(buffer, "stray")
    told: list[Any] = []
    trainer = Trainer(buffer, told.append)
    async with asyncio.timeout(100):
        await trainer.train(1)
    assert (trainer.delivered, trainer.timed_out, told) == (0, ["stray"], ["stray"])


async def test_a_group_that_was_told_before_its_batch_is_counted_once(
    buffer: RolloutBuffer,
) -> None:
    await timed_out(buffer, "stray")
    told: list[Any] = []
    trainer = Trainer(buffer, told.append)
    async with asyncio.timeout(100):
        await trainer.train(1)
        await buffer.write_many([an_item("whole", 0), an_item("whole", 1)])
        await trainer.train(2)
    assert (trainer.delivered, trainer.timed_out, told) == (1, ["stray"], ["stray"])

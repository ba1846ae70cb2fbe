"""Agents, gateways and Redis as processes, and SIGKILL for all but the agents.

No turn whose answer an agent has is lost, none is there twice, and every row proves itself.
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from buffer import RolloutBuffer, TaskConfig
from gateway.items import rows_in
from gateway.packing import spread
from tests.gateway.fleet import Agents, Heard, Process, fleet
from tests.gateway.scripted.model import misproved
from tests.harness.servers import PrivateRedis

Start = Callable[..., PrivateRedis]


async def check(buffer: RolloutBuffer, heard: Heard) -> Counter[str]:
    """Compare what is in the buffer with what agents heard."""
    found: Counter[str] = Counter()
    left = dict(heard.answers)
    while (batch := await buffer.take(256, max_bytes=32 * 1024 * 1024)) is not None:
        for item in batch.items:
            await asyncio.to_thread(check_item, item, left.pop(item["session"]), found)
        await buffer.ack(batch)
    assert not left, "sessions are lost"
    return found


def check_item(item: dict[str, Any], answers: list[str], found: Counter[str]) -> None:
    assert "cause" not in item, item["cause"]
    trained: Counter[int] = Counter()
    for row, _ in rows_in(item):
        begin = len(row.tokens) - row.response_length
        mask = [0] * begin + spread(row.mask)
        logprobs = [0.0] * begin + list(row.logprobs)
        versions = [-1] * begin + spread(row.versions)
        assert misproved(row.tokens, mask, logprobs, versions) == []
        for call, first, end, _ in row.calls:
            trained[call] += sum(mask[first:end]) > 0
        found["tokens"] += sum(mask)
        found["rows"] += 1
    assert set(trained.values()) <= {0, 1}, "a turn is trained on twice"
    for answer in answers:
        call = int(answer.rpartition("-")[2])
        assert trained[call] == 1, f"{answer} is lost: {answers}, {item['counts']}, {dict(trained)}"
    assert len(set(answers)) == len(answers), "two requests have one answer"
    found["turns"] += len(answers)
    found["broken"] += item["counts"].get("broken", 0)


async def math_buffer(server: PrivateRedis) -> RolloutBuffer:
    """The buffer of the task that agents play, where each trajectory is a group."""
    buffer = RolloutBuffer(server.url, "math", TaskConfig(group_size=1, dialect="v1"))
    await buffer.config()
    return buffer


async def test_kills_of_gateways_and_of_redis_lose_no_turn(
    private_redis: Start, tmp_path: Path
) -> None:
    server = private_redis(aof=True)
    heard, buffer = Heard(), await math_buffer(server)
    with fleet(tmp_path, server.url, 2) as gateways:
        agents = Agents(gateways, heard, 1)
        running = asyncio.create_task(agents.run(16, at_once=8, turns=4))
        try:
            await heard.until(10)
            gateways[0].kill()
            await heard.until(25)
            server.restart()
            gateways[0].launch()
            await heard.until(40)
            gateways[1].kill()
            gateways[1].launch()
            await running
        finally:
            running.cancel()
            await agents.aclose()
    found = await check(buffer, heard)
    assert found["turns"] == 16 * 4
    assert heard.retries > 0
    await buffer.aclose()


@pytest.mark.soak
async def test_ten_thousand_sessions_outlive_a_kill_every_twenty_seconds(
    private_redis: Start, tmp_path: Path
) -> None:
    """Of a gateway; and of Redis every two minutes."""
    server = private_redis(aof=True)
    heard, buffer = Heard(), await math_buffer(server)
    with fleet(tmp_path, server.url, 3) as gateways:
        agents = Agents(gateways, heard, 2)
        killing = asyncio.create_task(kill(gateways, server))
        try:
            await agents.run(10_000, at_once=64, turns=3)
        finally:
            killing.cancel()
            await agents.aclose()
    found = await check(buffer, heard)
    print(dict(found), "retries", heard.retries)
    assert found["turns"] == 30_000
    await buffer.aclose()


async def kill(gateways: list[Process], server: PrivateRedis) -> None:
    for number in itertools.count(1):
        await asyncio.sleep(20)  # that is how often
        gateway = gateways[number % len(gateways)]
        gateway.kill()
        gateway.launch()
        if number % 6 == 0:
            await asyncio.to_thread(server.restart)

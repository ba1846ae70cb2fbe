"""A loop's wire, interrupted at every statement, one after the other; in a process of its own."""

import asyncio
from typing import Any

from ground.redis import async_connection, loop_wire, wire
from ground.redis.url import parse_redis_url
from tests.harness.interrupting import Interrupts

KEYS = range(3)


def is_interrupted_at_every_statement(url: str) -> None:
    """Nobody gets what another asked for, nobody waits for ever, and the next are answered."""
    interrupts = Interrupts(wire, loop_wire, async_connection)
    made = async_connection.AsyncConnection(parse_redis_url(url), {}, timeout=60)
    given: list[Any] = []

    async def ask(key: int) -> None:
        given.append((key, int(await made.ask(("GET", f"key {key}")))))

    async def all_ask() -> None:
        await asyncio.gather(*map(ask, KEYS), return_exceptions=True)

    async def all_are_answered() -> None:
        for key in KEYS:
            await made.ask(("SET", f"key {key}", key))
        given.clear()
        await all_ask()
        assert [key for key, _ in given] == [*KEYS]
        given.clear()

    def each_has_its_own() -> None:
        assert all(key == value for key, value in given), given

    interrupts.at_every_statement(all_are_answered, all_ask, each_has_its_own)

"""The log in Redis: what begins, what is committed, what a retry gets, and how a session ends."""

import random
from dataclasses import replace

import pytest

from gateway.calls import Sent, State
from gateway.record_format import record_of
from gateway.training_rows import Log
from tests.gateway.agents import FATES, FAULTS, STEPS, Agent, How, MemoryLog, World, check
from tests.gateway.conftest import Bench, OneSession
from tests.gateway.scripted.model import Template


def told(log: Log) -> dict[int, tuple[bytes, State, Sent]]:
    """What a log says of its calls, but when they were."""
    return {
        n: (record_of(replace(call, t0=0, t1=0), ""), call.state, call.sent)
        for n, call in log.calls.items()
    }


@pytest.mark.in_turns("seed")
@pytest.mark.parametrize("seed", range(12))
async def test_the_log_does_what_its_model_in_memory_does(bench: Bench, seed: int) -> None:
    """The same agents with both logs: the same calls, and rows that prove themselves."""
    chance = random.Random(seed)
    mode = chance.choice("RE")
    story = [
        (
            chance.choice(STEPS),
            How(
                fate=chance.choice(["whole"] * 5 + [fate for fate in FATES if fate != "lost"]),
                fault=chance.choice([""] * 8 + list(FAULTS)),
                cut=chance.choice([0, 0, 0, 2]),
                bumps=chance.choice([0, 0, 1, 3]),
            ),
        )
        for _ in range(12)
    ]
    session = await bench.open()
    memory, real = MemoryLog(), OneSession(bench.log, session, bench.redis)
    agents = [Agent(World(seed, log, mode=mode, template=Template())) for log in (memory, real)]
    for name, how in story:
        for agent in agents:
            await agent.step(name, how)
    found = await bench.log.freeze(session)
    assert told(found) == told(memory.log())
    check(found, agents[1].world.seen)

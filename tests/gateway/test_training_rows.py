"""Rows from the log: every trained token proves its own context, whatever the agent does."""

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.gateway.agents import FATES, FAULTS, STEPS, Agent, How, MemoryLog, World, check
from tests.gateway.scripted.model import Template

TEMPLATES = {
    "R": [Template(), Template(strips=False)],
    "E": [
        Template(), Template(strips=False), Template(counts_turns=True), Template(moves_tools=True)
    ],
}  # fmt: skip
often = lambda usual, others: st.one_of(st.just(usual), st.just(usual), st.sampled_from(others))  # noqa: E731
hows = st.builds(
    How,
    fate=often("whole", FATES),
    fault=often("", FAULTS),
    cut=often(0, [0, 1, 3]),
    bumps=often(0, [0, 1, 3]),
)
worlds = st.sampled_from(
    [(mode, template) for mode, templates in TEMPLATES.items() for template in templates]
)
stories = st.lists(st.tuples(st.sampled_from(STEPS), hows), min_size=2, max_size=16)


async def play(seed: int, world: tuple[str, Template], story: list[Any]) -> None:
    log = MemoryLog()
    agent = Agent(World(seed, log, mode=world[0], template=world[1]))
    for name, how in story:
        await agent.step(name, how)
    check(log.log(), agent.world.seen)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**20), worlds, stories)
def test_every_trained_token_proves_its_context(seed: int, world: Any, story: list[Any]) -> None:
    asyncio.run(play(seed, world, story))


@pytest.mark.soak
@settings(max_examples=10_000, deadline=None)
@given(st.integers(0, 2**20), worlds, stories)
def test_ten_thousand_sessions_prove_it(seed: int, world: Any, story: list[Any]) -> None:
    asyncio.run(play(seed, world, story))

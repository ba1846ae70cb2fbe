"""The scripts against their models, in any order of events a test can think of.

On a fake, on a server, and on a node of a Cluster: the same scripts, and one model.
"""

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.limiter.clocked import EitherForm
from tests.limiter.gate_machine import GateMachine
from tests.limiter.line_machine import LineMachine


class EitherFormMachine(GateMachine):
    """A plain gate, used by processes that send the plain form and by those that send the full."""

    kind_of_gate = EitherForm


def explore(kind: type[GateMachine], redis: Any, examples: int, steps: int) -> None:
    run_state_machine_as_test(
        lambda: kind(redis),
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )


KINDS = [GateMachine, EitherFormMachine]


@pytest.mark.parametrize("kind", KINDS)
def test_a_gate_does_what_its_model_says(anywhere, kind):
    explore(kind, anywhere, examples=15, steps=25)


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_a_gate_does_what_its_model_says_for_long(anywhere, kind):
    explore(kind, anywhere, examples=1000, steps=50)


WITH = pytest.mark.parametrize(
    ("costs", "shares"), [(True, False), (False, True), (True, True)],
    ids=["costs", "shares", "costs and shares"],
)  # fmt: skip


@WITH
def test_a_line_moves_as_its_model_says(anywhere, costs, shares):
    for seed in range(4):
        live(anywhere, seed, steps=70, costs=costs, shares=shares)


@pytest.mark.soak
@WITH
def test_a_line_moves_as_its_model_says_for_long(anywhere, costs, shares):
    for seed in range(700):
        live(anywhere, seed, steps=200, costs=costs, shares=shares)


def live(redis: Any, seed: int, *, steps: int, costs: bool, shares: bool) -> None:
    machine = LineMachine(redis, seed, costs=costs, shares=shares)
    for step in range(steps):
        try:
            machine.live()
        except AssertionError as wrong:
            raise AssertionError(f"seed {seed}, step {step}: {wrong}") from wrong

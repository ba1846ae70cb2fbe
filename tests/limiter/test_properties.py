"""The scripts against the model, in any order of events a test can think of."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.limiter.gate_machine import GateMachine


def explore(redis: Any, examples: int, steps: int) -> None:
    machine: Callable[[], GateMachine] = lambda: GateMachine(redis)  # noqa: E731
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_a_gate_does_what_its_model_says(redis):
    explore(redis, examples=25, steps=25)


@pytest.mark.soak
def test_a_gate_does_what_its_model_says_for_long(redis):
    explore(redis, examples=2000, steps=50)

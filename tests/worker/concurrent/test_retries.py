"""Between attempts: who is tried again, and after how long."""

import random

import pytest

from ground.errors import SettingError
from jail.errors import SandboxBroken, SandboxBusy, SandboxTimeout, SandboxUnfit, SandboxUnreachable
from worker.run.execution import RetryPolicy

BUSY = SandboxBusy("full", reason="busy")


def waits(policy, failure, attempt, **more):
    return [policy.wait_after(failure, attempt, draw=random.Random(i), **more) for i in range(300)]


@pytest.mark.parametrize("kind", [SandboxBusy, SandboxUnreachable, SandboxTimeout, SandboxBroken])
def test_a_passing_failure_is_tried_again(kind):
    assert RetryPolicy().wait_after(kind("…", reason="x"), 1) is not None


def test_what_cannot_get_better_is_not_tried_again():
    assert RetryPolicy().wait_after(SandboxUnfit("no such page", reason="http_404"), 1) is None


def test_attempts_are_bounded():
    policy = RetryPolicy(attempts=3)
    tried = [policy.wait_after(BUSY, attempt) is not None for attempt in range(1, 6)]
    assert tried == [True, True, False, False, False]


@pytest.mark.parametrize(("attempt", "window"), [(1, 0.5), (2, 1), (3, 2), (6, 16), (9, 30)])
def test_the_window_doubles_up_to_the_longest(attempt, window):
    drawn = waits(RetryPolicy(attempts=10), BUSY, attempt)
    assert window * 0.9 < max(drawn) <= window
    assert min(drawn) < window * 0.1


def test_a_thousandth_attempt_still_waits_a_finite_time():
    assert RetryPolicy(attempts=10_000).wait_after(BUSY, 9_999) <= 30


def test_jobs_that_failed_together_come_back_apart():
    assert len(set(waits(RetryPolicy(), BUSY, 1))) > 290


def test_nobody_comes_back_before_the_time_the_sandbox_asked_for():
    drawn = waits(RetryPolicy(), SandboxBusy("full", reason="busy", retry_after=7), 1)
    assert all(7 <= wait <= 7.5 for wait in drawn)
    assert len(set(drawn)) > 290


@pytest.mark.parametrize(("asked", "least", "most"), [(1e9, 30, 30.5), (-5, 0, 0.5)])
def test_an_absurd_retry_after_is_bounded(asked, least, most):
    wait = RetryPolicy().wait_after(SandboxBusy("full", reason="busy", retry_after=asked), 1)
    assert least <= wait <= most


def test_a_wait_beyond_the_jobs_end_is_not_begun():
    asked = SandboxBusy("full", reason="busy", retry_after=5)
    assert RetryPolicy().wait_after(asked, 1, remaining=4) is None
    assert RetryPolicy().wait_after(asked, 1, remaining=6) is not None


@pytest.mark.parametrize(
    "wrong", [{"attempts": 0}, {"first": 0}, {"first": -1}, {"first": 31}, {"longest": 0.1}]
)
def test_a_policy_that_cannot_work_is_refused(wrong):
    with pytest.raises(SettingError):
        RetryPolicy(**wrong)

"""A process is killed exactly where a test says."""

import pytest

from tests.harness import killing
from tests.harness_itself.scenarios import (
    async_steps,
    fails,
    in_a_thread,
    three_steps,
    waits_for_ever,
)

HERE = "tests.harness_itself.scenarios"


@pytest.fixture
def url(shared_server, real_redis):
    return shared_server.url


def steps(client):
    return [name.decode() for name in client.lrange("steps", 0, -1)]


def test_a_scenario_that_is_not_killed_returns_its_result(url, real_redis):
    outcome = killing.run(three_steps, url)
    assert (outcome.killed, outcome.returned) == (False, "done")
    assert steps(real_redis) == ["one", "two", "three"]


def test_it_is_killed_before_the_second_command_is_sent(url, real_redis):
    at = killing.before("redis:Redis.execute_command", hit=2)
    assert killing.run(three_steps, url, at=at).killed
    assert steps(real_redis) == ["one"]


def test_it_is_killed_after_the_second_command_was_answered(url, real_redis):
    at = killing.after("redis:Redis.execute_command", hit=2)
    assert killing.run(three_steps, url, at=at).killed
    assert steps(real_redis) == ["one", "two"]


def test_it_is_killed_before_and_after_an_async_function(url, real_redis):
    assert killing.run(async_steps, url, at=killing.before(f"{HERE}:step")).killed
    assert steps(real_redis) == []
    assert killing.run(async_steps, url, at=killing.after(f"{HERE}:step")).killed
    assert steps(real_redis) == ["one"]


def test_it_is_killed_at_every_line_of_a_function_once(url, real_redis):
    points = killing.lines_reached(f"{HERE}:three_steps", three_steps, url)
    left = []
    for point in points:
        real_redis.flushall()
        assert killing.run(three_steps, url, at=point).killed
        left.append(len(steps(real_redis)))
    assert left == [0, 0, 1, 2, 3, 3]


def test_it_is_killed_in_a_thread_too(url, real_redis):
    points = killing.lines_reached(f"{HERE}:three_steps", in_a_thread, url)
    real_redis.flushall()
    assert killing.run(in_a_thread, url, at=points[3]).killed
    assert steps(real_redis) == ["one", "two"]


def test_a_point_that_is_never_reached_kills_nobody(url):
    at = killing.before("redis:Redis.execute_command", hit=99)
    assert not killing.run(three_steps, url, at=at).killed


def test_a_scenario_names_points_of_its_own():
    assert killing.run(waits_for_ever, at=killing.named("waiting")).killed


def test_a_child_can_be_killed_from_outside_once_it_waits():
    with killing.Child(waits_for_ever) as child:
        child.wait_for("waiting")
        child.kill()
        assert child.outcome().killed


def test_a_frozen_child_goes_on_when_it_is_thawed(url, real_redis):
    point = "redis:Redis.execute_command"
    at = killing.freezing(killing.after(point))
    with killing.Child(three_steps, url, at=at) as child:
        child.wait_for(point)
        assert steps(real_redis) == ["one"]
        child.thaw()
        assert child.outcome().returned == "done"


def test_an_error_in_a_scenario_fails_the_test(capfd):
    with pytest.raises(AssertionError, match="traceback"):
        killing.run(fails)
    assert "as it should" in capfd.readouterr().err


def test_a_function_that_the_scenario_never_runs_is_reported(url):
    with pytest.raises(AssertionError, match="never runs"):
        killing.lines_reached("ground.keys:tagged", three_steps, url)

"""What `bench shares` and `bench gate_shares` put queues and gates through, in little."""

import pytest

from bench import shares
from bench._big_permits import waits
from bench.gates_contenders.line import Line, in_turns
from bench.shares import largest_error, weights_of
from limiter.commands import SCRIPTS


def test_a_line_of_shares_is_as_long_after_a_round_as_before(real_redis) -> None:
    load_scripts(real_redis)
    line = Line(real_redis, 60, "line", shares=3)
    line.weigh(weights_of(line.shares))
    found = in_turns({"some": line}, 5)["some"]
    assert list(found) == [
        f"server µs per {call}" for call in ("acquire", "cancel", "pair", "release")
    ]
    assert all(taken > 0 for taken in found.values())
    assert real_redis.zcard("penstock:gate:{line}:order") == 60
    for _ in range(9):
        before = line.holder
        line.pair()
        assert line.holder.partition(":")[2] in line.shares
        assert line.holder != before


def test_jobs_of_shares_are_enqueued_claimed_and_finished(real_redis, shared_server) -> None:
    found = shares._run(shared_server.url, 3, 3000)
    assert found["largest error in 1,000 turns, jobs"] <= 2
    assert real_redis.zcard("rq:finished:code") > 1000


def test_the_error_of_shares_is_in_turns() -> None:
    weights = weights_of(["a", "b"])
    assert weights == {"a": 3.0, "b": 1.0}
    assert largest_error({"a": 3, "b": 1}, weights) == 0
    assert largest_error({"a": 2, "b": 2}, weights) == 1


def test_permits_with_costs_come_at_the_load_that_was_asked_for(real_redis) -> None:
    load_scripts(real_redis)
    found = waits(real_redis, 0.6, 1500, 1, passing=4)
    assert found["units in use %"] == pytest.approx(60, abs=15)
    assert found["wait of big s, p99"] >= found["wait of small s, p99"] >= 0


def load_scripts(redis) -> None:
    for script in SCRIPTS.values():
        redis.script_load(script.source)

"""Each script by itself, on a clock that stands still."""

import re

import pytest

from ground.lua import load_script
from limiter.terms import Terms
from tests.limiter.clocked import ClockedGate

SECOND = 1_000_000


FEATURES = re.compile(r"weigh|shar|steer|adapt|cost|lane_at|amounts", re.IGNORECASE)


@pytest.mark.parametrize("name", ["acquire", "release", "sweep"])
def test_the_scripts_of_a_plain_gate_have_no_line_of_what_it_does_not_use(name):
    def lines(*form: str) -> list[str]:
        source = load_script("limiter", name, *form).source
        code = [line.partition("--")[0] for line in source.splitlines()]
        return [line for line in code if FEATURES.search(line)]

    assert lines() == []
    assert lines("full") != []


@pytest.fixture
def gate(redis) -> ClockedGate:
    return ClockedGate(redis, Terms(limit=2))


@pytest.fixture
def paced(redis) -> ClockedGate:
    return ClockedGate(redis, Terms(rate=2.0, burst=3))


def test_permits_are_granted_up_to_the_limit_and_then_a_line_forms(gate):
    first, second, third, fourth = gate.acquire("p", "a", "b", "c", "d")
    assert 0 < first < second
    assert (third, fourth) == (-1, -2)
    assert gate.line == ["c", "d"]


def test_asking_again_changes_nothing(gate):
    first = gate.acquire("p", "a", "b", "c")
    assert gate.acquire("p", "a", "b", "c") == first
    assert gate.fields["granted"] == "2"


def test_a_first_ask_that_arrives_after_its_repetition_takes_nobodys_fence_or_place(gate):
    asks = [(id, 0, "", SECOND) for id in "abcd"]
    repeated, _ = gate.ask("p", asks)
    gate.release("p", ("b", repeated[1]))
    assert gate.letters("p") == [("c", fence := repeated[1] + 1)]
    late, _ = gate.ask("p", [asks[0], asks[2], asks[3]])
    assert late == [repeated[0], fence, -1]
    assert gate.release("p", ("a", repeated[0]), ("c", fence)) == 2


def test_a_release_hands_over_to_the_head_of_the_line(gate):
    fence, _, _ = gate.acquire("p", "a", "b", "c")
    assert gate.release("p", ("a", fence)) == 1
    assert [id for id, _ in gate.letters("p")] == ["c"]
    assert set(gate.leases) == {"b", "c"}


def test_a_release_with_another_fence_changes_nothing(gate):
    (fence,) = gate.acquire("p", "a")
    assert gate.release("p", ("a", fence - 1)) == 0
    assert set(gate.leases) == {"a"}


def test_lower_lanes_go_first_and_within_a_lane_the_first_come(gate):
    held = gate.acquire("p", "a", "b")
    for id, lane in (("late", 1), ("first", 0), ("second", 0), ("urgent", -512), ("last", 511)):
        gate.acquire("p", id, lane=lane)
    assert gate.line == ["urgent", "first", "second", "late", "last"]
    gate.release("p", ("a", held[0]), ("b", held[1]))
    assert [id for id, _ in gate.letters("p")] == ["urgent", "first"]


@pytest.mark.parametrize("lane", [-512, -1, 0, 1, 511])
def test_who_was_forgotten_rejoins_in_front_of_those_who_came_later(redis, gate, lane):
    gate.acquire("p", "a", "b")
    _, (score,) = gate.ask("p", [("early", lane, "", SECOND)])
    gate.acquire("q", "late", lane=lane)
    redis.flushall()
    gate.acquire("r", "a2", "b2")
    gate.ask("p", [("early", lane, score, SECOND)])
    gate.acquire("q", "late", lane=lane)
    assert gate.line == ["early", "late"]


def test_trying_neither_overtakes_nor_joins(gate):
    (fence, _, _) = gate.acquire("p", "a", "b", "c")
    assert gate.acquire("q", "try", join=False) == [0]
    gate.configure("p", paused="1")
    gate.release("p", ("a", fence))
    assert gate.acquire("q", "try", join=False) == [0]
    assert gate.line == ["c"]


def test_what_expired_goes_to_the_next(gate):
    gate.acquire("p", "a", "b", "c", alive=10)
    gate.now += SECOND
    gate.sweep("q")
    assert set(gate.leases) == {"c"}
    assert gate.fields["expired"] == "2"


def test_a_dead_process_is_passed_over(gate):
    fence, _, _ = gate.acquire("dying", "a", "b", "c", alive=0.5)
    gate.acquire("living", "d")
    gate.now += SECOND // 2
    gate.release("another", ("a", fence))
    assert gate.letters("dying") == []
    assert [id for id, _ in gate.letters("living")] == ["d"]
    assert gate.fields["dropped"] == "1"


def test_who_is_let_in_as_it_asks_again_does_not_stand_in_line_as_well(gate):
    gate.acquire("p", "a", "b", "c", alive=10)
    gate.now += SECOND
    verdicts = gate.acquire("p", "c")
    assert gate.letters("p") == [("c", verdicts[0])]
    assert (set(gate.leases), gate.line) == ({"c"}, [])


def test_nobody_watches_over_a_dead_head_of_the_line_without_pause(gate):
    """While the gate is full, the others sleep to the next lease's end, whoever is dead."""
    gate.acquire("holder", "a", "b", term=60)
    gate.acquire("dying", "c", alive=0.5)
    gate.acquire("living", "d", alive=60)
    gate.now += SECOND // 2
    assert gate.sweep("living") > SECOND


def test_cancelling_leaves_the_line_and_gives_back_what_was_granted(gate):
    gate.acquire("p", "a", "b", "c", "d")
    assert gate.cancel("p", "d", "a", "stranger") == [2, 0, 0]
    assert set(gate.leases) == {"b", "c"}
    assert gate.line == []
    assert gate.fields["cancelled"] == "2"


def test_a_permit_lost_with_the_data_is_taken_in_again_while_there_is_room(redis, gate):
    one, two = gate.acquire("p", "a", "b")
    redis.flushall()
    gate.acquire("q", "c")
    assert gate.renew("p", ("a", one, SECOND), ("b", two, SECOND)) == [True, False]
    assert set(gate.leases) == {"a", "c"}
    assert (gate.fields["readmitted"], gate.fields["lost"]) == ("1", "1")


def test_a_revoked_permit_goes_to_the_next_and_its_holder_has_lost_it(gate):
    one, two, _ = gate.acquire("p", "a", "b", "c")
    assert gate.revoke("operator", "a")
    assert [id for id, _ in gate.letters("p")] == ["c"]
    assert gate.renew("p", ("a", one, SECOND), ("b", two, SECOND)) == [False, True]
    assert (gate.fields["expired"], gate.fields["lost"]) == ("1", "1")


def test_a_revoked_permit_is_not_counted_in_again_though_there_is_room(gate):
    one, two = gate.acquire("p", "a", "b")
    assert gate.revoke("operator", "a")
    assert gate.revoke("operator", "b")
    assert gate.renew("p", ("a", one, SECOND), ("b", two, SECOND)) == [False, False]
    assert gate.release("p", ("a", one), ("b", two)) == 0
    (later,) = gate.acquire("p", "a")  # the same id, another grant
    assert gate.renew("p", ("a", later, SECOND)) == [True]
    assert set(gate.leases) == {"a"}


def test_a_revocation_is_forgotten_when_its_lease_would_have_ended(gate):
    for id in "abcde":
        gate.acquire("p", id)
        assert gate.revoke("operator", id)
        assert len(gate.fields["revoked"].split()) == 1
        gate.now += SECOND


def test_what_is_not_in_flight_is_not_revoked(gate):
    gate.acquire("p", "a", "b", "c")
    assert not gate.revoke("operator", "c")
    assert not gate.revoke("operator", "never")
    assert gate.line == ["c"]
    gate.now += SECOND
    assert not gate.revoke("operator", "a")
    assert "revoked" not in gate.fields
    assert gate.fields["expired"] == "2"


def test_a_revoked_permit_with_a_cost_frees_all_of_it(gate):
    gate.ask("p", [("big", 0, "", f"{SECOND} 2")])
    assert gate.revoke("operator", "big")
    assert min(gate.acquire("p", "a", "b")) > 0
    assert gate.costs == {}


def test_nobody_holds_and_waits_at_once(redis, gate):
    (fence,) = gate.acquire("p", "a")
    redis.flushall()
    gate.acquire("q", "b", "c")
    gate.acquire("p", "a", alive=10)
    gate.configure("operator", paused="1")
    gate.now += SECOND
    assert gate.renew("p", ("a", fence, SECOND)) == [True]
    assert (set(gate.leases), gate.line) == ({"a"}, [])


def test_nobody_overtakes_while_a_crowd_of_the_dead_is_cleared(real_redis):
    gate = ClockedGate(real_redis, Terms(limit=2))
    gate.configure("operator", paused="1")
    for n in range(7):
        gate.acquire("dying", *(f"{n}-{i}" for i in range(500)), alive=0.5)
    gate.acquire("living", "a", alive=60)
    gate.now += SECOND // 2
    gate.configure("operator", paused="0")
    assert gate.acquire("q", "try", join=False) == [0]
    while gate.line:
        gate.sweep("living")
    assert [id for id, _ in gate.letters("living")] == ["a"]
    assert gate.fields["dropped"] == "3500"


def test_fences_grow_over_a_loss_of_data(redis, gate):
    (old,) = gate.acquire("p", "a")
    redis.flushall()
    gate.now += 1
    (new,) = gate.acquire("p", "b")
    assert new > old


def test_a_raised_limit_lets_waiters_in_at_once_and_a_lowered_one_revokes_nothing(gate):
    gate.acquire("p", "a", "b", "c", "d")
    gate.configure("operator", limit="3")
    assert [id for id, _ in gate.letters("p")] == ["c"]
    gate.configure("operator", limit="1")
    assert set(gate.leases) == {"a", "b", "c"}


def test_a_paused_gate_grants_nothing_and_keeps_the_places(gate):
    gate.configure("operator", paused="1")
    assert gate.acquire("p", "a", "b", "c") == [-1, -2, -3]
    gate.configure("operator", paused="0")
    assert [id for id, _ in gate.letters("p")] == ["a", "b"]
    assert gate.line == ["c"]


def test_a_new_bucket_is_empty_and_fills_to_its_burst(paced):
    assert paced.acquire("p", "a", join=False) == [0]
    paced.now += 60 * SECOND
    granted = paced.acquire("p", *"abcde", join=False)
    assert [fence > 0 for fence in granted] == [True, True, True, False, False]


def test_who_tries_is_told_when_the_next_token_is_due(paced):
    reply = paced.run(paced.commands("p").acquire([("a", 0, "", SECOND)], SECOND, join=False))
    assert int(reply[1]) == SECOND // 2


def test_who_tries_is_told_when_the_next_lease_ends(gate):
    gate.acquire("p", "a", "b", term=3)
    reply = gate.run(gate.commands("q").acquire([("c", 0, "", SECOND)], SECOND, join=False))
    assert int(reply[1]) == 3 * SECOND


def test_who_tries_at_a_paused_gate_is_told_that_waiting_will_not_help(gate):
    gate.configure("operator", paused="1")
    reply = gate.run(gate.commands("q").acquire([("c", 0, "", SECOND)], SECOND, join=False))
    assert int(reply[1]) == -1


def test_a_rate_given_to_a_gate_without_one_grants(gate):
    """The burst that a constructor would have chosen, not none at all."""
    gate.configure("operator", rate="20.0")
    gate.now += 60 * SECOND
    assert gate.acquire("p", "a", join=False) != [0]
    assert gate.fields["burst"] == "2"


def test_only_the_head_of_the_line_watches_the_clock(paced):
    paced.acquire("head", "a")
    paced.acquire("next", "b", alive=30)
    assert paced.sweep("head") == SECOND // 2
    assert paced.sweep("next") == SECOND  # the end of the head's life, should it die
    paced.now += SECOND // 2
    paced.sweep("head")
    assert paced.line == ["b"]
    (woken,) = paced.redis.xrange(paced.commands("next").inbox)
    assert int(woken[1][b"wake"]) == SECOND // 2

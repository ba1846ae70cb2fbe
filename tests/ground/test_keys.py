"""Keys keep to one hash tag, and runs cannot meet."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot

from ground.keys import check_name, in_run, tagged

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,60}", fullmatch=True)
RUNS = NAMES.filter(lambda name: "/" not in name)


def test_a_key_says_what_it_is_of():
    assert tagged("gate", "code", "leases") == "penstock:gate:{code}:leases"
    assert tagged("gate", "code") == "penstock:gate:{code}"


@given(NAMES, NAMES, NAMES)
def test_all_keys_of_one_name_are_in_one_slot(name, part, other):
    keys = [tagged("gate", name, piece) for piece in ("", part, other)]
    assert len({key_slot(key.encode()) for key in keys}) == 1
    assert key_slot(keys[0].encode()) == key_slot(name.encode())


@pytest.mark.parametrize("name", ["a", "a" * 128, "run/7", "math@2:x.y-z_0"])
def test_a_good_name_is_given_back(name):
    assert check_name(name, "a gate") == name


@pytest.mark.parametrize("name", ["", "a" * 129, "a b", "{a}", "a}", "é", "-a", "/a", "a\n"])
def test_a_bad_name_is_refused_and_shown(name):
    with pytest.raises(ValueError, match=r"^a gate is named with 1 to 128 letters") as refusal:
        check_name(name, "a gate")
    assert repr(name) in str(refusal.value)


@given(RUNS, NAMES, RUNS, NAMES)
def test_things_of_two_runs_never_share_a_key(run, name, other_run, other_name):
    same = in_run(run, name) == in_run(other_run, other_name)
    assert same == ((run, name) == (other_run, other_name))


def test_a_run_with_a_slash_is_refused():
    with pytest.raises(ValueError, match="a run is named without /"):
        in_run("a/b", "c")

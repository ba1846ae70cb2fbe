"""Gates found by name."""

import pytest

from limiter import TokenBucket, UnknownGate, existing_gate, gate_names, named_gate


def test_a_gate_is_found_as_somebody_made_it(redis):
    TokenBucket(redis, "api", rate=8, burst=4).sync.status()
    TokenBucket(redis, "code", limit=3).sync.status()
    assert gate_names(redis) == ["api", "code"]
    assert existing_gate(redis, "code").terms.limit == 3
    found = existing_gate(redis, "api").terms
    assert (found.limit, found.rate, found.burst) == (None, 8, 4)


def test_a_gate_that_nobody_made_is_refused_with_the_names_there_are(redis):
    TokenBucket(redis, "code", limit=3).sync.status()
    with pytest.raises(UnknownGate, match="no gate is called 'cod'; there are code"):
        existing_gate(redis, "cod")


def test_a_named_gate_is_made_where_a_limit_is_given(redis):
    with pytest.raises(UnknownGate):
        named_gate(redis, "code", None)
    with named_gate(redis, "code", 2, lease=6, patience=1):
        assert named_gate(redis, "code", None).sync.status().limit == 2

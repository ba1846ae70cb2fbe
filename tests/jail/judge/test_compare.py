"""What each rule of comparison accepts, and what it does not."""

import threading
from fractions import Fraction

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jail.judge.compare import _clearly_close, _exactly_close, accepted, accepts, may_accept
from jail.judge.models import Compare

RULES = ("exact", "ends", "lines", "decimals", "tokens", "tokens_nocase", "floats", "unordered")
BIG = b"50000000000000001"

anywhere = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])

ACCEPTED = [
    ("exact", b"a\n", b"a\n"),
    ("ends", b"a", b"a\n\n"),
    ("ends", b"\n", b""),
    ("lines", b"a  \r\nb\n\n", b"a\nb"),
    ("lines", b"a\n", b"\n\r\na\n"),
    ("lines", b" \t\n\n  a\n", b"  a\n"),
    ("lines", b"\xff \n", b"\xff"),
    ("decimals", b"1.0 2\n", b"1 2.00"),
    ("decimals", b" a b \n", b"a b"),
    ("tokens", b"1\n2   3\r\n", b"1 2 3"),
    ("tokens_nocase", b"YES\nNo", b"yes no"),
    ("floats", b"0.3333333 X", b"0.33333333 x"),
    ("floats", b"1e3", b"1000"),
    ("floats", BIG, BIG),
    ("floats", "ÉTÉ 0.3333333".encode(), "été 0.33333333".encode()),
    ("floats", b"\xff YES \xc3\x89", b"\xff yes \xc3\xa9"),
    ("unordered", b"b 1\na  2\n", b"a 2\n\nb 1"),
]
REFUSED = [
    ("exact", b"a", b"a\n"),
    ("ends", b"a\r\n", b"a\n"),
    ("ends", b" a", b"a"),
    ("lines", b" a", b"a"),
    ("lines", b"a\n\nb", b"a\nb"),
    ("decimals", b"1 2", b"1\n2"),
    ("decimals", b"nan x", b"nan  x"),
    ("decimals", b"sNaN 1", b"1 1"),
    ("decimals", BIG, b"5e16"),
    ("tokens", b"1 2", b"1 2 2"),
    ("tokens", b"1.0", b"1"),
    ("tokens_nocase", b"yes", b"no"),
    ("floats", b"1.1", b"1"),
    ("floats", b"nan", b"nan"),
    ("floats", b"inf", b"1"),
    ("floats", b"1e999999999", b"1"),
    ("floats", b"1_0", b"10"),
    ("floats", b"1 2", b"1"),
    ("floats", b"9" * 500, b"9" * 499),
    ("unordered", b"a\na\nb", b"a\nb\nb"),
    *((rule, b"", b"1") for rule in RULES),
    *((rule, b"\xff", b"\xfe") for rule in RULES),
]


@pytest.mark.parametrize(("rule", "printed", "expected"), ACCEPTED)
def test_a_rule_accepts(rule, printed, expected) -> None:
    assert accepts(Compare(rule=rule), printed, [expected])


@pytest.mark.parametrize(("rule", "printed", "expected"), REFUSED)
def test_a_rule_refuses(rule, printed, expected) -> None:
    assert not accepts(Compare(rule=rule), printed, [expected])


def test_any_of_the_accepted_answers_is_right() -> None:
    assert accepts(Compare(), b"2 3\n", [b"1 4", b"2 3"])
    assert not accepts(Compare(), b"2 4\n", [b"1 4", b"2 3"])
    assert not accepts(Compare(), b"", [])


def test_a_difference_of_huge_numbers_is_not_rounded_away() -> None:
    tight = Compare(rule="floats", abs=0.5, rel=0)

    assert not accepts(tight, b"50000000000000001", [b"50000000000000000"])
    assert accepts(tight, b"50000000000000000.4", [b"50000000000000000"])


def test_the_tolerance_is_absolute_or_relative() -> None:
    assert accepts(Compare(rule="floats", abs=0, rel=0.01), b"101", [b"100"])
    assert not accepts(Compare(rule="floats", abs=0.5, rel=0), b"101", [b"100"])
    assert accepts(Compare(rule="floats", abs=0.5, rel=0), b"-0.25", [b"0"])


numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)


@anywhere
@given(words=st.lists(numbers.map(str) | st.sampled_from(["yes", "-", "é"]), min_size=1))
def test_every_rule_accepts_the_answer_itself(words) -> None:
    text = "\n".join(words).encode()

    assert all(accepts(Compare(rule=rule), text, [text]) for rule in RULES)


@anywhere
@given(printed=st.binary(max_size=40), expected=st.binary(max_size=40))
def test_no_bytes_break_a_rule_and_looser_rules_accept_what_stricter_ones_do(
    printed, expected
) -> None:
    verdicts = {rule: accepts(Compare(rule=rule), printed, [expected]) for rule in RULES}

    assert verdicts["exact"] <= verdicts["ends"] <= verdicts["lines"] <= verdicts["tokens"]
    assert verdicts["tokens"] <= verdicts["tokens_nocase"]
    assert verdicts["lines"] <= verdicts["unordered"]


@anywhere
@given(lines=st.lists(st.integers().map(str), min_size=1), seed=st.randoms())
def test_unordered_ignores_the_order_of_lines_alone(lines, seed) -> None:
    shuffled = lines.copy()
    seed.shuffle(shuffled)
    rule = Compare(rule="unordered")

    assert accepts(rule, "\n".join(shuffled).encode(), ["\n".join(lines).encode()])
    assert not accepts(rule, "\n".join([*shuffled, "x"]).encode(), ["\n".join(lines).encode()])


@anywhere
@given(number=st.integers(), off=st.integers(1, 10**6))
def test_integers_of_any_size_are_told_apart(number, off) -> None:
    strict = Compare(rule="floats", abs=0.5, rel=0)

    assert not accepts(strict, str(number + off).encode(), [str(number).encode()])


@pytest.mark.parametrize(("rule", "printed", "expected"), ACCEPTED)
def test_no_beginning_of_an_answer_rules_it_out(rule, printed, expected) -> None:
    compare = Compare(rule=rule)

    assert all(may_accept(compare, printed[:at], [expected]) for at in range(len(printed) + 1))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("begun", [b"1 2\n4 5\n6", b"1 2\n3 4\n5 6\n7 8\n9", b"9\n" * 1000])
def test_a_beginning_that_differs_rules_an_answer_out(rule, begun) -> None:
    assert not may_accept(Compare(rule=rule), begun, [b"1 2\n3 4\n5 6\n"])


spelled = st.one_of(
    numbers.map(str),
    st.decimals(allow_nan=True, allow_infinity=True).map(str),
    st.decimals(-100, 100, places=7).map(str),
    st.integers(-10, 10).map(lambda n: f"{n}.000001"),
    st.sampled_from(
        ["-0", "0.0", "1e-500", "0e-500", "1e400", "1e401", "inf", "1_0", ".5", "5.", "x"]
    ),
)
bounds = st.sampled_from([0.0, 5e-324, 1e-9, 1e-6, 1e-5, 0.5, 1e300])


@anywhere
@given(one=spelled, other=spelled, absolute=bounds, relative=bounds)
def test_what_floats_decide_the_exact_digits_decide_too(one, other, absolute, relative) -> None:
    compare = Compare(rule="floats", abs=absolute, rel=relative)
    words = one.lower().encode(), other.lower().encode()

    clear = _clearly_close(compare, *words)

    exact = _exactly_close(Fraction(absolute), Fraction(relative), *words)
    assert clear is None or clear == exact


@pytest.mark.parametrize("rel", [0.0, 1e-6])
def test_floats_decide_what_is_not_at_the_very_bound(rel) -> None:
    compare = Compare(rule="floats", abs=1e-6, rel=rel)

    assert _clearly_close(compare, b"0.333333", b"0.3333335") is True
    assert _clearly_close(compare, b"0.333333", b"0.334") is False
    assert _clearly_close(compare, b"0.5", b"0.500001") is None


@pytest.mark.parametrize(("rule", "beside"), [("floats", True), ("ends", False)])
async def test_many_numbers_are_compared_beside_the_event_loop(rule, beside, monkeypatch) -> None:
    seen = []
    monkeypatch.setattr(
        "jail.judge.compare.accepts", lambda *_: seen.append(threading.current_thread())
    )

    await accepted(Compare(rule=rule), b"1 " * 40_000, [b"1"])

    assert (seen != [threading.current_thread()]) == beside

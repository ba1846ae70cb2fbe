"""Numbers that are arguments: refused by their name, also those that Python itself cannot write."""

import math
from fractions import Fraction

import numpy
import pytest

from ground import SettingError
from ground.numbers import MOST, check_number, check_whole

NO_NUMBERS = [
    None,
    "3",
    True,
    math.nan,
    math.inf,
    -math.inf,
    10**400,
    -(10**400),
    MOST + 1,
]


@pytest.mark.parametrize("value", [*NO_NUMBERS, 0, 2.5, 3.0, Fraction(5, 2)])
def test_what_is_no_whole_number_within_the_bounds_is_refused(value) -> None:
    with pytest.raises(SettingError, match=f"^count: must be a whole number from 1 to {MOST}, not"):
        check_whole("count", value)


@pytest.mark.parametrize("value", [*NO_NUMBERS, 0, -0.5, 1e300, Fraction(10**400)])
def test_what_is_no_number_of_seconds_is_refused(value) -> None:
    with pytest.raises(SettingError, match=f"^wait: must be above 0 seconds, at most {MOST}, not"):
        check_number("wait", value, above=True)


@pytest.mark.parametrize("value", [1, MOST, numpy.int64(5)])
def test_whole_numbers_of_every_kind_are_taken(value) -> None:
    check_whole("count", value)


@pytest.mark.parametrize(
    "value", [0, 0.0, 1e-300, MOST, float(MOST), numpy.float32(1), Fraction(1)]
)
def test_numbers_of_every_kind_are_taken(value) -> None:
    check_number("wait", value)


def test_a_message_says_what_cannot_be_written() -> None:
    with pytest.raises(SettingError, match="not a value of type int, too large to be shown"):
        check_whole("count", 10**5000)
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(SettingError, match="not a value of type list, too large to be shown"):
        check_whole("count", deep)

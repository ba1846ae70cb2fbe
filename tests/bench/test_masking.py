"""What `bench masking` counts: outages are spread evenly, and a false zero is seen."""

import pytest

from bench._masking_sandbox import MARK, OUTAGES
from bench.masking import _judged, _programs


def test_every_tenth_program_of_each_kind_meets_an_outage() -> None:
    programs, deserved = _programs(2000)
    failed = [program for program in programs if MARK.decode() in program]
    assert (len(set(programs)), len(failed)) == (2000, 200)
    for kind in OUTAGES:
        assert sum(f"{MARK.decode()}{kind}." in program for program in failed) == 50
    well = [d for d, p in zip(deserved, programs, strict=True) if p not in failed]
    assert sum(well) / len(well) == sum(deserved) / len(deserved) == 0.625


def test_false_zeros_and_the_error_of_the_mean() -> None:
    programs, deserved = _programs(400)
    outages = [MARK.decode() in program for program in programs]
    masked = [None if out else d for d, out in zip(deserved, outages, strict=True)]
    zeroed = [0.0 if out else d for d, out in zip(deserved, outages, strict=True)]
    assert _judged(programs, deserved, masked) == {
        "false zeros": 0.0, "masked": 40.0, "error of the mean %": 0.0,
    }  # fmt: skip
    found = _judged(programs, deserved, zeroed)
    assert (found["false zeros"], found["masked"]) == (40.0, 0.0)
    assert found["error of the mean %"] == pytest.approx(10.0)
    with pytest.raises(AssertionError, match="though the sandbox was well"):
        _judged(programs, deserved, [1.0] * 400)

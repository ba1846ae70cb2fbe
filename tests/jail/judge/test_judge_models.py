"""What a judging request refuses at the door, and how small a result stays."""

import pytest

from jail.errors import SandboxBroken
from jail.judge import JudgeRequest, JudgeResult, Kept
from worker import RequestRefused

CASES = [{"input": "3\n", "expected": "9\n"}]


def request(**given):
    return JudgeRequest.read({"code": "print(1)", "cases": CASES} | given)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"cases": []}, "no cases"),
        ({"cases": None}, "either `cases` or a `suite`"),
        ({"cases": CASES * 10_001}, "10000"),
        ({"cases": [{"input": "x" * 300_000}]}, "300,000 bytes"),
        ({"suite": {"sha256": "0" * 64, "count": 1}}, "either `cases` or a `suite`"),
        ({"cases": None, "suite": {"sha256": "0" * 64, "count": 10_001}}, "10000"),
        ({"cases": None, "suite": {"sha256": "nonsense", "count": 1}}, "suite"),
        ({"language": "klingon"}, "klingon"),
        ({"mode": "function"}, "names a `function`"),
        ({"function": "f"}, "names a `function`"),
        ({"mode": "function", "function": "f", "language": "cpp"}, "for Python"),
        ({"mode": "interactive"}, "interactor"),
        (
            {"mode": "interactive", "interactor": {"code": "1"}, "checker": {"code": "1"}},
            "judged by one of them",
        ),
        ({"cases": [{"check": "assert 1"}]}, "mode check"),
        ({"compare": {"rule": "roughly"}}, "compare"),
        ({"compare": {"rule": "floats", "abs": float("nan")}}, "compare"),
        ({"overrides": {"1": {"run_timeout": 2}}}, "overrides case 1"),
        ({"stop": 0}, "stop"),
        ({"keep": "some"}, "keep"),
        ({"run_timeout": 0}, "run_timeout"),
        ({"new_rule": 1}, "new_rule"),
    ],
)
def test_what_cannot_be_judged_is_refused_and_the_reason_is_named(given, why) -> None:
    with pytest.raises(RequestRefused, match=why):
        request(**given)


def test_a_request_is_the_same_after_a_round_trip() -> None:
    wanted = request(
        overrides={"0": {"run_timeout": 2}}, stop=3, compare={"rule": "floats", "rel": 0.5}
    )

    assert JudgeRequest.read(wanted.dump()) == wanted
    assert wanted.count == 1
    assert wanted.failures_until_stop == 3


def test_limits_of_a_case_are_those_of_the_request_unless_it_has_its_own() -> None:
    wanted = request(
        cases=CASES * 3, run_timeout=2, memory_limit_mb=64,
        overrides={"1": {"run_timeout": 5}, "2": {"wall_timeout": 4, "memory_limit_mb": 128}},
    )  # fmt: skip

    assert [wanted.limits(index).run_timeout for index in range(3)] == [2, 5, 2]
    assert [wanted.limits(index).wall_timeout for index in range(3)] == [6, 15, 4]
    assert [wanted.limits(index).memory_limit_mb for index in range(3)] == [64, 64, 128]


def test_the_longest_time_is_bounded_by_the_total() -> None:
    slow = {"compile_timeout": 7, "run_timeout": 10, "wall_timeout": 20}

    assert request(cases=CASES * 4, **slow).longest == 87
    assert request(cases=CASES * 4, **slow, total_seconds=30).longest == 37


def test_the_first_cases_own_limits_do_not_bound_the_others() -> None:
    asked = request(cases=CASES * 4, run_timeout=10, overrides={0: {"run_timeout": 1}})
    assert [own.run_timeout for own in asked.all_limits] == [10, 1]
    assert asked.longest >= 10 * len(CASES * 4)


def test_a_hundred_cases_make_a_result_of_less_than_two_kilobytes() -> None:
    result = JudgeResult(
        verdicts="P" * 100, cpu_ms=[12] * 100, wall_ms=[140] * 100, memory_kb=[9216] * 100
    )

    assert len(result.model_dump_json()) < 2048
    assert JudgeResult.read(result.dump()) == result


def test_an_unknown_letter_is_no_verdict() -> None:
    with pytest.raises(SandboxBroken):
        JudgeResult(verdicts="PX")


def test_a_failed_sandbox_masks_every_case() -> None:
    result = JudgeResult.of_failure(SandboxBroken("it fell over", reason="jail_lost"), 3)

    assert (result.verdicts, result.error_kind, result.error_reason) == (
        "MMM", "infrastructure", "jail_lost",
    )  # fmt: skip


def test_a_case_that_was_cut_off_leaves_no_reward_and_one_not_needed_does() -> None:
    cut = JudgeResult(verdicts="PSS", reasons={1: "total_seconds", 2: "total_seconds"})

    assert cut.masked_because == "total_seconds"
    assert JudgeResult(verdicts="SM", reasons=cut.reasons | {1: "jail_lost"}).masked_because == (
        "jail_lost"
    )
    assert JudgeResult(verdicts="PWSS", reasons={1: "exit"}).masked_because == ""


@pytest.mark.parametrize("printed", [b"", b"12345678", b"\xff\xfe", b"123456789"])
def test_of_an_output_head_and_tail_are_kept(printed: bytes) -> None:
    kept = Kept.of(printed, b"", 4)

    assert kept.stdout_bytes == len(printed)
    assert kept.whole == (len(printed) <= 8)
    if kept.whole:
        assert kept.stdout == printed.decode(errors="replace")
    else:
        assert (kept.stdout, kept.stdout_tail) == ("1234", "6789")

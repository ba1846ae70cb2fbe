"""What a judge remembers of its cases: no more than comes back, in whatever order they end."""

import random

import pytest

from jail.judge.findings import CaseVerdict, Found
from jail.judge.models import JudgeRequest
from jail.outcome import Step

MANY = 400


def step(printed: bytes) -> Step:
    return Step("finished", 0, printed, b"", 0.1, 0.1, 1 << 20, 1)


def found(letters: str, order: list[int], **given: object) -> Found:
    request = JudgeRequest.read({"code": "", "cases": [{}] * len(letters)} | given)
    found = Found(request, len(letters), None)
    for index in order:
        letter = letters[index]
        found.enter(index, CaseVerdict(letter), step(f"{index} ".encode() * 20))  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize("keep", ["none", "first_failure", "failures", "all"])
@pytest.mark.parametrize("stop", ["none", 3])
def test_the_result_does_not_depend_on_the_order_of_the_cases(keep: str, stop: str | int) -> None:
    draw = random.Random(keep + str(stop))
    letters = "".join(draw.choices("PPPPWTM", k=MANY))
    if draw.random() < 0.5:
        letters = "WTTMTTET" + letters
    given = {"keep": keep, "stop": stop, "keep_total": 1000, "keep_bytes": 16}
    in_turn = found(letters, [*range(len(letters))], **given).result()
    assert len(in_turn.kept) <= 1000 // 32 + 1
    for _ in range(10):
        order = draw.sample(range(len(letters)), len(letters))
        assert found(letters, order, **given).result() == in_turn


def test_it_holds_no_output_that_does_not_come_back() -> None:
    request = JudgeRequest.read({"code": "", "cases": [{}] * MANY, "keep": "all"})
    kept = Found(request, MANY, None)
    for index in range(MANY):
        kept.enter(index, CaseVerdict("W"), step(bytes(100_000)))
    assert all(isinstance(number, int) for _, figures in kept._said.values() for number in figures)
    assert sum(one.size for _, one, _ in kept._kept) <= request.keep_total


@pytest.mark.parametrize(
    ("letters", "verdicts", "given"),
    [
        ("TTTTTPP", "TTTTTTT", {}),
        ("TTTTPTP", "TTTTPTP", {}),
        ("PTTTTTP", "PTTTTTP", {}),
        ("TTWTTTP", "TTWTTTT", {}),
        ("TTTTTPP", "TTTTTPP", {"stop_timeouts": None}),
        ("TTPPPPP", "TTTTTTT", {"stop_timeouts": 2}),
        ("TTTTTPP", "TSSSSSS", {"stop": "first"}),
        ("TTTTTPP", "TTTTTTT", {"stop": 6}),
    ],
)
def test_a_program_that_only_runs_out_of_time_is_given_up(
    letters: str, verdicts: str, given: dict[str, object]
) -> None:
    for order in (range(7), reversed(range(7))):
        result = found(letters, [*order], **given).result()
        assert result.verdicts == verdicts
        assert ("stop_timeouts" in result.reasons.values()) == (
            verdicts == "T" * 7 or "TTWT" in verdicts
        )


def test_what_the_program_used_the_time_of_is_late() -> None:
    for spent, verdicts in ((0.39, "TTT"), (0.41, "TSS")):
        cut = found("TPP", [0])
        cut.own_seconds = 0.2
        cut.cut_off(spent)
        assert cut.result().verdicts == verdicts


def test_what_was_not_judged_is_cut_off_or_lost() -> None:
    assert found("PPP", [0]).result().reasons == {1: "total_seconds", 2: "total_seconds"}
    lost = found("PPP", [2])
    lost.rest = CaseVerdict("M", "jail_lost")
    assert lost.result().verdicts == "MMP"

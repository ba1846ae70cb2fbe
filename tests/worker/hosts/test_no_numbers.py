"""What fails on our side, or in the data, gives no number: no sample is trained on as a 0."""

import asyncio
import math
from collections.abc import Callable
from typing import Any

import pytest

from jail import LocalSandbox
from jail.errors import (
    SandboxBroken,
    SandboxBusy,
    SandboxTimeout,
    SandboxUnavailable,
    SandboxUnfit,
    SandboxUnreachable,
)
from jail.judge.lane import Lane, LaneLost
from jail.judge.suite import InlineSuite
from jail.outcome import Outcome
from tests.harness.servers import free_port, url_of
from tests.worker.scripted_answers import Answer, outcome
from tests.worker.scripted_fusion import ScriptedFusion
from worker.hosts.grading import Grade, Grader

ROW = {"inputs": ["3", "4", "5"], "outputs": ["9", "16", "25"]}
RIGHT = "```python\nprint(int(input()) ** 2)\n```"
FINE = Answer.ok("9\n")


def says(**changed: Any) -> Answer:
    return Answer(body=outcome("Success", "Finished", 0, stdout="9\n") | changed)


SERVER = {  # what a sandbox's server answers from the second case of a program on
    "too many requests": Answer.busy(),
    "an internal error": Answer.refusal(500),
    "a bad gateway": Answer.refusal(502),
    "no service": Answer.refusal(503),
    "a gateway that is late": Answer.refusal(504),
    "no authority": Answer.refusal(401),
    "no such address": Answer.refusal(404),
    "nothing": Answer.cut(),
    "half of an answer": Answer.half(),
    "an error of the sandbox": Answer.sandbox_error(),
    "no JSON": Answer(text="<html>it works</html>"),
    "an empty body": Answer(text=""),
    "a list": Answer(body=[1, 2]),
    "null": Answer(text="null"),
    "an unknown status": says(status="Perhaps"),
    "success with an exit code": says(run_result=outcome("", "Finished", 1)["run_result"]),
    "failure without one": says(status="Failed"),
    "a command that could not be run": says(run_result={"status": "Error"}, status="Failed"),
    "a compiler that could not be run": says(compile_result={"status": "Error"}, status="Failed"),
    "no result at all": says(run_result=None),
    "a result of another type": says(run_result="9"),
}  # fmt: skip


def is_masked(grade: Grade, fault: str = "system") -> None:
    assert grade.value is None, grade
    assert grade.reason
    assert grade.fault == fault


@pytest.mark.parametrize("answer", SERVER)
async def test_a_server_that_fails_amid_a_batch_gives_no_number(
    one_attempt: None, answer: str
) -> None:
    with ScriptedFusion(FINE, default=SERVER[answer]) as fusion:
        grader = Grader(on=fusion.url)
        for grade in await asyncio.gather(*(grader.grade(RIGHT, ROW) for _ in range(3))):
            is_masked(grade)


async def test_a_server_that_hangs_gives_no_number(one_attempt: None) -> None:
    with ScriptedFusion(FINE, default=Answer.ok(seconds=math.inf)) as fusion:
        is_masked(await Grader(on=fusion.url, timeout=0.5).grade(RIGHT, ROW))


@pytest.mark.parametrize("scheme", ["redis", "http"])
async def test_a_place_that_is_not_there_gives_no_number(one_attempt: None, scheme: str) -> None:
    is_masked(
        await Grader(on=f"{scheme}://127.0.0.1:{free_port()}", patience=0.3).grade(RIGHT, ROW)
    )


async def test_a_place_of_another_kind_gives_no_number(one_attempt: None) -> None:
    with ScriptedFusion() as fusion:
        address = fusion.url.removeprefix("http://")
        is_masked(await Grader(on=f"redis://{address}", patience=0.3).grade(RIGHT, ROW))


async def test_a_queue_without_workers_gives_no_number(real_redis: Any) -> None:
    is_masked(await Grader(on=url_of(real_redis), timeout=0.3).grade(RIGHT, ROW))


FAILURES: dict[str, Callable[[], BaseException]] = {
    "is broken": lambda: SandboxBroken("no report", reason="jail_lost"),
    "has no room": lambda: SandboxBusy("full", reason="busy"),
    "is late": lambda: SandboxTimeout("no answer", reason="timeout"),
    "cannot be reached": lambda: SandboxUnreachable("away", reason="connect"),
    "cannot serve": lambda: SandboxUnfit("no such limit", reason="limit"),
    "cannot isolate": lambda: SandboxUnavailable("no namespaces"),
    "has no descriptors": lambda: OSError(24, "too many open files"),
    "has no memory": lambda: MemoryError("no"),
    "has a bug": lambda: KeyError("bug"),
}


@pytest.mark.parametrize("how", FAILURES)
async def test_a_sandbox_that_fails_gives_no_number(
    one_attempt: None, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    async def judge(*_: Any) -> Any:
        raise FAILURES[how]()

    monkeypatch.setattr(LocalSandbox, "judge", judge)
    is_masked(await Grader(on="local").grade(RIGHT, ROW))


async def test_a_jail_that_is_lost_amid_a_program_gives_no_number(
    one_attempt: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, begun = Lane.run, []

    async def lost(lane: Lane, errand: Any) -> Any:
        begun.append(errand)
        if len(begun) == 1:
            return await run(lane, errand)
        raise LaneLost(Outcome("infrastructure", "ns", error="the machine ran out of memory"))

    monkeypatch.setattr(Lane, "run", lost)
    grade = await Grader(on="local").grade(RIGHT, ROW)
    is_masked(grade)
    assert "out of memory" in grade.evidence


async def test_a_suite_that_is_lost_amid_a_program_gives_no_number(
    one_attempt: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = InlineSuite.case

    async def lost(suite: InlineSuite, index: int) -> Any:
        if index:
            raise SandboxUnreachable("a suite could not be fetched", reason="suite_unreachable")
        return await case(suite, index)

    monkeypatch.setattr(InlineSuite, "case", lost)
    is_masked(await Grader(on="local").grade(RIGHT, ROW))


DATA: dict[str, Any] = {
    "no shape": {"odd": 1},
    "no cases": {"inputs": [], "outputs": []},
    "fewer outputs": {"inputs": ["1", "2"], "outputs": ["1"]},
    "no JSON": "{",
    "no text": {"inputs": [1.5], "outputs": [[{}]]},
    "several functions": [
        {"input": "1", "output": "1", "fn_name": "f"},
        {"input": "1", "output": "1", "fn_name": "g"},
    ],
}  # fmt: skip


@pytest.mark.parametrize("what", DATA)
async def test_data_that_cannot_be_judged_gives_no_number(what: str) -> None:
    is_masked(await Grader(on="local").grade(RIGHT, DATA[what]), fault="data")


def test_there_are_enough_ways() -> None:
    assert len(SERVER) + len(FAILURES) + len(DATA) >= 30

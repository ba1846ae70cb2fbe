"""`Grader`: a value or None, with the reason, from any loop, thread, process or fork."""

import asyncio
import json
import multiprocessing
import pickle
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from ground import SettingError
from ground.breaker import FEW, PAUSE
from jail.errors import RequestRefused
from jail.judge.formats import Cases, read_cases
from jail.judge.models import JudgeCase
from tests.harness.servers import free_port, url_of
from tests.worker.concurrent.crew import at_work
from tests.worker.hosts.programs import RIGHT, SQUARES, fenced
from tests.worker.scripted_answers import Answer
from tests.worker.scripted_fusion import ScriptedFusion
from worker import TrainingPaused
from worker.hosts import Grade, Grader, cases_of, text_of
from worker.hosts.grades_breaker import GradesBreaker


@pytest.mark.parametrize(
    ("code", "value", "reason"),
    [
        ("print(int(input()) ** 2)", 1.0, ""),
        ("n = int(input())\nprint(9 if n == 3 else 1 / 0)", 0.5, "exit"),
        ("print(1)", 0.0, "wrong"),
        ("while True: pass", 0.0, "run_timeout"),
        ("x = bytearray(900 << 20)", 0.0, "memory_limit"),
        ("print(", 0.0, "exit"),
        ("#include <cstdio>", 0.0, "wrong"),
        ("x = '\ud800'", 0.0, "compile_error"),
        ("#" * ((1 << 20) + 1), 0.0, "compile_error"),
    ],
)
async def test_what_the_program_does_is_a_value(code: str, value: float, reason: str) -> None:
    seconds = 0.5 if reason == "run_timeout" else 10.0
    grader = Grader(case_timeout=seconds, memory_limit_mb=256)
    grade = await grader.grade(fenced(code), SQUARES)
    assert (grade.value, grade.reason, grade.masked) == (value, reason, False)


async def test_all_or_nothing() -> None:
    half = fenced("n = int(input())\nprint(9 if n == 3 else 0)")
    assert await Grader(all_or_nothing=True).grade(half, SQUARES) == Grade(0.0, "wrong")
    assert (await Grader(all_or_nothing=True).grade(RIGHT, SQUARES)).value == 1.0


async def test_text_without_a_program_is_a_zero_and_a_program_needs_no_fence_if_told() -> None:
    assert await Grader().grade("I do not know.", SQUARES) == Grade(0.0, "no_code")
    grade = await Grader(fenced=False).grade("print(int(input()) ** 2)", SQUARES)
    assert grade == Grade(1.0)


@pytest.mark.parametrize("token", ["<|im_end|>", "</s>\n", "<｜end▁of▁sentence｜>"])
async def test_a_special_token_at_the_end_is_none_of_the_program(token: str) -> None:
    """slime and OpenRLHF leave it there."""
    code = "print(int(input()) ** 2)"
    assert await Grader(fenced=False).grade(code + token, SQUARES) == Grade(1.0)
    assert await Grader().grade(f"```python\n{code}{token}", SQUARES) == Grade(1.0)


@pytest.mark.parametrize(
    ("completion", "text"),
    [
        (RIGHT, RIGHT),
        ([{"role": "assistant", "content": RIGHT}], RIGHT),
        ({"role": "assistant", "content": [{"type": "text", "text": RIGHT}]}, RIGHT),
        ([{"role": "assistant", "content": RIGHT}, {"role": "tool", "content": "x"},
          {"role": "assistant", "content": None, "tool_calls": [{}]}], RIGHT),
        ([], ""),
    ],
)  # fmt: skip
def test_a_completion_is_text_or_messages(completion: Any, text: str) -> None:
    assert text_of(completion) == text


class Array:
    """As numpy's."""

    def __init__(self, *values: str) -> None:
        self._values = [*values]

    def tolist(self) -> list[str]:
        return self._values


STDIN = [JudgeCase(input="3", expected="9"), JudgeCase(input="4", expected="16")]


@pytest.mark.parametrize(
    ("truth", "function", "cases"),
    [
        (SQUARES, None, STDIN),
        (json.dumps(SQUARES), None, STDIN),
        (json.dumps(SQUARES).encode(), None, STDIN),
        ({"inputs": Array("3", "4"), "outputs": Array("9", "16")}, None, STDIN),
        (
            {"inputs": [[3]], "outputs": [9], "fn_name": "f"},
            "f",
            [JudgeCase(input="3", expected="9")],
        ),
        (
            [{"input": "3", "output": "9", "testtype": "functional",
              "metadata": {"func_name": "f"}}],
            "f",
            [JudgeCase(input="3", expected="9")],
        ),
        (["assert f(3) == 9"], None, [JudgeCase(check="assert f(3) == 9")]),
        (
            {"test": "def check(f): assert f(3) == 9", "entry_point": "f"},
            None,
            [JudgeCase(check="def check(f): assert f(3) == 9\n\ncheck(f)")],
        ),
        (
            {"test_cases": [{"type": "function_call", "fn_name": "f", "input": [3], "output": 9}]},
            "f",
            [JudgeCase(input="3", expected="9")],
        ),
    ],
)  # fmt: skip
async def test_rows_are_read_as_data_sets_have_them(truth: Any, function: Any, cases: Any) -> None:
    read = cases_of(truth)
    assert (read.function, read.cases) == (function, cases)
    code = "print(int(input()) ** 2)" if cases == STDIN else "def f(x): return x * x"
    assert await Grader().grade(fenced(code), truth) == Grade(1.0)


class Unwilling:
    def tolist(self) -> Any:
        raise RuntimeError("the file is gone")


@pytest.mark.parametrize(
    ("completion", "truth", "reason"),
    [
        (RIGHT, "{", "unreadable"),
        (RIGHT, b"\xff", "unreadable"),
        (RIGHT, None, "unreadable"),
        (RIGHT, [], "unreadable"),
        (RIGHT, {"inputs": ["3"], "outputs": ["9", "16"]}, "unreadable"),
        (RIGHT, {"inputs": ["\ud800"], "outputs": ["9"]}, "unreadable"),
        (RIGHT, {"inputs": object()}, "unreadable"),
        (17, SQUARES, "unreadable"),
        (RIGHT, {"inputs": Unwilling()}, "internal_error"),
    ],
)
async def test_a_row_that_cannot_be_read_is_masked_and_logged(
    completion: Any, truth: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    grade = await Grader().grade(completion, truth)
    assert (grade.value, grade.reason) == (None, reason)
    assert "grade" in caplog.text


async def test_the_fences_language_is_the_models_choice() -> None:
    grader = Grader(language=None)
    assert (await grader.grade(fenced("read n; echo $((n * n))", "bash"), SQUARES)).value == 1.0
    grade = await grader.grade(fenced("(display 9)", "racket"), SQUARES)
    assert (grade.value, grade.reason) == (0.0, "language")
    function = {"inputs": [[3]], "outputs": [9], "fn_name": "f"}
    assert (await grader.grade(fenced("int f();", "cpp"), function)).value == 0.0


async def test_a_server_that_refuses_the_models_language_fails_the_program() -> None:
    wrong = [{"loc": ["body", "language"], "msg": "no lua"}]
    with ScriptedFusion(default=Answer(status=422, body={"detail": wrong})) as fusion:
        grade = await Grader(on=fusion.url, language=None).grade(fenced("print(9)", "lua"), SQUARES)
        assert (grade.value, grade.reason) == (0.0, "language")
        grade = await Grader(on=fusion.url, language="lua").grade(
            fenced("print(9)", "lua"), SQUARES
        )
        assert (grade.value, grade.reason) == (None, "language")


async def test_a_language_that_the_trainer_chose_and_nobody_runs_is_masked() -> None:
    grade = await Grader(language="racket").grade(fenced("(display 9)", "racket"), SQUARES)
    assert (grade.value, grade.reason) == (None, "language")


@pytest.mark.parametrize("language", ["bash", "python"])
async def test_a_limit_that_the_sandbox_refuses_masks_in_any_language(language: str) -> None:
    tests = {"input": ["1"], "output": ["1"]}
    grade = await Grader(language=None).grade(
        fenced("echo 1", language), {"public_tests": tests, "memory_limit_bytes": 1 << 39}
    )
    assert (grade.value, grade.reason) == (None, "refused")
    grade = await Grader(language=None, memory_limit_mb=1 << 19).grade(
        fenced("echo 1", language), SQUARES
    )
    assert (grade.value, grade.reason) == (None, "refused")


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"language": "cobol"}, "language"),
        ({"compare": "roughly"}, "compare"),
        ({"case_timeout": -1.0}, "run_timeout"),
        ({"timeout": 0.0}, "timeout"),
        ({"timeout": float("nan")}, "timeout"),
        ({"patience": -1.0}, "patience"),
        ({"queue": ""}, "a queue is named"),
        ({"on": "loacl"}, "on: names no place"),
        ({"on": ""}, "on: names no place"),
        ({"on": "redis://host:notaport"}, "port"),
        ({"on": "redis://host", "share": "a b"}, "share"),
    ],
)
def test_settings_that_cannot_work_are_refused_at_once(settings: Any, named: str) -> None:
    with pytest.raises(SettingError, match=named):
        Grader(**settings)


def test_a_password_is_not_shown() -> None:
    assert "secret" not in repr(Grader(on="redis://:secret@host"))


# Where our side fails


@pytest.fixture
def broken(one_attempt: None) -> Iterator[ScriptedFusion]:
    with ScriptedFusion(default=Answer.busy()) as fusion:
        yield fusion


async def test_a_sandbox_that_fails_masks(broken: ScriptedFusion) -> None:
    grade = await Grader(on=broken.url).grade(RIGHT, SQUARES)
    assert (grade.value, grade.reason) == (None, "http_429")


async def test_a_sandbox_server_is_asked_for_each_case(one_attempt: None) -> None:
    with ScriptedFusion(default=Answer.ok("9\n")) as fusion:
        assert await Grader(on=fusion.url).grade(RIGHT, SQUARES) == Grade(0.5, "wrong")


async def test_a_dead_redis_masks_all(caplog: pytest.LogCaptureFixture) -> None:
    grader = Grader(on=f"redis://127.0.0.1:{free_port()}", patience=0.3)
    grades = await asyncio.gather(*(grader.grade(RIGHT, SQUARES) for _ in range(64)))
    assert {(grade.value, grade.reason) for grade in grades} == {(None, "QueueUnavailable")}


async def test_a_dead_redis_pauses_a_training_that_is_to_stop() -> None:
    """As soon as half of the last 64 grades are not known."""
    grader = Grader(on=f"redis://127.0.0.1:{free_port()}", patience=0.3, when_paused="raise")
    grades = await asyncio.gather(
        *(grader.grade(RIGHT, SQUARES) for _ in range(64)), return_exceptions=True
    )
    paused = [grade for grade in grades if isinstance(grade, TrainingPaused)]
    assert len(paused) == 33
    with pytest.raises(TrainingPaused, match=r"32 of the last 64 grades are not known.* in 5 s"):
        await grader.grade(RIGHT, SQUARES)


def test_grades_that_fail_late_take_no_place_of_those_that_are_let_through(monkeypatch) -> None:
    """They began before the breaker opened, and say nothing new."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(
        "worker.hosts.grades_breaker.time", SimpleNamespace(monotonic=lambda: clock.now)
    )
    breaker = GradesBreaker(need=2, last=4)
    first, *late = [breaker.begin() for _ in range(7)]
    breaker.end("system", first)
    clock.now += PAUSE + 1
    with pytest.raises(TrainingPaused):
        breaker.end("system", late.pop())
    clock.now += PAUSE
    for began in late:
        with pytest.raises(TrainingPaused):
            breaker.end("system", began)
    assert [breaker.begin() for _ in range(FEW)] == [clock.now] * FEW


async def test_time_that_is_over_masks(real_redis) -> None:
    grade = await Grader(on=url_of(real_redis), timeout=0.2).grade(RIGHT, SQUARES)
    assert (grade.value, grade.reason) == (None, "DeadlineExceeded")


# From anywhere


async def test_all_cases_are_one_job(real_redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_REDIS_URL", url_of(real_redis))
    truth = {"inputs": [*map(str, range(20))], "outputs": [str(n * n) for n in range(20)]}
    with at_work(real_redis, sandbox="local"):
        grader = Grader(share="evaluation")
        grades = await asyncio.gather(*(grader.grade(RIGHT, truth) for _ in range(4)))
    assert grades == [Grade(1.0)] * 4
    jobs = [id.decode() for id in real_redis.zrange("rq:finished:code", 0, -1)]
    shares = [real_redis.hget(f"rq:job:{id}", "penstock_share") for id in jobs]
    assert shares == [b"evaluation"] * 4


def graded_in_child(grader: Grader, grades: Any) -> None:
    grades.put(asyncio.run(grader.grade(RIGHT, SQUARES)))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.parametrize("where", ["local", "queue"])
def test_in_a_child_that_was_forked_or_spawned(real_redis, where: str, start: Any) -> None:
    grader = Grader(on="local" if where == "local" else url_of(real_redis))
    context = multiprocessing.get_context(start)
    with at_work(real_redis, sandbox="local"):
        assert grader.grade_sync(RIGHT, SQUARES).value == 1.0  # the parent's is open
        grades = context.Queue()
        child = context.Process(target=graded_in_child, args=(grader, grades))
        child.start()
        assert grades.get(timeout=250) == Grade(1.0)
        child.join(100)
        assert child.exitcode == 0
        assert grader.grade_sync(RIGHT, SQUARES).value == 1.0


def test_from_several_threads_with_loops_of_their_own() -> None:
    grader, found = Grader(), []

    async def several() -> None:
        found.extend(await asyncio.gather(*(grader.grade(RIGHT, SQUARES) for _ in range(3))))

    threads = [threading.Thread(target=lambda: asyncio.run(several())) for _ in range(3)]
    threads.append(threading.Thread(target=lambda: found.append(grader.grade_sync(RIGHT, SQUARES))))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [Grade(1.0)] * 10


def test_it_pickles() -> None:
    grader = Grader(on="redis://host", queue="other", timeout=15.0)
    assert pickle.loads(pickle.dumps(grader)) == grader


async def test_a_large_row_is_read_once_for_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []

    def read(text: str) -> Cases:
        reads.append(text)
        return read_cases(text)

    monkeypatch.setattr("worker.hosts.grading.read_cases", read)
    truth = {"inputs": ["3" + " " * (64 << 10)] * 2, "outputs": ["9"] * 2}
    grades = await asyncio.gather(*(Grader().grade(RIGHT, truth) for _ in range(8)))
    assert grades == [Grade(1.0)] * 8
    assert len(reads) == 1


def test_what_is_no_completion_is_refused() -> None:
    with pytest.raises(RequestRefused, match="text or messages"):
        text_of(17)

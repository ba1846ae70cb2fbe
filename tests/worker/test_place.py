"""Where programs run, and whose fault an end is: the same outcomes from every place."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from ground import SettingError, process
from jail import LocalSandbox
from jail.errors import RequestRefused
from jail.judge.formats import Cases
from jail.judge.models import JudgeCase
from jail.models import CodeRequest, CodeResult, CommandResult
from tests.harness.servers import free_port, url_of
from tests.worker.concurrent.crew import at_work
from tests.worker.scripted_answers import Answer
from tests.worker.scripted_fusion import ScriptedFusion
from worker import CodeQueue
from worker.place import HERE, InProcess, InSandbox, OnQueue, Place, place_of
from worker.run.choice import close_sandboxes_here
from worker.settings import worker_settings

SQUARE = "print(int(input()) ** 2)"
CASES = Cases([JudgeCase(input="3", expected="9"), JudgeCase(input="4", expected="17")])
REFUSED = Cases([JudgeCase(input="1", check="assert True")], function="f")  # Python's only


@pytest.fixture(autouse=True)
def one_attempt(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PENSTOCK_SANDBOX_ATTEMPTS", "1")
    monkeypatch.delenv("PENSTOCK_REDIS_URL", raising=False)
    worker_settings.cache_clear()
    yield
    process.stop(close_sandboxes_here)
    worker_settings.cache_clear()


@pytest.mark.parametrize(
    ("on", "kind"),
    [
        ("redis://host", OnQueue),
        ("REDISS://host:6380/1", OnQueue),
        ("redis+sentinel://a,b/main", OnQueue),
        ("unix:///tmp/redis.sock", OnQueue),
        (CodeQueue("redis://host"), OnQueue),
        ("local", InProcess),
        (None, InProcess),
        ("http://one:8080 https://two/run_code", InProcess),
        (LocalSandbox(), InSandbox),
    ],
)
def test_one_rule_says_where(on: Any, kind: type[Place]) -> None:
    place = place_of(on)
    assert type(place) is kind
    assert place.takes_permits == (kind is OnQueue)
    assert bool(place.server) == (isinstance(on, str) and on.startswith("http"))


def test_without_a_name_it_is_the_queue_of_the_environment(monkeypatch) -> None:
    monkeypatch.setenv("PENSTOCK_REDIS_URL", "redis://elsewhere")
    assert isinstance(place_of(None), OnQueue)


@pytest.mark.parametrize("on", ["", "loacl", "http://", "http://one two", "/run_code"])
def test_what_is_no_place_is_refused_with_the_settings_name(on: str) -> None:
    with pytest.raises(SettingError, match="sandbox: names no place for programs: a sandbox is"):
        place_of(on, setting="sandbox")


@pytest.fixture(params=["queue", "local", "server", "sandbox"])
async def place(request: pytest.FixtureRequest, real_redis) -> AsyncIterator[Place]:
    """Each kind, with Python and bash behind it that works."""
    sandbox = LocalSandbox()
    if request.param == "queue":
        with at_work(real_redis, sandbox="local"):
            yield place_of(url_of(real_redis))
    elif request.param == "server":
        with ScriptedFusion(default=Answer.ok("9\n")) as fusion:
            yield place_of(fusion.url)
    else:
        yield place_of(HERE if request.param == "local" else sandbox)
    await sandbox.close()


async def test_a_programs_end_is_a_result_and_verdicts(place: Place) -> None:
    result = await place.run(CodeRequest(code="print(9)"))
    assert (result.ok, result.stdout) == (True, "9\n")
    assert (await place.judge(SQUARE, CASES, {})).verdicts == "PW"


async def test_a_text_that_nobody_takes_is_the_programs_fault(place: Place) -> None:
    result = await place.judge("x = '\ud800'", CASES, {})
    assert (result.verdicts, result.error_kind) == ("CC", "user")
    assert "lone surrogate" in result.message


async def test_what_the_data_asks_for_in_vain_is_refused_whatever_the_program(place: Place) -> None:
    for code in ("x", "x = '\ud800'"):
        with pytest.raises(RequestRefused, match="mode function, which is for Python"):
            await place.judge(code, REFUSED, {"language": "cpp"})
    with pytest.raises(RequestRefused, match="there are no cases"):
        await place.judge("x", Cases([]), {})


async def test_a_language_of_the_models_choice_is_the_programs_fault(place: Place) -> None:
    result = await place.judge("x", REFUSED, {}, {"language": "cpp"})
    assert (result.verdicts, result.error_kind) == ("C", "user")


async def test_a_language_that_nobody_runs_is_the_fault_of_its_chooser() -> None:
    place = place_of(HERE)
    chosen = await place.judge("(display 9)", CASES, {}, {"language": "racket"})
    assert (chosen.verdicts, chosen.reasons) == ("CC", {0: "language", 1: "language"})
    given = await place.judge("(display 9)", CASES, {"language": "racket"})
    assert (given.verdicts, given.masked_because) == ("MM", "language")


@pytest.mark.parametrize("failing", ["redis", "server", "sandbox"])
async def test_what_fails_on_our_side_masks_with_its_reason(failing: str) -> None:
    """The program is right, and no place says otherwise."""
    with ScriptedFusion(default=Answer.busy()) as fusion:
        on = f"redis://127.0.0.1:{free_port()}" if failing == "redis" else fusion.url
        place = InSandbox(Broken()) if failing == "sandbox" else place_of(on, patience=0.2)
        result, judged = await asyncio.gather(
            place.run(CodeRequest(code=SQUARE)), place.judge(SQUARE, CASES, {})
        )
    reason = {"redis": "QueueUnavailable", "server": "http_429", "sandbox": "fuse"}[failing]
    assert (result.error_kind, result.error_reason) == ("infrastructure", reason)
    assert (judged.verdicts, judged.error_kind) == ("MM", "infrastructure")
    assert judged.masked_because.startswith(reason)
    assert result.message
    assert judged.message


class Broken:
    """A sandbox that judges, and fails."""

    name, languages = "broken", frozenset({"python"})
    judged_languages = languages

    async def run(self, *_: object) -> Any:
        from jail.errors import SandboxBroken

        raise SandboxBroken("a fuse", reason="fuse")

    judge = run


class Counting:
    """A sandbox that only runs programs. It counts how many it runs side by side."""

    name, languages = "counting", frozenset({"python"})
    running = peak = 0

    async def run(self, request: CodeRequest) -> CodeResult:
        self.running += 1
        self.peak = max(self.peak, self.running)
        await asyncio.sleep(0)
        self.running -= 1
        ran = CommandResult(status="Finished", return_code=0, stdout="9\n")
        return CodeResult(status="Success", run_result=ran)


@pytest.mark.parametrize("on", [HERE, "http://sandbox:8080"])
async def test_as_many_cases_are_run_at_once_as_is_said(on: str, monkeypatch) -> None:
    counting = Counting()
    monkeypatch.setattr(InProcess, "sandbox", lambda place: counting)
    cases = Cases([JudgeCase(input="3", expected="9")] * 5)
    assert (await place_of(on, at_once=1).judge(SQUARE, cases, {})).verdicts == "PPPPP"
    assert counting.peak == 1


async def test_a_time_that_is_over_is_our_failure() -> None:
    result = await place_of(HERE).run(CodeRequest(code="while True: pass"), timeout=0.0)
    assert (result.error_kind, result.error_reason) == ("infrastructure", "job_time")

"""A program's score over cases, on a queue or in a sandbox.

    queue = CodeQueue(redis, "code")
    outcome = await score("print(int(input()) ** 2)", [Case("3", "9"), Case("4", "16")], on=queue)
    outcome.value        # 1.0; None where it cannot be known

A score is given only where no outcome that is missing could change it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol

from worker.errors import QueueError, RequestRefused, SandboxFailure
from worker.judge.program import program_of
from worker.models import CodeRequest, CodeResult
from worker.reward.verdict import same_output

Verdict = Literal[
    "passed", "wrong", "error", "compile_error", "timeout", "limit", "masked", "skipped"
]


@dataclass(frozen=True)
class Case:
    """What goes in and what should come out; with no `expected` it is enough to return 0.

    `check` is code that is put behind the program: assertions, as a rule.
    """

    stdin: str | None = None
    expected: str | None = None
    check: str = ""

    def __post_init__(self) -> None:
        for name, value in (("stdin", self.stdin), ("expected", self.expected)):
            if value is not None and not isinstance(value, str):
                raise TypeError(f"a case's {name} is text, not {value!r:.60}: as it is printed")


@dataclass(frozen=True)
class CaseResult:
    """How one case went.

    `masked`: its outcome is not known, through no fault of the program; `reason` says
    what failed. `skipped`: it was not needed any more.
    """

    verdict: Verdict
    reason: str = ""
    result: CodeResult | None = None

    @property
    def passed(self) -> bool:
        return self.verdict == "passed"

    @property
    def known(self) -> bool:
        return self.verdict not in ("masked", "skipped")


def verdict_on(result: CodeResult, *, as_expected: bool) -> CaseResult:
    """What a program's end says of its case."""
    match result.error_kind:
        case "none":
            return CaseResult("passed" if as_expected else "wrong", "", result)
        case "infrastructure":
            return CaseResult("masked", result.error_reason, result)
        case "limit":
            late = result.error_reason in ("run_timeout", "compile_timeout")
            return CaseResult("timeout" if late else "limit", result.error_reason, result)
    compiled = result.error_reason != "compile_error"
    return CaseResult("error" if compiled else "compile_error", result.error_reason, result)


Compare = Callable[[str, str], bool]


class Runner(Protocol):
    """What runs programs: a `CodeQueue`, or a `Sandbox`."""

    async def run(self, request: CodeRequest, /) -> CodeResult: ...


@dataclass(frozen=True)
class Score:
    """`value` is the share of cases passed, or None: masked, for `reason`."""

    value: float | None
    cases: tuple[CaseResult, ...]
    reason: str = ""

    @property
    def masked(self) -> bool:
        return self.value is None

    @property
    def passed(self) -> int:
        return sum(case.passed for case in self.cases)


async def score(
    code: str,
    cases: Iterable[Case],
    *,
    on: Runner,
    language: str = "python",
    case_timeout: float = 10.0,
    memory_limit_mb: int | None = 1024,
    function: str | None = None,
    stop_early: bool = False,
    compare: Compare = same_output,
    at_once: int = 16,
) -> Score:
    """Try the program on all cases, `at_once` of them together.

    With `stop_early` the score is all or nothing: the first case that is known to fail
    makes it 0.0, and the others are skipped. `function` names a function to be called
    with a case's stdin, one JSON value a line; what it returns is printed. A case that has
    a `check` alone, no stdin and no expected output, does not call it.
    """
    blank = CodeRequest(
        code="", language=language, compile_timeout=case_timeout, run_timeout=case_timeout,
        memory_limit_mb=memory_limit_mb,
    )  # fmt: skip
    if not callable(getattr(on, "run", None)):
        raise TypeError(f"`on` is a CodeQueue or a sandbox, not {on!r:.60}")
    if function and language != "python":
        raise ValueError(f"a function is called in Python, and the language is {language!r}")
    tried = list(cases)
    if not tried:
        raise ValueError("a program is scored on at least one case")
    trials = [
        partial(_tried, on, _request(blank, case, _program(code, case, function)), case, compare)
        for case in tried
    ]
    results = await _all_tried(trials, at_once=at_once, stop_early=stop_early)
    return _scored(results, all_or_nothing=stop_early)


def _program(code: str, case: Case, function: str | None) -> str:
    return program_of(code, case.check, function, case.stdin, case.expected)


def _request(blank: CodeRequest, case: Case, program: str) -> CodeRequest | CaseResult:
    """The case's request; its verdict already, where no sandbox would take the program."""
    given = blank.dump() | {"stdin": case.stdin}
    CodeRequest.read(given)  # a case that cannot be asked is its author's fault, and raises
    try:
        return CodeRequest.read(given | {"code": program})
    except RequestRefused as refusal:
        return CaseResult("compile_error", str(refusal))


async def _tried(
    on: Runner, request: CodeRequest | CaseResult, case: Case, compare: Compare
) -> CaseResult:
    if isinstance(request, CaseResult):
        return request
    try:
        result = await on.run(request)
    except SandboxFailure as failure:
        return CaseResult("masked", failure.reason)
    except QueueError as failure:
        return CaseResult("masked", f"{type(failure).__name__}: {failure}")
    as_expected = case.expected is None or compare(result.stdout, case.expected)
    return verdict_on(result, as_expected=as_expected)


async def _all_tried(
    trials: Sequence[Callable[[], Awaitable[CaseResult]]], *, at_once: int, stop_early: bool
) -> list[CaseResult]:
    results = [CaseResult("skipped")] * len(trials)
    todo = iter(enumerate(trials))

    async def work() -> None:
        for index, trial in todo:
            results[index] = found = await trial()
            if stop_early and found.known and not found.passed:
                for other in set(workers) - {asyncio.current_task()}:
                    other.cancel()
                return

    workers = [asyncio.create_task(work()) for _ in range(min(at_once, len(trials)))]
    try:
        await asyncio.wait(workers)
    finally:
        for worker in workers:
            worker.cancel()
        outcomes = await asyncio.gather(*workers, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, Exception):  # not a cancellation, which is ours
            raise outcome
    return results


def _scored(results: Sequence[CaseResult], *, all_or_nothing: bool) -> Score:
    cases = tuple(results)
    lost = [case for case in cases if case.verdict == "masked"]
    if all_or_nothing and any(case.known and not case.passed for case in cases):
        return Score(0.0, cases)
    if lost:
        return Score(None, cases, lost[0].reason)
    return Score(sum(case.passed for case in cases) / len(cases), cases)

"""A program's score over cases, on a queue or in a sandbox.

    queue = CodeQueue(redis, "code")
    outcome = await score("print(int(input()) ** 2)", [Case("3", "9"), Case("4", "16")], on=queue)
    outcome.value        # 1.0; None if it cannot be known

A score is given only where no outcome that is missing could change it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Protocol

from jail.errors import RequestRefused, SandboxFailure
from jail.judge.asking import JudgeOptions
from jail.judge.compare import accepted, may_accept
from jail.judge.formats import Cases, checked_case
from jail.judge.models import Compare as CompareRule
from jail.judge.models import JudgeResult, Rule
from jail.judge.printed import Compared, as_known
from jail.judge.program import marked, program_of
from jail.models import OUTPUT_LIMIT, CodeRequest, CodeResult
from worker.errors import QueueError
from worker.reward.judged import judge, takes
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
    compare: Compare | Rule | CompareRule = same_output,
    at_once: int = 16,
) -> Score:
    """Try the program on all cases: one job of a queue, or one call of the embedded sandbox.

    With `stop_early` the score is all or nothing: the first case that is known to fail
    makes it 0.0, and the others are skipped. `function` names a function to be called
    with a case's stdin, one JSON value per line; its result is printed. A case with only a
    `check`, no stdin and no expected output, does not call it. `compare` is a rule of
    `jail.judge.Compare`, its name, or a function. A function is called here, so every
    output comes back. A sandbox that cannot judge runs one program per case, `at_once` of them.
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
    trial = _Trial(code, tried, blank, on, function, compare, stop_early, at_once)
    in_one_go = trial.judged()
    if takes(on, language):
        results = await _judged_in_one_go(trial, in_one_go)
    else:
        results = await tried_one_by_one(trial)
    return _scored(results, all_or_nothing=stop_early)


@dataclass(frozen=True)
class _Trial:
    """A program, its cases, and where and how it is tried on them."""

    code: str
    cases: Sequence[Case]
    blank: CodeRequest
    on: Any
    function: str | None
    compare: Compare | Rule | CompareRule
    stop_early: bool
    at_once: int

    @property
    def rule(self) -> CompareRule | None:
        """What a judge can compare by; None for a function, which cannot travel."""
        if self.compare is same_output:
            return CompareRule()
        if isinstance(self.compare, str):
            return CompareRule(rule=self.compare)
        return self.compare if isinstance(self.compare, CompareRule) else None

    async def same(self, printed: str, expected: str) -> bool:
        """As the caller compares."""
        if (rule := self.rule) is not None:
            return await accepted(rule, printed.encode(errors="replace"), [expected.encode()])
        assert callable(self.compare)  # noqa: S101 - it is no rule
        return self.compare(printed, expected)

    def known(self, result: CodeResult, expected: str | None, mark: str = "") -> CodeResult:
        """Masked where too little of the output is here; a function compares only all of it."""
        answers = [] if expected is None else [expected.encode()]
        rule = self.rule
        return as_known(
            result, mark, answers,
            lambda begun: rule is None or may_accept(rule, begun.encode(), answers),
        )  # fmt: skip

    def judged(self) -> Cases:
        """As a judge takes them; where outputs are compared here, to return 0 is enough there."""
        return Cases(
            [
                checked_case(
                    index, input=case.stdin or "", check=case.check,
                    expected=None if self.rule is None else case.expected,
                )
                for index, case in enumerate(self.cases)
            ],
            self.function,
        )  # fmt: skip


async def _judged_in_one_go(trial: _Trial, cases: Cases) -> list[CaseResult]:
    blank, rule = trial.blank, trial.rule
    options: JudgeOptions = {
        "language": blank.language,
        "compile_timeout": blank.compile_timeout,
        "run_timeout": blank.run_timeout,
        "stop": "first" if trial.stop_early and rule is not None else "none",
        "keep": "failures",
    }
    if blank.memory_limit_mb is not None:
        options["memory_limit_mb"] = blank.memory_limit_mb
    if rule is not None:
        options["compare"] = rule
    else:
        options |= {"keep": "all", "keep_bytes": OUTPUT_LIMIT // 2, "keep_total": 16 << 20}
    try:
        CodeRequest.read(blank.dump() | {"code": trial.code})
    except RequestRefused as refusal:
        return [CaseResult("compile_error", str(refusal))] * len(trial.cases)
    result = await judge(trial.code, cases, trial.on, options)
    found = list(_case_results(result))
    return found if rule is not None else await _compared_here(trial, result, found)


def score_of(result: JudgeResult, *, all_or_nothing: bool) -> Score:
    """What the verdicts of a judge are worth."""
    return _scored(list(_case_results(result)), all_or_nothing=all_or_nothing)


def _case_results(result: JudgeResult) -> Iterator[CaseResult]:
    for index, letter in enumerate(result.verdicts):
        if letter == "S":
            yield CaseResult("skipped", result.reasons.get(index, ""))
        else:
            yield verdict_on(result.of_case(index), as_expected=letter == "P")


async def _compared_here(
    trial: _Trial, result: JudgeResult, found: list[CaseResult]
) -> list[CaseResult]:
    """By the caller's function. What printed too much to come back is run by itself."""
    left = dict.fromkeys(range(len(found)))
    for index, case in enumerate(trial.cases):
        kept = result.kept.get(index)
        if found[index].passed and case.expected is not None:
            if kept is None or not kept.whole:
                continue
            right = await trial.same(kept.stdout, case.expected)
            found[index] = verdict_on(result.of_case(index), as_expected=right)
        elif found[index].verdict == "limit":
            found[index] = verdict_on(
                trial.known(result.of_case(index), case.expected), as_expected=False
            )
        del left[index]
    rest = await tried_one_by_one(replace(trial, cases=[trial.cases[index] for index in left]))
    for index, again in zip(left, rest, strict=True):
        found[index] = again
    return found


async def tried_one_by_one(trial: _Trial) -> list[CaseResult]:
    """A run for each case: what a sandbox that does not judge is asked for."""
    trials = [partial(_tried, trial, case, *_asked(trial, case)) for case in trial.cases]
    return await _all_tried(trials, at_once=trial.at_once, stop_early=trial.stop_early)


def _asked(trial: _Trial, case: Case) -> tuple[CodeRequest | CaseResult, str]:
    """What is run, and the mark that it prints if it comes to the end of its check."""
    language = trial.blank.language
    text = program_of(language, trial.code, case.check, trial.function, case.stdin, case.expected)
    code, mark = marked(language, text, case.check)
    return _request(trial.blank, case, code), mark


def _request(blank: CodeRequest, case: Case, program: str) -> CodeRequest | CaseResult:
    """The case's request; its verdict already, where no sandbox would take the program."""
    given = blank.dump() | {"stdin": case.stdin}
    CodeRequest.read(given)  # a case that cannot be asked is its author's fault, and raises
    try:
        return Compared.read(given | {"code": program})
    except RequestRefused as refusal:
        return CaseResult("compile_error", str(refusal))


async def _tried(
    trial: _Trial, case: Case, request: CodeRequest | CaseResult, mark: str
) -> CaseResult:
    if isinstance(request, CaseResult):
        return request
    try:
        result = await trial.on.run(request)
    except SandboxFailure as failure:
        return CaseResult("masked", failure.reason)
    except QueueError as failure:
        return CaseResult("masked", f"{type(failure).__name__}: {failure}")
    result = trial.known(result, case.expected, mark)
    as_expected = case.expected is None or await trial.same(result.stdout, case.expected)
    return verdict_on(result.bounded(), as_expected=as_expected)


async def _all_tried(
    trials: Sequence[Callable[[], Awaitable[CaseResult]]], *, at_once: int, stop_early: bool
) -> list[CaseResult]:
    results = [CaseResult("skipped")] * len(trials)
    if not trials:
        return results
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
        if isinstance(outcome, Exception):  # not a cancellation, which is our own
            raise outcome
    return results


def _scored(results: Sequence[CaseResult], *, all_or_nothing: bool) -> Score:
    cases = tuple(results)
    lost = [case for case in cases if not case.known]  # cut off by a time for all, or masked
    if all_or_nothing and any(case.known and not case.passed for case in cases):
        return Score(0.0, cases)
    if lost:
        return Score(None, cases, lost[0].reason)
    return Score(sum(case.passed for case in cases) / len(cases), cases)

"""A program's score over cases, on a queue or in a sandbox.

    queue = CodeQueue(redis, "code")
    outcome = await score("print(int(input()) ** 2)", [Case("3", "9"), Case("4", "16")], on=queue)
    outcome.value        # 1.0; None if it cannot be known

A score is given only where no outcome that is missing could change it.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from jail.judge.asking import JudgeOptions
from jail.judge.formats import Cases, checked_case
from jail.judge.models import MAX_KEPT, JudgeResult, Rule
from jail.judge.models import Compare as CompareRule
from jail.judge.printed import CUT
from jail.models import OUTPUT_LIMIT, CodeResult
from worker.place import AT_ONCE, Place, Runner, place_of
from worker.reward.verl_codes import same_output

Verdict = Literal[
    "passed", "wrong", "error", "compile_error", "timeout", "limit", "masked", "skipped"
]


@dataclass(frozen=True)
class Case:
    """A case: what goes in and what should come out; with no `expected` it is enough to return 0.

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
    """The verdict on a case by its program's end."""
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


@dataclass(frozen=True)
class Score:
    """A score: `value` is the share of cases passed, or None: masked, for `reason`."""

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
    on: Runner | str,
    language: str = "python",
    case_timeout: float = 10.0,
    memory_limit_mb: int | None = 1024,
    function: str | None = None,
    stop_early: bool = False,
    compare: Compare | Rule | CompareRule = same_output,
    at_once: int = AT_ONCE,
) -> Score:
    """Try the program on all cases: one job of a queue, or one call of the embedded sandbox.

    `on` is a `CodeQueue`, a sandbox, or text that names one: `redis://…`, `http://…`, `local`.

    With `stop_early` the score is all or nothing: the first case that is known to fail
    makes it 0.0, and the others are skipped. `function` names a function to be called
    with a case's stdin, one JSON value per line. What it returns is compared with `expected` by
    value: JSON, or else text. A case with only a `check`, no stdin and no expected output,
    does not call it.

    `compare` is a rule of `jail.judge.Compare`, its name, or a function. A function is called
    here, so every output comes back, and what `function` returns is printed. A sandbox that cannot
    judge runs one program per case, `at_once` of them.
    """
    place = place_of(on, at_once=at_once)
    if function and language != "python":
        raise ValueError(f"a function is called in Python, and the language is {language!r}")
    tried = list(cases)
    if not tried:
        raise ValueError("a program is scored on at least one case")
    rule = _rule_of(compare)
    options: JudgeOptions = {
        "language": language,
        "compile_timeout": case_timeout,
        "run_timeout": case_timeout,
        "stop": "first" if stop_early else "none",
    }
    if memory_limit_mb is not None:
        options["memory_limit_mb"] = memory_limit_mb
    given = _judged_cases(tried, function, compared_here=rule is None)
    if rule is not None:
        options |= {"compare": rule, "keep": "failures"}
        results = list(_case_results(await place.judge(code, given, options)))
    else:
        assert callable(compare)  # noqa: S101 - it is no rule
        results = await _ComparedHere(place, code, given, options, compare, at_once).results(tried)
    return _scored(results, all_or_nothing=stop_early)


def _rule_of(compare: Compare | Rule | CompareRule) -> CompareRule | None:
    """The rule that a judge can compare by; None for a function, which cannot travel."""
    if compare is same_output:
        return CompareRule()
    if isinstance(compare, str):
        return CompareRule(rule=compare)
    return compare if isinstance(compare, CompareRule) else None


def _judged_cases(cases: Sequence[Case], function: str | None, *, compared_here: bool) -> Cases:
    """Cases as a judge takes them; if outputs are compared here, to return 0 is enough there."""
    return Cases(
        [
            checked_case(
                index, input=case.stdin or "", check=case.check,
                expected=None if compared_here else case.expected,
            )
            for index, case in enumerate(cases)
        ],
        function,
        values=not compared_here,
    )  # fmt: skip


@dataclass(frozen=True)
class _ComparedHere:
    """A program whose outputs the caller's function compares: all of each has to come back."""

    place: Place
    code: str
    cases: Cases
    options: JudgeOptions
    same: Compare
    at_once: int

    async def results(self, cases: Sequence[Case]) -> list[CaseResult]:
        much: JudgeOptions = {
            **self.options, "keep": "all", "keep_bytes": OUTPUT_LIMIT // 2, "keep_total": MAX_KEPT,
        }  # fmt: skip
        result = await self.place.judge(self.code, self.cases, much)
        found = list(_case_results(result))
        places = asyncio.Semaphore(self.at_once)

        async def compared(index: int, case: Case) -> CaseResult:
            if not found[index].passed or case.expected is None:
                return _masked_if_cut(found[index], case)
            kept = result.kept.get(index)
            if kept is not None and kept.whole:
                return self._verdict(result, index, case.expected)
            async with places:
                return await self._by_itself(index, case.expected)

        return await asyncio.gather(*(compared(index, case) for index, case in enumerate(cases)))

    async def _by_itself(self, index: int, expected: str) -> CaseResult:
        """Judge a case alone that printed too much to come back beside the others."""
        alone: JudgeOptions = {
            **self.options, "keep": "all", "keep_bytes": MAX_KEPT // 2, "keep_total": MAX_KEPT,
        }  # fmt: skip
        again = await self.place.judge(
            self.code, replace(self.cases, cases=[self.cases.cases[index]]), alone
        )
        (found,) = _case_results(again)
        if not found.passed:
            return found
        kept = again.kept.get(0)
        if kept is None or not kept.whole:
            return CaseResult("masked", CUT, found.result)
        return self._verdict(again, 0, expected)

    def _verdict(self, result: JudgeResult, index: int, expected: str) -> CaseResult:
        ended = result.of_case(index)
        same = self.same(ended.stdout, expected)
        return verdict_on(ended.bounded(), as_expected=same)


def _masked_if_cut(found: CaseResult, case: Case) -> CaseResult:
    """Mask a case whose output was cut before it could be as long as what is expected."""
    much = len((case.expected or "").encode()) > OUTPUT_LIMIT
    cut = much and found.reason == "output_limit"
    return CaseResult("masked", CUT, found.result) if cut else found


def score_of(result: JudgeResult, *, all_or_nothing: bool) -> Score:
    """The score of a judge's verdicts."""
    return _scored(list(_case_results(result)), all_or_nothing=all_or_nothing)


def _case_results(result: JudgeResult) -> Iterator[CaseResult]:
    for index, letter in enumerate(result.verdicts):
        if letter == "S":
            yield CaseResult("skipped", result.reasons.get(index, ""))
        else:
            yield verdict_on(result.of_case(index), as_expected=letter == "P")


def _scored(results: Sequence[CaseResult], *, all_or_nothing: bool) -> Score:
    cases = tuple(results)
    lost = [case for case in cases if not case.known]  # cut off by a time for all, or masked
    if all_or_nothing and any(case.known and not case.passed for case in cases):
        return Score(0.0, cases)
    if lost:
        return Score(None, cases, lost[0].reason)
    return Score(sum(case.passed for case in cases) / len(cases), cases)

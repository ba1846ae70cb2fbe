"""Rows of a data set, looked at before a model is trained on them: `penstock cases check`.

It reports what a row's own solutions show: whether any of them passes, and what it takes. A checker
is shown what models print. All programs run where a reward would run them.
"""

import ast
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, cast

from jail.errors import RequestRefused
from jail.inside.values import plain, text_of
from jail.judge.asking import JudgeOptions, request_here
from jail.judge.compare import accepts
from jail.judge.completion import language_named
from jail.judge.formats import Cases, read_cases
from jail.judge.models import VERDICTS, Checker, Compare, JudgeRequest, JudgeResult, Rule
from jail.judge.suite import case_of
from jail.judge.values import Wanted, are_right, value_in
from jail.models import MAX_CODE, OUTPUT_LIMIT
from worker.place import Place

Level = Literal["error", "warning", "note"]

_CASES_IN = (
    "reward_model.ground_truth", "ground_truth", "verification_info", "input_output", "test_cases",
    "tests", "official_tests", "label", "answer",
)  # fmt: skip
_SOLUTIONS_IN = (
    "solutions", "canonical_solution", "gold_standard_solution", "reference_solution", "solution",
    "reference", "code",
)  # fmt: skip
_CODECONTESTS = {"2": "cpp", "3": "python", "4": "java"}
_ODD = {
    "nothing": b"", "a word": b"abc\n", "nan": b"nan\n", "a number beyond floats": b"1e400\n",
    "5,000 digits": b"9" * 5000 + b"\n", "bytes that are no text": b"\xff\xfe\n", "a zero": b"\0\n",
}  # fmt: skip
_MISSING = re.compile(r"No module named '([\w.]+)'|cannot import name '(\w+)'")
_UNNAMED = re.compile(r"NameError: name '(\w+)' is not defined")
_TRIED = 5  # cases whose expected output a checker is shown
_CLOSE = 0.5  # of a limit; above that a slower machine decides


@dataclass(frozen=True)
class Finding:
    """A finding about a row: a fault, or something worth knowing. `kind` is a word for machines."""

    level: Level
    kind: str
    text: str


@dataclass(frozen=True)
class Reference:
    """A solution that the row itself has."""

    code: str
    language: str


@dataclass
class RowReport:
    """The report on one row. Times are in seconds; those of the solutions that passed."""

    row: int
    name: str = ""
    cases: int = 0
    rule: str = ""
    references: int = 0
    passed: int = 0
    cpu_seconds: float = 0.0
    memory_mb: float = 0.0
    longest_seconds: float = 0.0
    findings: list[Finding] = field(default_factory=list)

    @property
    def is_broken(self) -> bool:
        """Whether no program can be judged on it, or none of its own solutions passes."""
        return any(each.level == "error" for each in self.findings)

    def add(self, level: Level, kind: str, text: str) -> None:
        self.findings.append(Finding(level, kind, text))

    def dump(self) -> dict[str, Any]:
        """The row as JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Wishes:
    """How rows are read and judged; what is unset is the row's own, or the default."""

    cases_in: str = ""
    solutions_in: str = ""
    language: str = "python"
    rule: Rule | None = None
    run_timeout: float | None = None
    memory_limit_mb: int | None = None
    most: int = 3  # solutions of a row


def rows_of(text: str) -> list[Any]:
    """The rows of a file: JSON Lines, a JSON list of rows, or one row. Raises `RequestRefused`."""
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        return [*_lines_of(text)]
    if not isinstance(whole, list):
        return [whole]
    try:
        read_cases(whole)
    except RequestRefused:
        return whole
    return [whole]


def _lines_of(text: str) -> Iterator[Any]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                yield json.loads(line)
            except (ValueError, RecursionError) as wrong:
                raise RequestRefused(f"line {number} is not JSON: {wrong}") from None


async def check_row(index: int, row: Any, place: Place, wishes: Wishes) -> RowReport:
    """Check one row of a data set, with its own solutions. Raises only what `place` raises if it
    cannot serve at all."""
    name = row.get("task_id") or row.get("id") or row.get("name") if isinstance(row, dict) else ""
    report = RowReport(index, str(name or ""))
    try:
        cases, checker = _cases_in(row, wishes), _checker_in(row)
        options = _options(cases, checker, wishes)
        request, _ = request_here("", cases, options)
    except RequestRefused as refusal:
        report.add("error", "unreadable", str(refusal))
        return report
    report.cases, report.rule = len(cases.cases), _rule_of(request)
    report.longest_seconds = round(request.longest, 1)
    _look_at_cases(report, cases, request)
    if checker is not None:
        await _look_at_checker(report, cases, place, options)
    references = _references_in(row, wishes)
    report.references = len(references)
    results = []
    for each in references[: wishes.most]:
        own = cast(JudgeOptions, {**options, "language": each.language})
        results.append((each, await place.judge(each.code, cases, own)))
    _look_at_results(report, request, results)
    return report


def _at(row: Any, path: str) -> Any:
    """The field by names with dots between them; text on the way is read as JSON. None: it is not
    there."""
    for name in path.split("."):
        if isinstance(row, str):
            try:
                row = json.loads(row)
            except (ValueError, RecursionError):
                return None
        row = row.get(name) if isinstance(row, Mapping) else None
    return row


def _cases_in(row: Any, wishes: Wishes) -> Cases:
    if wishes.cases_in:
        if (found := _at(row, wishes.cases_in)) is None:
            raise RequestRefused(f"the row has no {wishes.cases_in}")
        return read_cases(found)
    try:
        return read_cases(row)
    except RequestRefused as refusal:
        for path in _CASES_IN if isinstance(row, dict) else ():
            if (found := _at(row, path)) is not None:
                return read_cases(found)
        raise refusal from None


def _checker_in(row: Any) -> Checker | None:
    """Find the checker of a row: `checker`, by its fields or its text; `generated_checker` as
    open-r1 has it."""
    given = row if isinstance(row, dict) else {}
    if isinstance(found := given.get("checker"), dict):
        return _checker(found)
    if isinstance(found, str) and found.strip():
        return _checker({"code": found, "language": "cpp" if "#include" in found else "python"})
    found = given.get("generated_checker")
    if isinstance(found, str) and found.strip():
        return _checker({"code": found, "language": "python", "protocol": "open_r1"})
    return None


def _checker(fields: dict[str, Any]) -> Checker:
    try:
        return Checker(**fields)
    except ValueError as wrong:
        raise RequestRefused(f"its checker: {wrong!s:.200}") from None


def _options(cases: Cases, checker: Checker | None, wishes: Wishes) -> JudgeOptions:
    given: dict[str, Any] = {
        "compare": wishes.rule and Compare(rule=wishes.rule),
        "run_timeout": wishes.run_timeout,
        "memory_limit_mb": wishes.memory_limit_mb,
        "checker": checker,
    }
    chosen = {name: one for name, one in given.items() if one is not None}
    language = "python" if cases.function else wishes.language
    return cast(JudgeOptions, {"language": language, "keep": "first_failure"} | chosen)


def _rule_of(request: JudgeRequest) -> str:
    if request.checker:
        return "checker"
    by_value = request.mode in ("function", "check")
    return "value" if by_value else request.compare.rule


def _references_in(row: Any, wishes: Wishes) -> list[Reference]:
    """The reference solutions of a row, in its order. Those in languages that nobody knows are left
    out."""
    if not isinstance(row, Mapping):
        return []
    for path in (wishes.solutions_in,) if wishes.solutions_in else _SOLUTIONS_IN:
        before = row.get("prompt", row.get("code_prompt")) if path == "canonical_solution" else None
        if read := [*_solutions(_at(row, path), wishes.language)]:
            if isinstance(before, str):
                read = [Reference(before + each.code, each.language) for each in read]
            return read
    return []


def _solutions(found: Any, language: str) -> Iterator[Reference]:
    if isinstance(found, str):
        if found.lstrip().startswith("["):
            try:
                found = json.loads(found)
            except (ValueError, RecursionError):
                found = [found]
        else:
            found = [found]
    if isinstance(found, Mapping):  # CodeContests': lists side by side
        lists = (found.get(name) for name in ("language", "solution"))
        pairs = zip(*(each if isinstance(each, list) else () for each in lists), strict=False)
        found = [
            {"language": _CODECONTESTS.get(str(one), one), "code": code} for one, code in pairs
        ]
    for each in found if isinstance(found, Sequence) else ():
        if isinstance(each, str) and each.strip():
            yield Reference(each, language)
        elif isinstance(each, Mapping):
            code = each.get("code") or each.get("solution")
            named = language_named(str(each.get("language") or language))
            if isinstance(code, str) and named:
                yield Reference(code, named)


def _look_at_cases(report: RowReport, cases: Cases, request: JudgeRequest) -> None:
    rule = report.rule
    if cases.end_in_blanks and rule != "checker" and request.mode == "stdin":
        level: Level = "error" if rule in ("exact", "ends") else "note"
        wants = "wants them printed too" if level == "error" else "does not want them"
        report.add(
            level, "ends_in_blanks", f"an expected output ends in blanks or CR; the rule {rule} "
            f"{wants}",
        )  # fmt: skip
    several = sum(isinstance(case.expected, list) for case in cases.cases)
    if several and not cases.function:
        report.add("note", "several_answers", f"{several} cases accept several answers")
    answers: dict[str, set[tuple[bytes, ...]]] = {}
    for case in cases.cases:
        if (expected := case_of(case).expected) is not None:
            answers.setdefault(case.input, set()).add(expected)
    if clash := sum(len(one) > 1 and not _agree(request, one) for one in answers.values()):
        report.add(
            "error" if rule != "checker" else "note", "contradiction",
            f"{clash} inputs have more than one expected output",
        )  # fmt: skip
    printed = [case.expected for case in cases.cases if isinstance(case.expected, str)]
    by_text = request.mode == "stdin" and rule != "checker"
    if by_text and printed and not any(text.strip() for text in printed):
        report.add("error", "nothing_expected", "a program that prints nothing passes")
    longest = max(map(len, printed), default=0)
    if longest > OUTPUT_LIMIT:
        report.add("note", "long_output", f"{longest:,} characters are expected of a program")
    if broken := [at for at, case in enumerate(cases.cases) if _does_not_compile(request, case)]:
        report.add("error", "check_broken", f"the check of case {broken[0]} is no Python")


def _agree(request: JudgeRequest, wanted: set[tuple[bytes, ...]]) -> bool:
    """Whether one of the answers is right for all cases that want these."""

    def is_right(answer: bytes, accepted: tuple[bytes, ...]) -> bool | None:
        if not request.function or not request.judges_values:
            return accepts(request.compare, answer, accepted)
        returned = text_of([plain(value_in(answer))])
        return are_right(request.compare, [Wanted("row", accepted)], returned)

    answers = {answer for accepted in wanted for answer in accepted}
    return any(all(is_right(answer, each) for each in wanted) for answer in answers)


def _does_not_compile(request: JudgeRequest, case: Any) -> bool:
    if not case.check or request.language != "python":
        return False
    try:
        ast.parse(case.check)
    except (SyntaxError, ValueError, RecursionError):
        return True
    return False


async def _look_at_checker(
    report: RowReport, cases: Cases, place: Place, options: JudgeOptions
) -> None:
    """Try the checker on what is expected, which it is to accept, and on what models print, which
    it is to read. A case that expects nothing leaves the answer to its checker. It is not tried,
    nor is one that expects more than a program can hold."""
    options = cast(JudgeOptions, {**options, "language": "python"})
    refused = []
    for at, case in enumerate(cases.cases[:_TRIED]):
        expected = case.expected[0] if isinstance(case.expected, list) else case.expected or ""
        program = _printing(expected.encode())
        if not expected.strip() or len(program) > MAX_CODE:
            continue
        alone = Cases([case], compare=cases.compare)
        result = await place.judge(program, alone, options)
        if result.fault_of_mask == "system":
            _not_judged(report, "the checker", result)
            return
        if result.verdicts != "P":
            why = result.comments.get(0) or result.masked_because or "it says wrong"
            refused.append((at, why))
    if refused:
        at, why = refused[0]
        report.add(
            "error", "refuses_expected",
            f"the checker does not accept what case {at} expects: {why:.200}",
        )  # fmt: skip
    fails: list[str] = []
    said = ""
    for what, odd in _ODD.items():
        alone = Cases([cases.cases[0]], compare=cases.compare)
        result = await place.judge(_printing(odd), alone, options)
        if "fails on this one" in result.comments.get(0, ""):
            fails.append(what)
            said = said or result.comments[0].rpartition("\n")[2]
        elif result.verdicts == "P" and what != "nothing":
            report.add("warning", "accepts_anything", f"the checker accepts {what}")
    if fails:
        on = ", ".join(fails)
        report.add(
            "warning", "raises", f"the checker fails on {on}, which counts as wrong: {said:.100}"
        )


def _printing(output: bytes) -> str:
    return f"import os; os.write(1, {output!r})"


def _look_at_results(
    report: RowReport, request: JudgeRequest, results: Sequence[tuple[Reference, JudgeResult]]
) -> None:
    passing = [result for _, result in results if set(result.verdicts) == {"P"}]
    known = [result for _, result in results if result.fault_of_mask != "system"]
    report.passed = len(passing)
    for reference, result in results:
        _look_at_failure(report, reference, result)
    if known and not passing:
        report.add("error", "no_reference_passes", _best_of(known))
    elif len(passing) < len(known):
        many = f"{len(known) - len(passing)} of {len(known)} solutions do not pass"
        report.add("warning", "reference_fails", many)
    if shared := max((result.shared for _, result in results), default=0):
        report.add("warning", "shared", f"{shared} checks run in the program's own process")
    if passing:
        report.cpu_seconds = max(max(one.cpu_ms, default=0) for one in passing) / 1000
        report.memory_mb = round(max(max(one.memory_kb, default=0) for one in passing) / 1024, 1)
        if report.cpu_seconds > _CLOSE * request.run_timeout:
            report.add(
                "warning", "little_time",
                f"a solution needs {report.cpu_seconds:.2f} s of {request.run_timeout:g} s",
            )  # fmt: skip
        limit = request.memory_limit_mb or math.inf
        if report.memory_mb > _CLOSE * limit:
            report.add(
                "warning", "little_memory", f"a solution needs {report.memory_mb:g} MB of {limit:g}"
            )


def _look_at_failure(report: RowReport, reference: Reference, result: JudgeResult) -> None:
    """Find why a solution that ought to pass does not."""
    said = " ".join(kept.stderr_text for kept in result.kept.values())
    known = {(each.kind, each.text) for each in report.findings}
    found: list[tuple[Level, str, str]] = []
    if match := _MISSING.search(said):
        module = match[1] or match[2]
        found.append(("error", "missing_module", f"a solution imports {module}: install it in the "
                      "Python that PENSTOCK_SANDBOX_PYTHON names"))  # fmt: skip
    if match := _UNNAMED.search(said):
        found.append(("warning", "missing_import", f"a solution uses {match[1]} without an import"))
    if "RecursionError" in said:
        found.append(("warning", "recursion", "a solution recurses deeper than Python's limit"))
    if -11 in result.exits.values():
        found.append(("warning", "stack", "a solution ends by SIGSEGV: its stack, or its memory"))
    if "memory_limit" in result.reasons.values():
        found.append(("warning", "memory", "a solution needs more memory than it may have"))
    if "C" in result.verdicts:
        found.append(("warning", "does_not_compile", f"a {reference.language} solution does not "
                      "compile"))  # fmt: skip
    if result.fault_of_mask == "system":
        _not_judged(report, "a solution", result)
    for level, kind, text in found:
        if (kind, text) not in known:
            report.add(level, kind, text)


def _not_judged(report: RowReport, what: str, result: JudgeResult) -> None:
    """Say that the system failed, which says nothing of the row."""
    why = result.message or result.masked_because
    finding = Finding("error", "not_judged", f"{what} could not be judged: {why:.200}")
    if finding not in report.findings:
        report.findings.append(finding)


def _best_of(results: Sequence[JudgeResult]) -> str:
    best = max(results, key=lambda one: one.passed)
    at = next(index for index, letter in enumerate(best.verdicts) if letter != "P")
    why = best.comments.get(at) or best.reasons.get(at, "")
    kept = best.kept.get(at)
    shown = f", printed {kept.stdout[:60]!r}" if kept and best.verdicts[at] == "W" else ""
    return (
        f"no solution passes; the best one passes {best.passed} of {len(best.verdicts)}, and not "
        f"case {at}: {VERDICTS[best.verdicts[at]]} {why:.100}".rstrip()
        + shown
    )

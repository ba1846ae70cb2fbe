"""A program's end says this of its reward: whose fault it is, and on what that stands."""

from collections.abc import Iterator
from dataclasses import dataclass

from jail.judge.fault import Fault as Whose
from jail.judge.models import VERDICTS, JudgeCase, JudgeRequest, JudgeResult
from jail.models import CodeRequest, CodeResult
from penstock.why.model import Fact, Look, cut, many, seconds, shown
from worker.reward.scoring import score_of

Request = CodeRequest | JudgeRequest
Result = CodeResult | JudgeResult
_FAULTS: dict[Whose, str] = {
    "program": "the program's fault",
    "data": "the data's fault: no program can be judged on that case",
    "system": "no fault of the program: the sandbox or Penstock failed",
    "": "",
}
_SHOWN_CASES = 5
_ENDED: dict[str, str] = {
    "P": "passed", "W": "is wrong", "E": "ended with an error", "C": "does not compile",
    "T": "ran out of time", "L": "hit a limit", "M": "has no verdict", "S": "did not run",
}  # fmt: skip


@dataclass(frozen=True)
class Reading:
    """A verdict in one sentence, whether it is bad news, and its facts."""

    sentence: str
    look: Look
    facts: tuple[Fact, ...]


def of_result(request: Request | None, result: Result) -> Reading:
    """The verdict on a result; on its request, if that is known, its limits and its cases."""
    if isinstance(result, JudgeResult):
        return _judged(request if isinstance(request, JudgeRequest) else None, result)
    return _ran(request if isinstance(request, CodeRequest) else None, result)


def _judged(request: JudgeRequest | None, result: JudgeResult) -> Reading:
    whole = request is not None and request.stop == "first"
    value = score_of(result, all_or_nothing=whole).value
    at = _deciding(result, masked=value is None)
    look: Look = "warn" if value is None else "well" if at is None else "bad"
    passed = f"{result.passed} of {many(len(result.verdicts), 'case')} passed"
    if value is None:
        sentence = f"it has no reward, it is masked: {_case_said(result, at)}"
    elif at is None:
        sentence = f"its reward is {value:g}: {passed}"
    else:
        sentence = f"its reward is {value:g}: {_case_said(result, at)}"
    all_of = ", all or nothing" if whole else ""
    reward = "none: masked" if value is None else f"{value:g}: {passed}{all_of}"
    facts = [Fact("reward", reward, look), Fact("verdict", _counted(result))]
    if at is not None:
        facts += _of_case(request, result, at)
    facts += _others(result, at)
    if result.message and result.message not in result.evidence.values():
        facts.append(Fact("message", cut(result.message)))
    compiled = result.compile_result
    if compiled is not None and (compiled.return_code or compiled.status != "Finished"):
        facts.append(Fact("compiler", cut(compiled.stderr or compiled.stdout or compiled.status)))
    if result.shared:
        shared = f"the assertions of {many(result.shared, 'case')} ran in the program's own process"
        facts.append(Fact("trust", f"{shared}, which can fool them"))
    return Reading(sentence, look, tuple(facts))


def _deciding(result: JudgeResult, *, masked: bool) -> int | None:
    """The case that a reward below 1 stands on: the first masked one, else the first that failed;
    without either, the first that did not run."""
    letters = ("M" if "M" in result.verdicts else "S") if masked else "WECTL"
    return next((at for at, one in enumerate(result.verdicts) if one in letters), None)


def _case_said(result: JudgeResult, at: int | None) -> str:
    return "no case has a verdict" if at is None else f"case {at} {_end_of(result, at)}"


def _end_of(result: JudgeResult, at: int) -> str:
    letter = result.verdicts[at]
    reason = result.reasons.get(at) or (result.error_reason if letter in "MS" else "")
    why = f" ({reason})" if reason else ""
    whose = _FAULTS[result.fault(at)]
    return f"{_ENDED[letter]}{why}" + (f", {whose}" if whose else "")


def _counted(result: JudgeResult) -> str:
    counts = [
        f"{result.verdicts.count(letter)} {name.replace('_', ' ')}"
        for letter, name in VERDICTS.items()
        if letter in result.verdicts
    ]
    said = f"{result.verdicts[:64]}{'…' * (len(result.verdicts) > 64)}"
    return f"{said}: {', '.join(counts)}; cases count from 0"


def _of_case(request: JudgeRequest | None, result: JudgeResult, at: int) -> Iterator[Fact]:
    """The case that decides, in full."""
    look: Look = "warn" if result.verdicts[at] in "MS" else "bad"
    by_value = request is not None and bool(request.function) and request.judges_values
    yield Fact(f"case {at}", _end_of(result, at), look)
    if said := result.evidence.get(at):
        yield Fact("evidence", cut(said))
    if (comment := result.comments.get(at)) and comment != result.evidence.get(at):
        yield Fact("returned" if by_value else "comment", cut(comment))
    if code := result.exits.get(at):
        yield Fact("exit", f"code {code}" if code > 0 else f"signal {-code}")
    if request is not None and request.cases is not None:
        yield from of_case(request.cases[at])
    if kept := result.kept.get(at):
        yield Fact("printed", shown(kept.stdout_text))
        if kept.stderr:
            yield Fact("stderr", cut(_last_line(kept.stderr_text)))
    if used := _used(request, result, at):
        yield Fact("used", used)
    if request is not None and result.verdicts[at] == "W" and not request.checker:
        yield Fact("compared", "by value" if by_value else f"by the rule {request.compare.rule}")


def of_case(case: JudgeCase) -> Iterator[Fact]:
    """The facts of a case: what goes in, and what should come out."""
    if case.input:
        yield Fact("input", shown(case.input))
    if case.expected is not None:
        answers = [case.expected] if isinstance(case.expected, str) else case.expected
        more = f", or {len(answers) - 1} others" if len(answers) > 1 else ""
        yield Fact("expected", f"{shown(answers[0])}{more}")
    if case.check:
        yield Fact("check", shown(case.check))


def _used(request: JudgeRequest | None, result: JudgeResult, at: int) -> str:
    limits = request.limits(at) if request is not None else None
    cpu, wall, memory = (
        numbers[at] if at < len(numbers) else 0
        for numbers in (result.cpu_ms, result.wall_ms, result.memory_kb)
    )
    parts = []
    if cpu or wall:
        of = f" of {limits.run_timeout:g} s" if limits and limits.run_timeout else ""
        parts += [
            f"{seconds(cpu / 1000)}{of} of a processor",
            f"{seconds(wall / 1000)} by the clock",
        ]
    if memory:
        of = f" of {limits.memory_limit_mb:,}" if limits and limits.memory_limit_mb else ""
        parts.append(f"{memory / 1024:.0f}{of} MB")
    return ", ".join(parts)


def _others(result: JudgeResult, at: int | None) -> Iterator[Fact]:
    """The first case of each other way not to pass."""
    seen = {_way(result, at)} if at is not None else set()
    for other, letter in enumerate(result.verdicts):
        if letter == "P" or _way(result, other) in seen or len(seen) > _SHOWN_CASES:
            continue
        seen.add(_way(result, other))
        if letter == "S" and not result.reasons.get(other):
            yield Fact(f"case {other}", "skipped: it was not needed any more")
            continue
        evidence = f": {cut(result.evidence[other])}" if other in result.evidence else ""
        yield Fact(f"case {other}", _end_of(result, other) + evidence)


def _way(result: JudgeResult, at: int) -> tuple[str, str]:
    return result.verdicts[at], result.reasons.get(at, "")


def _ran(request: CodeRequest | None, result: CodeResult) -> Reading:
    """A program that was run, and not judged: its caller compares what it printed."""
    code = last.return_code if (last := result.run_result or result.compile_result) else None
    reason = result.error_reason.replace("_", " ")
    look: Look = "bad"
    match result.error_kind:
        case "none":
            sentence, look = "its program ran to its end and returned 0", "well"
        case "infrastructure":
            whose = _FAULTS["system"]
            sentence, look = f"it has no outcome, it is masked: {reason}, {whose}", "warn"
        case _:
            ended = f"exit code {code}" if reason == "exit" else reason
            sentence = f"its program ended with {ended}, the program's fault"
    facts = [
        Fact("reward", "none here: it was run, not judged, and its caller compares the output"),
        Fact("verdict", result.error_kind + (f": {reason}" if reason else ""), look),
    ]
    if result.message:
        facts.append(Fact("message", cut(result.message)))
    if request is not None and request.stdin:
        facts.append(Fact("input", shown(request.stdin)))
    if result.stdout:
        facts.append(Fact("printed", shown(result.stdout)))
    if result.stderr:
        facts.append(Fact("stderr", cut(_last_line(result.stderr))))
    if result.run_result is not None and result.run_result.execution_time is not None:
        limit = f" of {request.run_timeout:g} s" if request else ""
        facts.append(Fact("used", f"{seconds(result.run_result.execution_time)}{limit}"))
    return Reading(sentence, look, tuple(facts))


def _last_line(text: str) -> str:
    return next(reversed(text.strip().splitlines()), "")

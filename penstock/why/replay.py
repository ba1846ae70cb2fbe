"""A job's program once more, in the embedded sandbox of this machine, and what differs.

The request is the one that its job had: the same program, cases, rule and limits.
"""

from dataclasses import dataclass

from ground import PenstockError
from jail.judge.models import VERDICTS, JudgeResult
from jail.models import CodeRequest, CodeResult
from penstock.fleet import FleetReader
from penstock.fleet.one_job import stored_job
from penstock.why.job import KEPT, request_of, result_of
from penstock.why.model import Fact, cut, shown
from penstock.why.verdict import Request, Result, of_result
from worker.place import InProcess
from worker.queue.suite_store import MISSING

_SHOWN_CASES = 10


@dataclass(frozen=True)
class Replay:
    """The finding of judging a job's program again.

    same  whether it ended as it did then; None: there was nothing to compare, or it could not run
    """

    job: str
    sentence: str
    same: bool | None
    facts: tuple[Fact, ...] = ()


async def replay(reader: FleetReader, job: str) -> Replay:
    """Judge the job's program here. It changes nothing of the job."""
    stored = await stored_job(reader.client, job)
    if stored is None:
        return _not(job, f"Redis has forgotten it; {KEPT}")
    request, unreadable = request_of(stored)
    if request is None:
        return _not(job, unreadable)
    if isinstance(request, CodeRequest) and request.instance_id:
        return _not(job, f"it ran in session {request.instance_id!r}, whose state is not kept")
    here = await InProcess().judge_again(_for_a_look(request), reader.target)
    said = of_result(request, here)
    try:
        then = result_of(stored)
    except PenstockError as unreadable_result:
        return Replay(job, f"here {said.sentence}; {unreadable_result}", None, said.facts)
    found = _differences(then, here) if then is not None else []
    if (then is None or found) and (why := _could_not(here)):
        return _not(job, why)
    if then is None:
        ended = "it has no result to compare with"
        return Replay(job, f"here {said.sentence}; {ended}", None, said.facts)
    if not found:
        return Replay(job, f"the same here: {said.sentence}", True, said.facts)
    return Replay(job, f"it differs: here {said.sentence}", False, (*found, *said.facts))


def _not(job: str, why: str) -> Replay:
    return Replay(job, f"it cannot be judged again: {why}", None)


def _for_a_look(request: Request) -> Request:
    """Ask for the output of the first case that fails: the verdicts do not depend on it."""
    if isinstance(request, CodeRequest):
        return request
    return request.model_copy(update={"keep": "first_failure", "progress": False})


def _could_not(here: Result) -> str:
    """The reason why it could not be judged on this machine; empty if it was."""
    if isinstance(here, JudgeResult) and here.masked_because == MISSING:
        return (
            "its cases are gone. Cases above 16 kB are kept in Redis apart from the job, for "
            "PENSTOCK_RESULT_TTL seconds after their last use, and for an hour at least"
        )
    if isinstance(here, JudgeResult):
        reason = here.masked_because if here.fault_of_mask == "system" else ""
    else:
        reason = here.error_reason if here.error_kind == "infrastructure" else ""
    return f"this machine's sandbox failed ({reason}): {here.message}" if reason else ""


def _differences(then: Result, here: Result) -> list[Fact]:
    if isinstance(then, JudgeResult) and isinstance(here, JudgeResult):
        return [*_of_cases(then, here)]
    if isinstance(then, CodeResult) and isinstance(here, CodeResult):
        return _of_runs(then, here)
    return [Fact("kind", "then it was a result of another kind", "warn")]


def _of_cases(then: JudgeResult, here: JudgeResult) -> list[Fact]:
    found = []
    if len(then.verdicts) != len(here.verdicts):
        return [Fact("cases", f"{len(then.verdicts)} then, {len(here.verdicts)} here", "warn")]
    for at, (before, now) in enumerate(zip(then.verdicts, here.verdicts, strict=True)):
        was, is_now = (_named(one, at) for one in (then, here))
        if before != now or then.reasons.get(at) != here.reasons.get(at):
            found.append(Fact(f"case {at}", f"then {was}, here {is_now}", "warn"))
        elif then.comments.get(at) != here.comments.get(at) and before == "W":
            said = cut(f"then {then.comments.get(at, '')}, here {here.comments.get(at, '')}")
            found.append(Fact(f"case {at}", said, "warn"))
    if (more := len(found) - _SHOWN_CASES) > 0:
        found[_SHOWN_CASES:] = [Fact("cases", f"{more} more differ", "warn")]
    return found


def _named(result: JudgeResult, at: int) -> str:
    letter = result.verdicts[at]
    reason = result.reasons.get(at) or (result.error_reason if letter == "M" else "")
    return VERDICTS[letter].replace("_", " ") + (f" ({reason})" if reason else "")


def _of_runs(then: CodeResult, here: CodeResult) -> list[Fact]:
    pairs = {
        "ended": (_end_of(then), _end_of(here)),
        "printed": (shown(then.stdout), shown(here.stdout)),
        "stderr": (shown(then.stderr), shown(here.stderr)),
    }
    return [
        Fact(what, f"then {before}, here {now}", "warn")
        for what, (before, now) in pairs.items()
        if before != now
    ]


def _end_of(result: CodeResult) -> str:
    last = result.run_result or result.compile_result
    code = f" {last.return_code}" if last is not None and result.error_reason == "exit" else ""
    return f"{result.error_kind}{f': {result.error_reason}' if result.error_reason else ''}{code}"

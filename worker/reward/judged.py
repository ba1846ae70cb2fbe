"""All cases of a program in one go: a job on a queue, or a call of a sandbox that judges."""

from jail.errors import SandboxFailure
from jail.judge.asking import JudgeOptions, request_here
from jail.judge.formats import Cases, check_cases
from jail.judge.models import JudgeResult
from jail.protocol import Sandbox
from worker.errors import QueueError
from worker.queue.code_queue import CodeQueue


def takes(on: object, language: str) -> bool:
    """Whether it judges programs of this language. Others are tried case by case."""
    if isinstance(on, CodeQueue):
        return True
    return hasattr(on, "judge") and language in getattr(on, "judged_languages", ())


async def judge(
    code: str, cases: Cases, on: "CodeQueue | Sandbox", options: JudgeOptions
) -> JudgeResult:
    """The verdicts; all masked where a queue or a sandbox failed."""
    cases = check_cases(cases)
    try:
        if isinstance(on, CodeQueue):
            return await on.judge(code, cases, **options)
        request, suite = request_here(code, cases, options)
        judging = on
        assert hasattr(judging, "judge")  # noqa: S101 - it takes them
        result: JudgeResult = await judging.judge(request, suite)
        return result
    except SandboxFailure as failure:
        return JudgeResult.of_failure(failure, len(cases.cases))
    except QueueError as failure:
        return masked(failure, len(cases.cases))


def masked(failure: QueueError, count: int) -> JudgeResult:
    """There is no verdict, for no fault of the program."""
    said = f"{type(failure).__name__}: {failure}"
    return JudgeResult(verdicts="M" * count, error_reason=said, message=str(failure))

"""A sandbox that judges without running anything: its program prints what it reads."""

from collections import Counter

from jail.judge.compare import accepts
from jail.judge.models import JudgeRequest, JudgeResult
from jail.judge.suite import Case, Suite
from jail.models import CodeRequest, CodeResult, CommandResult
from worker.settings import WorkerSettings

compiled: Counter[str] = Counter()  # by code


class EchoJudge:
    """Counts what it compiles, in this process."""

    name = "echo"
    languages = judged_languages = frozenset({"python", "cpp"})
    kills_cancelled = True

    def __init__(self, _: WorkerSettings | None = None) -> None:
        pass

    async def run(self, request: CodeRequest) -> CodeResult:
        ran = CommandResult(status="Finished", return_code=0, stdout=request.stdin)
        return CodeResult(status="Success", run_result=ran)

    async def judge(self, request: JudgeRequest, suite: Suite) -> JudgeResult:
        compiled[request.code] += 1
        verdicts = ""
        for index in range(len(suite)):
            verdicts += self.verdict(request, await suite.case(index))
            if "W" in verdicts and request.stop == "first":
                break
        return JudgeResult(verdicts=verdicts.ljust(len(suite), "S"), isolation="echo")

    def verdict(self, request: JudgeRequest, case: Case) -> str:
        right = case.expected is None or accepts(request.compare, case.input, case.expected)
        return "P" if right else "W"

    async def close(self) -> None:
        pass

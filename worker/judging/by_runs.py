"""A judge over a sandbox that only runs programs: a run for each case, several at once.

The job's own permit carries one case after the other, and each further permit one case. A job asks
for one further permit at a time, behind all jobs that have none. It asks only while its own is at
work: nobody waits with an idle permit. What is known stays known if the sandbox fails.
"""

import asyncio
import heapq
import math
import secrets
import time
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from typing import Any

from ground import tracing
from ground.tasks import ended
from jail.errors import RequestRefused, SandboxFailure
from jail.judge.apart import assertions as apart
from jail.judge.compare import accepted, may_accept
from jail.judge.findings import CaseVerdict, Found
from jail.judge.models import Compare, JudgeRequest, JudgeResult, Letter
from jail.judge.printed import Compared, as_known
from jail.judge.program import answer_in, marked, script_of, text_of
from jail.judge.suite import Case, Suite
from jail.judge.values import Calls, calls_asked, is_whole, verdict_of
from jail.models import SHOWN, CodeRequest, CodeResult
from jail.protocol import Sandbox
from limiter import GateError, Report
from worker.run.execution import SPARE, RetryPolicy, execute, outlives, too_late
from worker.run.turn import JobAtHand, Turn

_AT_ONCE = 32  # cases of one program, their inputs in memory: as many as verl's client has threads
_LOSSES = 3  # cases whose attempts ran out; after so many the sandbox is given up
_ONCE = RetryPolicy(attempts=1)
_LEAST = 0.001  # seconds for a case that begins as the time for all ends


class ByRuns:
    """This judge runs the cases of one program. The first one runs alone: what does not compile
    runs once."""

    def __init__(
        self,
        request: JudgeRequest,
        suite: Suite,
        at_hand: JobAtHand,
        sandbox: Sandbox,
        policy: RetryPolicy,
    ) -> None:
        self._request, self._suite = request, suite
        self._at_hand, self._sandbox, self._policy = at_hand, sandbox, policy
        self._found = Found(request, len(suite), None)
        self._todo = [*range(len(suite))]  # a heap
        self._running: dict[asyncio.Task[None], int] = {}  # with the case that each is at
        self._changed = asyncio.Event()
        self._outlives = outlives(sandbox, longest_case(request))
        self._own = _PermitInUse(at_hand.turn, self._outlives)
        self._under_own: asyncio.Task[None] | None = None
        self._in_line: asyncio.Task[None] | None = None
        self._alone = True  # at first, and after a failure beside the own permit
        self._has_compiled = False
        self._compiled_again: set[int] = set()  # cases that did not, and ran once more
        self._losses = self._retries = 0
        self._spent = dict.fromkeys(("permit_seconds", "backoff_seconds"), 0.0)
        self._said: dict[str, Any] = {}
        self._ends = _now() + at_hand.seconds
        self._seconds_held = 0.0  # of all permits together, while a program ran under them

    async def result(self) -> JudgeResult:
        """The verdicts; what is not known when the job's time is over is masked."""
        began = time.monotonic()
        time_for_all = asyncio.timeout_at(self._ends - SPARE)
        try:
            async with time_for_all:
                await self._run()
        except TimeoutError:
            if not time_for_all.expired():
                raise
            if self._found.cut_off(self._seconds_held, "job_time") == "S":
                self._give_up("job_time", str(too_late()))
        finally:
            if (rest := self._at_hand.turn.end(0)) is not None:
                await asyncio.shield(rest)
        running = time.monotonic() - began - sum(self._spent.values())
        attempts = int(self._own.since < math.inf) + self._retries
        spent = {"attempts": attempts, "running_seconds": running} | self._spent
        self._found.cut_off(self._seconds_held)  # what is not known, and was not given up
        return self._found.result().model_copy(update=self._said | spent)

    async def _run(self) -> None:
        if self._request.checker or self._request.interactor:
            self._refuse("checker" if self._request.checker else "interactor")
            return
        try:
            while True:
                self._start_what_may_run()
                if not self._running:
                    return
                self._changed.clear()
                await self._changed.wait()
                for task in [task for task in self._running if task.done()]:
                    del self._running[task]
                    if not task.cancelled():
                        task.result()
        finally:
            await ended(self._running)

    def _refuse(self, second: str) -> None:
        """Give up a request with a checker or an interactor: that is a second program, and plain
        runs have only one."""
        self._give_up(
            "no_checker",
            f"the sandbox {self._sandbox.name!r} runs programs without a {second}: judge in the "
            "embedded one (PENSTOCK_SANDBOX=local)",
        )

    def _start_what_may_run(self) -> None:
        if self._under_own not in self._running and (index := self._next()) is not None:
            self._under_own = self._start(self._case_under_own(index), index)
        waiting = self._in_line if self._in_line in self._running else None
        wanted = not self._alone and self._is_left() and len(self._running) < _AT_ONCE
        if wanted and waiting is None and (turn := self._at_hand.turn.another()) is not None:
            self._in_line = self._start(self._case_beside(turn), -1)
        elif waiting is not None and not wanted:
            waiting.cancel()

    def _start(self, case: Coroutine[Any, Any, None], index: int) -> asyncio.Task[None]:
        task = asyncio.create_task(case)
        self._running[task] = index
        task.add_done_callback(lambda _: self._changed.set())
        return task

    def _is_left(self) -> bool:
        """Whether a case is left to begin."""
        if self._own.since + self._request.total <= _now():
            self._todo.clear()  # they are cut off
        return bool(self._todo) and self._todo[0] < self._found.end

    def _next(self) -> int | None:
        return heapq.heappop(self._todo) if self._is_left() else None

    async def _case_under_own(self, index: int) -> None:
        """Run a case with all attempts that the policy has. The other cases wait if the sandbox
        fails."""
        result = await self._outcome(index, self._own, self._policy)
        if result is None:
            return
        self._retries += max(result.attempts, 1) - 1
        for name in self._spent:
            self._spent[name] += getattr(result, name)
        self._alone = result.error_kind == "infrastructure"
        if not self._alone:
            return
        self._enter(index, CaseVerdict("M", result.error_reason, result.message), None)
        self._said["message"] = result.message
        self._losses += 1
        if self._losses >= _LOSSES or self._found.knows_none:
            self._give_up(result.error_reason, result.message)

    async def _case_beside(self, turn: Turn) -> None:
        """Run one case, if there is one left when the permit has come; it is tried once."""
        held = _PermitInUse(turn, self._outlives)
        try:
            await held.begin()
            self._in_line = None
            self._changed.set()
            if (index := self._next()) is None:
                return
            task = asyncio.current_task()
            assert task is not None  # noqa: S101 - `_start` made it
            self._running[task] = index
            result = await self._outcome(index, held, _ONCE)
            if result is not None and result.error_kind == "infrastructure":
                self._run_again(index)
        except GateError:
            self._alone = True
        finally:
            if (rest := turn.end(0)) is not None:
                await asyncio.shield(rest)

    def _run_again(self, index: int) -> None:
        heapq.heappush(self._todo, index)
        self._alone = True  # until one under the own permit has succeeded
        self._retries += 1

    async def _outcome(self, index: int, turn: Turn, policy: RetryPolicy) -> CodeResult | None:
        """The outcome of a run, with its verdict entered unless the sandbox failed; None: there was
        no run, or there will be another one."""
        try:
            case = await self._suite.case(index)
            calls = await calls_asked(self._request, case)
            request, mark = self._program(index, case, calls)
        except SandboxFailure as failure:
            self._enter(index, CaseVerdict("M", failure.reason, str(failure)), None)
            return None
        except RequestRefused as refusal:  # the program's own fault: too long, or no text
            self._said["message"] = str(refusal)
            self._enter(index, CaseVerdict("C", "refused"), None)
            return None
        at_hand = replace(self._at_hand, turn=turn, seconds=self._ends - _now())
        began = _now()
        try:
            with tracing.span(f"case {index}"):
                result = await execute(request, at_hand, self._sandbox, policy)
        except asyncio.CancelledError:  # the sandbox ends what is late: this is no time of its own
            if index < self._found.end:  # it is needed
                self._seconds_held += _now() - began
            raise
        self._seconds_held += result.running_seconds
        if self._has_compiled and _says_uncompiled(result) and index not in self._compiled_again:
            # The same text has compiled with another case: a busy sandbox was out of time.
            self._compiled_again.add(index)
            self._run_again(index)
            return None
        if result.error_reason == "run_timeout" and request.run_timeout < self._limit(index):
            # The time for all is over, not the case's own: `cut_off` says whose fault that is.
            self._found.own_seconds += ran.duration if (ran := _ran(result)) else 0.0
            self._todo.clear()
            return None
        if result.error_kind != "infrastructure":
            await self._judge(index, case, calls, mark, result)
        return result

    def _limit(self, index: int) -> float:
        return self._request.limits(index).run_timeout or self._request.run_timeout

    def _program(self, index: int, case: Case, calls: Calls | None) -> tuple[CodeRequest, str]:
        """The request for a case, and the mark that its program prints if it comes to its end."""
        asked = self._request
        left = min(self._own.since, _now()) + asked.total - _now()
        if calls and calls.behind:
            code, mark = f"{asked.code}\n\n{calls.behind}", ""
        elif calls:
            mark = secrets.token_hex(16)
            code = script_of(text_of(asked, Case() if is_whole(case) else case), mark)
        else:
            code, mark = marked(asked.language, text_of(asked, case), case.check)
        request = Compared(
            code=code,
            language=asked.language,
            stdin=(calls.text if calls else case.input).decode(),
            files=asked.files,
            compile_timeout=asked.compile_timeout,
            run_timeout=min(self._limit(index), max(left, _LEAST)),
            memory_limit_mb=asked.limits(index).memory_limit_mb,
            labels=asked.labels,
            correlation_id=asked.correlation_id,
        )
        return request, mark

    async def _judge(
        self, index: int, case: Case, calls: Calls | None, mark: str, result: CodeResult
    ) -> None:
        compiled = result.compile_result
        if compiled is not None and (self._found.compiled is None or compiled.return_code):
            self._found.compiled = compiled.bounded(SHOWN)
        compare, expected = self._request.compare, case.expected or ()
        answer = None
        if calls and calls.behind:
            answer, _ = apart.answer_in(self._request.language, result.stdout.encode())
        elif calls:
            answer = answer_in(result.stdout, mark)
        result = as_known(
            result, mark, expected,
            lambda begun: calls is not None or may_accept(compare, begun.encode(), expected),
        )  # fmt: skip
        if calls and result.error_kind == "none":
            said = await verdict_of(compare, calls, answer)
        else:
            said = CaseVerdict(await _letter(compare, case, result), result.error_reason)
        if case.check and not (calls and is_whole(case)):
            self._found.shared.add(index)
        if said.letter == "M":
            self._said["message"] = result.message
        self._enter(index, said, None if said.letter == "M" else _ran(result))
        self._said["isolation"] = result.isolation
        if self._request.compiles_each_case:
            return
        if said.letter != "C":
            self._has_compiled = True
        elif not self._has_compiled:
            self._found.rest = said  # nor does it with any other case
            self._todo.clear()

    def _enter(self, index: int, said: CaseVerdict, ran: "_Ran | None") -> None:
        self._found.enter(index, said, ran)
        for task, at in self._running.items():
            if at >= self._found.end:
                task.cancel()

    def _give_up(self, reason: str, message: str) -> None:
        self._found.rest = CaseVerdict("M", reason)
        self._said |= {"error_reason": reason, "message": message}
        self._todo.clear()
        for task, at in self._running.items():
            if at >= 0 and task is not asyncio.current_task():
                task.cancel()


def longest_case(request: JudgeRequest) -> CodeRequest:
    """A run that may take as long as any of its cases."""
    return CodeRequest(
        code="", language=request.language, compile_timeout=request.compile_timeout,
        run_timeout=max(own.run_timeout or 0.0 for own in request.all_limits),
    )  # fmt: skip


class _PermitInUse:
    """A job's turn that stays begun from case to case, or a further one that has begun."""

    def __init__(self, turn: Turn, outlives: float) -> None:
        self._turn, self._outlives = turn, outlives
        self._begun = False
        self.since = math.inf  # when it first began

    async def begin(self, outlives: float = 0.0) -> None:
        """Begin the job's turn. Any case may be next, the longest too, so that one counts."""
        if not self._begun:
            await self._turn.begin(self._outlives)
            self._begun = True
            self.since = min(self.since, _now())

    def report(self, report: Report) -> None:
        self._turn.report(report)

    async def pause(self, still_running: float) -> None:
        self._begun = False
        await self._turn.pause(still_running)

    def end(self, still_running: float) -> Coroutine[Any, Any, None] | None:
        """The end of a case. The next one gets no permit under which this one may still be
        running."""
        return self.pause(still_running) if still_running > 0 else None

    def another(self) -> None: ...


@dataclass(frozen=True)
class _Ran:
    """A run as `Found` reads it."""

    return_code: int | None
    stdout: bytes
    stderr: bytes
    stdout_cut: bool
    cpu: float
    idle: float
    duration: float
    memory_peak: int


def _ran(result: CodeResult) -> _Ran | None:
    ran = result.run_result
    if ran is None:
        return None
    stdout, stderr = (text.encode(errors="replace") for text in (result.stdout, result.stderr))
    return _Ran(
        ran.return_code, stdout, stderr, ran.stdout_truncated,
        getattr(ran, "cpu_time", None) or 0.0,
        ran.execution_time or 0.0,  # its own clock is all that such a sandbox says
        ran.execution_time or 0.0, getattr(ran, "memory_peak", None) or 0,
    )  # fmt: skip


def _says_uncompiled(result: CodeResult) -> bool:
    return result.error_reason in ("compile_error", "compile_timeout")


async def _letter(compare: Compare, case: Case, result: CodeResult) -> Letter:
    reason = result.error_reason
    match result.error_kind:
        case "none":
            printed = result.stdout.encode(errors="replace")
            if case.expected is None or await accepted(compare, printed, case.expected):
                return "P"
            return "W"
        case "infrastructure":
            return "M"
        case "limit" if reason != "compile_timeout":
            return "T" if reason == "run_timeout" else "L"
    return "C" if _says_uncompiled(result) else "E"


def _now() -> float:
    return asyncio.get_running_loop().time()

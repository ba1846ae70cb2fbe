"""A program is judged: built once, run on each case, its output compared out here.

Nothing but the exit status and what was printed decides. What is expected enters no jail, except
that of a checker, which no program can reach. Results are as if the cases had run one by one.
"""

import asyncio
import base64
import contextlib
import os
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace

from worker.errors import SandboxFailure, SandboxUnfit
from worker.judge.compare import accepts
from worker.judge.models import Checker, JudgeRequest, JudgeResult, Kept
from worker.judge.program import text_of
from worker.judge.suite import Case, Suite
from worker.models import CommandResult
from worker.sandbox.local.answer import command_result, failure_of
from worker.sandbox.local.errors import LimitRefused
from worker.sandbox.local.jails import Jails
from worker.sandbox.local.judging.builds import Build, Builds, NotBuilt
from worker.sandbox.local.judging.checking import CHECKER_WALL, Checking, Said
from worker.sandbox.local.judging.lane import Errand, Lane, LaneLost, Ran
from worker.sandbox.local.languages import LanguageAbsent
from worker.sandbox.local.limits import MB, Limits
from worker.sandbox.local.outcome import Step

NOT_JUDGED = frozenset({"pytest"})  # which looks for its tests by the names of files
_SHOWN = 64 << 10  # bytes of what a compiler says
_FEW = 4  # cases that one lane has done before another would be ready
_LARGE = 1 << 20  # bytes; longer ones are compared beside the event loop
_GRACE = 60.0  # of a jail's life beyond that of its program
_NOT_RUN = Step("infrastructure", None, b"", b"", 0.0, 0.0, 0, 0)


class Judging:
    """Judges programs in these jails; one at a time has several lanes, if cores are idle."""

    def __init__(self, jails: Jails, defaults: Limits, cache_bytes: int) -> None:
        self.builds = Builds(jails, cache_bytes)
        self._jails = jails
        self._defaults = defaults
        self.lanes = 0  # of all programs
        self._cores = os.cpu_count() or 1

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Around the jails' own life: they show programs what the builds need."""
        self._jails.show_headers(self.builds.open())
        try:
            yield
        finally:
            await self.builds.close()

    async def judge(self, request: JudgeRequest, suite: Suite) -> JudgeResult:
        """Raises `SandboxFailure` where the sandbox failed as a whole."""
        began = time.monotonic()
        try:
            async with self._jails.slots:
                result = await self._judge(request, suite)
        except (LimitRefused, LanguageAbsent) as refusal:
            raise SandboxUnfit(f"the local sandbox: {refusal}", reason="refused") from None
        except (LaneLost, NotBuilt) as lost:
            raise failure_of(lost.outcome) from None
        seconds = time.monotonic() - began
        return result.model_copy(
            update={"isolation": self._jails.level, "running_seconds": seconds}
        )

    async def _judge(self, request: JudgeRequest, suite: Suite) -> JudgeResult:
        if request.interactor and self._jails.level != "ns":
            raise SandboxUnfit(
                f"the local sandbox: an interactor needs the level 'ns', and this is "
                f"{self._jails.level!r}",
                reason="no_interactor",
            )
        limits = self._limits(request)
        given = {name: base64.b64decode(text) for name, text in request.files.items()}
        text = text_of(request, Case()) if request.mode == "function" else request.code
        program = await self._build(request.language, text, given, limits)
        if program.compiled and not program.ok:
            return _not_compiled(program.compiled, len(suite))
        checker = request.checker or request.interactor
        build = await self._build(checker.language, checker.code, {}, limits) if checker else None
        if build and build.compiled and not build.ok:
            said = build.compiled.stderr[:_SHOWN].decode(errors="replace")
            return _masked("checker_compile", f"the checker does not compile: {said}", len(suite))
        return await Trial(self, request, suite, Built(program, build), limits, given).result()

    async def _build(
        self, language: str, code: str, given: Mapping[str, bytes], limits: Limits
    ) -> Build:
        room = replace(limits, memory=max(limits.memory, self._defaults.memory))
        return await self.builds.of(language, code, given, room)

    def _limits(self, request: JudgeRequest) -> Limits:
        """Those of the whole jail; of a case they may be less."""
        memory = request.memory_limit_mb
        each = request.all_limits
        return replace(
            self._defaults,
            cpu=max(own.run_timeout or 0.0 for own in each),
            wall=max(own.wall_timeout or 0.0 for own in each),
            compile_wall=request.compile_timeout,
            memory=self._defaults.memory if memory is None else memory * MB,
        ).within(self._jails.caps)

    def lane(self, build: Build, limits: Limits, given: Mapping[str, bytes], life: float) -> Lane:
        return Lane(self._jails, build, limits, given, life=life)

    def checking(self, checker: Checker, build: Build | None, life: float) -> Checking:
        assert build is not None  # noqa: S101 - built before the first case
        return Checking(self._jails, checker, build, self._defaults, life)

    def has_a_core(self) -> bool:
        return self.lanes < self._cores


@dataclass(frozen=True)
class Built:
    """What a trial runs."""

    program: Build
    checker: Build | None


@dataclass(frozen=True)
class Verdict:
    """Of one case; `step` is how its program ended."""

    said: Said
    step: Step


class Trial:
    """One program's cases, and what became of them so far."""

    def __init__(
        self,
        judging: Judging,
        request: JudgeRequest,
        suite: Suite,
        builds: Built,
        limits: Limits,
        given: Mapping[str, bytes],
    ) -> None:
        self._judging, self._request, self._suite = judging, request, suite
        self._builds, self._limits, self._given = builds, limits, given
        self._count = len(suite)
        self._next = 0
        self._end = self._count  # cases from here on are not needed, or not any more
        self._found: dict[int, Verdict] = {}
        self._lanes: dict[asyncio.Task[None], int] = {}  # with the case that each is at

    async def result(self) -> JudgeResult:
        cut = asyncio.timeout(self._request.total_seconds)
        try:
            async with cut:
                await self._run()
        except TimeoutError:
            if not cut.expired():
                raise
        return self._told()

    async def _run(self) -> None:
        self._judging.lanes += 1
        self._start_lane()
        try:
            while self._lanes:
                done, _ = await asyncio.wait(self._lanes, return_when=asyncio.FIRST_COMPLETED)
                for lane in done:
                    del self._lanes[lane]
                    if not lane.cancelled():
                        lane.result()
        finally:
            for lane in self._lanes:
                lane.cancel()
            if self._lanes:
                await asyncio.wait(self._lanes)

    def _start_lane(self) -> None:
        self._lanes[asyncio.ensure_future(self._lane())] = -1

    async def _lane(self) -> None:
        """Case after case; a lane that its caller has counted."""
        itself = asyncio.current_task()
        assert itself is not None  # noqa: S101 - made as a task
        lane = self._judging.lane(self._builds.program, self._limits, self._given, self._life)
        checker = self._request.checker or self._request.interactor
        checking: Checking | None = None
        if checker:
            checking = self._judging.checking(checker, self._builds.checker, self._life)
        try:
            while self._next < self._end:
                index = self._lanes[itself] = self._next
                self._next += 1
                self._enter(index, await self._case(index, lane, checking))
                if self._end - self._next > _FEW and self._judging.has_a_core():
                    self._judging.lanes += 1
                    self._start_lane()
        finally:
            self._judging.lanes -= 1
            await lane.close()
            if checking:
                await checking.close()

    @property
    def _life(self) -> float:
        checker = self._request.checker
        checking = checker.timeout * CHECKER_WALL * self._count if checker else 0.0
        return self._request.longest + checking + _GRACE

    async def _case(self, index: int, lane: Lane, checking: Checking | None) -> Verdict:
        try:
            case = await self._suite.case(index)
        except SandboxFailure as failure:
            return Verdict(Said("M", failure.reason, str(failure)), _NOT_RUN)
        errand = self._errand(index, case)
        if checking and self._request.interactor:
            ran, said = await checking.interact(case, lane, errand)
            return Verdict(_first(_of_end(ran), said), ran.step)
        ran = await lane.run(errand)
        if ended := _of_end(ran):
            return Verdict(ended, ran.step)
        if checking:
            return Verdict(await checking.check(case, ran.step.stdout), ran.step)
        return Verdict(await self._compared(case, ran.step.stdout), ran.step)

    def _errand(self, index: int, case: Case) -> Errand:
        own = self._request.limits(index)
        memory = own.memory_limit_mb
        return Errand(
            cpu=own.run_timeout or self._limits.cpu,
            wall=own.wall_timeout or self._limits.wall,
            patient=self._request.is_patient(index),
            memory=self._limits.memory if memory is None else memory * MB,
            stdin=case.input,
            text=text_of(self._request, case) if case.check else "",
            marks=bool(case.check),
        )

    async def _compared(self, case: Case, printed: bytes) -> Said:
        if case.expected is None:
            return Said("P")
        given = self._request.compare, printed, case.expected
        if len(printed) + sum(map(len, case.expected)) > _LARGE:
            same = await asyncio.to_thread(accepts, *given)
        else:
            same = accepts(*given)
        return Said("P") if same else Said("W")

    def _enter(self, index: int, verdict: Verdict) -> None:
        """What comes after the failure that ends it all is not needed, whether it runs or not."""
        self._found[index] = verdict
        failed = sorted(at for at, known in self._found.items() if known.said.letter not in "PM")
        most = self._request.failures_until_stop
        if most is not None and len(failed) >= most:
            self._end = min(self._end, failed[most - 1] + 1)
            for lane, at in self._lanes.items():
                if at >= self._end:
                    lane.cancel()

    def _told(self) -> JudgeResult:
        compiled = self._builds.program.compiled
        found = [self._found.get(index) if index < self._end else None for index in self._indices]
        known = {index: verdict for index, verdict in enumerate(found) if verdict}
        cut_off = {index: "total_seconds" for index in range(self._end) if index not in known}
        reasons = {index: one.said.reason for index, one in known.items() if one.said.reason}
        return JudgeResult(
            verdicts="".join(one.said.letter if one else "S" for one in found),
            compile_result=told_of(compiled) if compiled else None,
            cpu_ms=[round(one.step.cpu * 1000) if one else 0 for one in found],
            wall_ms=[round(one.step.duration * 1000) if one else 0 for one in found],
            memory_kb=[one.step.memory_peak >> 10 if one else 0 for one in found],
            exits={at: one.step.return_code for at, one in known.items() if one.step.return_code},
            reasons={**reasons, **cut_off},
            comments={at: one.said.comment for at, one in known.items() if one.said.comment},
            points={
                at: one.said.points for at, one in known.items() if one.said.points is not None
            },
            kept=self._kept(known),
        )

    @property
    def _indices(self) -> range:
        return range(self._count)

    def _kept(self, known: Mapping[int, Verdict]) -> dict[int, Kept]:
        kept: dict[int, Kept] = {}
        room = self._request.keep_total
        for index in self._to_keep(known):
            step = known[index].step
            one = Kept.of(step.stdout, step.stderr, self._request.keep_bytes)
            room -= one.size
            if room < 0:
                break
            kept[index] = one
        return kept

    def _to_keep(self, known: Mapping[int, Verdict]) -> list[int]:
        failed = [index for index, one in known.items() if one.said.letter != "P"]
        which = {"none": [], "first_failure": failed[:1], "failures": failed, "all": list(known)}
        return which[self._request.keep]


def _of_end(ran: Ran) -> Said | None:
    """What its end alone says; None if its output is to be looked at."""
    step = ran.step
    if step.status == "time_limit":
        return Said("T", "run_timeout")
    if step.status != "finished":
        return Said("L", step.status)
    if step.return_code:
        return Said("E", "signal" if step.return_code < 0 else "exit")
    return None if ran.marked else Said("E", "ended_early")


def _first(ended: Said | None, said: Said) -> Said:
    """With an interactor: a program that it has hung up on may end badly for that."""
    if ended and (ended.letter != "E" or said.letter == "P"):
        return ended
    return said


def told_of(step: Step) -> CommandResult:
    return CommandResult.model_validate(command_result(step)).bounded(_SHOWN)


def _not_compiled(step: Step, count: int) -> JudgeResult:
    late = step.status == "time_limit"
    reason = "compile_timeout" if late else "compile_error"
    return JudgeResult(
        verdicts="C" * count,
        compile_result=told_of(step),
        cpu_ms=[0] * count,
        wall_ms=[0] * count,
        memory_kb=[0] * count,
        reasons=dict.fromkeys(range(count), reason),
    )


def _masked(reason: str, message: str, count: int) -> JudgeResult:
    return JudgeResult(
        verdicts="M" * count,
        cpu_ms=[0] * count,
        wall_ms=[0] * count,
        memory_kb=[0] * count,
        error_reason=reason,
        message=message,
    )

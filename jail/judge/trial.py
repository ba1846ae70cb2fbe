"""A trial is one program on its cases: in lanes side by side, each verdict by the exit status and
the output.

What is expected enters no jail, except that of a checker, which no program can reach. A jail that
is lost costs no verdict that is known: its case is tried once more, and then masked.
"""

import asyncio
import contextlib
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from ground import tracing
from jail.answer import command_result_of
from jail.errors import SandboxFailure
from jail.jails import Jails
from jail.judge.apart.assertions import answer_in
from jail.judge.builds import Build, Builds, NotBuilt
from jail.judge.checkers import Checking
from jail.judge.compare import accepted, may_accept
from jail.judge.findings import CaseVerdict, Found
from jail.judge.lane import MOST_CHECK, Errand, Lane, LaneLost
from jail.judge.models import WALL_FACTOR, JudgeRequest, JudgeResult
from jail.judge.printed import CUT
from jail.judge.program import marked, text_of
from jail.judge.suite import Case, Suite
from jail.judge.values import Calls, calls_asked, is_whole, verdict_of
from jail.limits import MB, Limits
from jail.outcome import Step

_FEW = 4  # cases that one lane has done before another would be ready
_MANY = 12  # cases for which another is made at once, if no failure can end them
_GRACE = 60.0  # of a jail's life beyond that of its program
_TRIES = 2  # of one case
_LOSSES = 3  # cases; after so many the sandbox is given up

Tried = tuple[CaseVerdict, Step | None]  # None: it did not run


class Cores:
    """How many lanes there are, of all programs; a program has several if cores are idle."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.busy = 0

    def end_lane(self, _: object) -> None:
        self.busy -= 1


@dataclass(frozen=True)
class Workshop:
    """The workshop has what one program's cases are run with. Its checker, or interactor, is a
    build as well."""

    jails: Jails
    builds: Builds
    cores: Cores
    defaults: Limits
    limits: Limits  # of the whole jail; of a case they may be less
    language: str
    given: Mapping[str, bytes]

    async def build(self, code: str) -> Build:
        """Build the program that is judged. Raises `LanguageAbsent`, or `NotBuilt`."""
        return await self.build_other(self.language, code, self.given)

    async def build_other(self, language: str, code: str, given: Mapping[str, bytes]) -> Build:
        """Build a checker or an interactor, as `build` does a program."""
        room = replace(self.limits, memory=max(self.limits.memory, self.defaults.memory))
        with tracing.span("compile", {"penstock.language": language}):
            return await self.builds.of(language, code, given, room)


class Trial:
    """The trial keeps what became of a program's cases so far. Without a `program` each case has
    one of its own."""

    def __init__(
        self,
        workshop: Workshop,
        request: JudgeRequest,
        suite: Suite,
        program: Build | None,
        checker: Build | None,
    ) -> None:
        self._workshop, self._request, self._suite = workshop, request, suite
        self._program, self._checker = program, checker
        compiled = command_result_of(program.compiled) if program and program.compiled else None
        self._found = Found(request, len(suite), compiled)
        self._next = 0
        self._losses = 0
        self._lost: LaneLost | NotBuilt | None = None
        self._lane_seconds = 0.0  # of all lanes together
        self._lanes: dict[asyncio.Task[None], int] = {}  # with the case that each is at

    async def result(self) -> JudgeResult:
        """Run the cases within their total time. Raises `LaneLost` or `NotBuilt` if the sandbox
        failed, and no verdict is known."""
        cut = asyncio.timeout(self._request.total)
        try:
            async with cut:
                await self._run()
        except TimeoutError:
            if not cut.expired():
                raise
            self._found.cut_off(self._lane_seconds)
        if self._lost and self._found.knows_none:
            raise self._lost
        return self._found.result()

    async def _run(self) -> None:
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

    def _widen(self, enough: int) -> None:
        cores = self._workshop.cores
        if self._found.end - self._next > enough and cores.busy < cores.most:
            self._start_lane()

    def _start_lane(self) -> None:
        self._workshop.cores.busy += 1
        lane = asyncio.ensure_future(self._lane())
        lane.add_done_callback(self._workshop.cores.end_lane)
        self._lanes[lane] = -1

    async def _lane(self) -> None:
        """Case after case."""
        itself = asyncio.current_task()
        assert itself is not None  # noqa: S101 - made as a task
        began = time.monotonic()
        lane = self._lane_of(self._program) if self._program else None
        checking = self._checking()
        try:
            while self._next < self._found.end:
                index = self._lanes[itself] = self._next
                self._next += 1
                if self._request.failures_until_stop is None:
                    self._widen(_MANY)
                self._enter(index, *await self._tried(index, lane, checking))
                self._widen(_FEW)
        finally:
            self._lane_seconds += time.monotonic() - began
            for each in (lane, checking):
                if each:
                    await each.close()

    def _lane_of(self, build: Build) -> Lane:
        shop = self._workshop
        return Lane(shop.jails, build, shop.limits, shop.given, life=self._life)

    def _checking(self) -> Checking | None:
        checker = self._request.checker or self._request.interactor
        if not checker or not self._checker:
            return None
        shop = self._workshop
        return Checking(shop.jails, checker, self._checker, shop.defaults, self._life)

    @property
    def _life(self) -> float:
        return self._request.total + _GRACE

    def _enter(self, index: int, said: CaseVerdict, step: Step | None) -> None:
        self._found.enter(index, said, step)
        for lane, at in self._lanes.items():
            if at >= self._found.end:
                lane.cancel()

    async def _tried(self, index: int, lane: Lane | None, checking: Checking | None) -> Tried:
        """A verdict; masked if the sandbox fails time and again.

        Nothing says who sent a SIGKILL, but for a limit's. Somebody outside may have, once; a
        program that is killed in both tries has done it itself, and chooses no mask.
        """
        for again in range(_TRIES):
            try:
                with tracing.span(f"case {index}") as span:
                    said, step = await self._case(index, lane, checking)
                    span.set("penstock.verdict", said.letter)
                end = step and (step.status, step.return_code)
                if end != ("finished", -signal.SIGKILL):
                    return said, step
                if again:
                    return replace(said, evidence="killed by SIGKILL in both tries"), step
            except (LaneLost, NotBuilt) as lost:
                if lost.outcome.status == "refused":
                    raise
                self._lost = lost
                for each in (lane, checking):
                    if each:
                        await each.close()
        self._losses += 1
        said = CaseVerdict("M", "jail_lost", str(self._lost))
        if self._losses >= _LOSSES or self._found.knows_none:
            self._found.rest = said
            self._next = len(self._suite)  # no other is begun
        return said, None

    async def _case(self, index: int, lane: Lane | None, checking: Checking | None) -> Tried:
        try:
            case = await self._suite.case(index)
            calls = await calls_asked(self._request, case)
        except SandboxFailure as failure:
            return CaseVerdict("M", failure.reason, str(failure)), None
        errand = self._errand(index, case, calls)
        if case.check and not (calls and is_whole(case)):
            self._found.shared.add(index)
        if lane is None:
            said, step = await self._by_itself(case, errand, calls)
        elif checking and self._request.interactor:
            with self._counts_if_cut_off():
                step, said, hung_up = await checking.interact(case, lane, errand)
            said = await checking.on_nothing(case, _of_both(_of_end(step), said, hung_up))
        else:
            said, step = await self._in_lane(case, errand, calls, lane, checking)
        evidence = _evidence(said, step, errand)
        return replace(said, evidence=evidence) if evidence else said, step

    @contextlib.contextmanager
    def _counts_if_cut_off(self) -> Iterator[None]:
        """All the time of a program's run that is cut off is its own."""
        began = time.monotonic()
        try:
            yield
        except asyncio.CancelledError:
            self._found.own_seconds += time.monotonic() - began
            raise

    async def _in_lane(
        self, case: Case, errand: Errand, calls: Calls | None, lane: Lane, checking: Checking | None
    ) -> tuple[CaseVerdict, Step]:
        with self._counts_if_cut_off():
            step = await lane.run(errand)
        if calls:
            ended = _of_end(step)
            return ended or await verdict_of(self._request.compare, calls, step.answer), step
        return await self._said_of(case, errand, step, checking), step

    async def _by_itself(
        self, case: Case, errand: Errand, calls: Calls | None
    ) -> tuple[CaseVerdict, Step]:
        """A case whose program is its own: its calls, or assertions, are compiled with it."""
        language = self._request.language
        if calls:
            text, mark = f"{self._request.code}\n\n{calls.behind}", ""
        else:
            text, mark = marked(language, text_of(self._request, case), case.check)
        began = time.monotonic()
        build = await self._workshop.build(text)
        took = time.monotonic() - began
        if build.compiled and not build.ok:
            self._found.compiled = self._found.compiled or command_result_of(build.compiled)
            return CaseVerdict("C", why_not_compiled(build.compiled)), replace(
                build.compiled, stdout=b""
            )
        if build.compiled:  # its compiler's time is the program's doing, too
            self._found.own_seconds += min(took, build.compiled.cpu + build.compiled.idle)
        lane = self._lane_of(build)
        try:
            with self._counts_if_cut_off():
                step = await lane.run(replace(errand, text="", marks=False, calls=False))
        finally:
            await lane.close()
        if calls:
            answer, printed = answer_in(language, step.stdout)
            step = replace(step, stdout=printed, answer=answer or b"", marked=answer is not None)
            ended = _of_end(step)
            return ended or await verdict_of(self._request.compare, calls, step.answer), step
        if mark:
            stdout = step.stdout.replace(mark.encode(), b"")
            step = replace(step, stdout=stdout, marked=stdout != step.stdout)
        return await self._said_of(case, errand, step, None), step

    async def _said_of(
        self, case: Case, errand: Errand, step: Step, checking: Checking | None
    ) -> CaseVerdict:
        if (
            step.status == "output_limit"
            and errand.output < (longest := _longest(case))
            and (checking or may_accept(self._request.compare, step.stdout, case.expected or ()))
        ):
            why = f"{longest:,} bytes are expected, and a program may print {errand.output:,}"
            return CaseVerdict("M", CUT, f"{why}: the sandbox's cap on PENSTOCK_SANDBOX_OUTPUT_MB")
        if ended := _of_end(step):
            return ended
        if checking:
            return await checking.check(case, step.stdout)
        if case.expected is None:
            return CaseVerdict("P")
        same = await accepted(self._request.compare, step.stdout, case.expected)
        return CaseVerdict("P") if same else CaseVerdict("W")

    def _errand(self, index: int, case: Case, calls: Calls | None) -> Errand:
        own, limits = self._request.limits(index), self._workshop.limits
        asked = calls and is_whole(case)  # and its check is not run
        kept_back = bool(case.check) and not calls and self._keeps_back(case.check)
        wall, patient = own.wall_timeout or limits.wall, self._request.is_patient(index)
        if patient and self._request.interactor:
            wall += WALL_FACTOR * self._request.interactor.timeout  # for which it waits as well
        return Errand(
            cpu=own.run_timeout or limits.cpu,
            wall=wall,
            memory=limits.memory if own.memory_limit_mb is None else own.memory_limit_mb * MB,
            output=max(limits.output, min(2 * _longest(case), self._workshop.jails.caps.output)),
            patient=patient,
            stdin=calls.text if calls else case.input,
            text=text_of(self._request, case) if case.check and not (asked or kept_back) else "",
            check=case.check if kept_back else "",
            marks=bool(case.check or calls),
            calls=calls is not None,
        )

    def _keeps_back(self, check: str) -> bool:
        """Whether a check comes to its program only as that has run to its end."""
        in_python = self._request.mode == "check" and self._request.language == "python"
        return in_python and self._workshop.jails.level == "ns" and len(check) <= MOST_CHECK


def _evidence(said: CaseVerdict, step: Step, errand: Errand) -> str:
    """The evidence for people: what a verdict of time or of a limit stands on."""
    if said.letter == "T":
        return (
            f"{step.cpu:.2f} s of a processor (limit {errand.cpu:g}), {step.duration:.2f} s by the "
            f"clock (limit {errand.wall:g}), {step.idle:.2f} s of it asleep"
        )
    match said.letter, said.reason:
        case "L", "memory_limit":
            used = f"{step.memory_peak >> 20} MB at its peak (limit {errand.memory >> 20})"
            return f"{used}; {step.proof}" if step.proof else used
        case "L", "output_limit":
            return f"more than {errand.output:,} bytes printed"
        case "L", _:
            return "more processes or threads than it may have"
    return said.evidence


def _longest(case: Case) -> int:
    """The most that is expected, in bytes."""
    return max(map(len, case.expected or ()), default=0)


def why_not_compiled(step: Step) -> str:
    """A word for machines."""
    return "compile_timeout" if step.status == "time_limit" else "compile_error"


def _of_end(step: Step) -> CaseVerdict | None:
    """The verdict by the end alone; None if the output is to be looked at."""
    if step.status == "time_limit":
        return CaseVerdict("T", "run_timeout")
    if step.status != "finished":
        return CaseVerdict("L", step.status)
    if step.return_code:
        return CaseVerdict("E", "signal" if step.return_code < 0 else "exit")
    return None if step.marked else CaseVerdict("E", "ended_early")


def _of_both(ended: CaseVerdict | None, said: CaseVerdict, hung_up: bool) -> CaseVerdict:
    """The end of a program and its interactor. What one does after the other has failed is not its
    fault: an interactor that hangs, or that failed first (it `hung_up`), says nothing of the
    program."""
    if ended is None:
        return said
    if said.letter == "M":
        return said if hung_up or said.reason == "checker_timeout" else ended
    return said if ended.letter == "E" and said.letter != "P" else ended

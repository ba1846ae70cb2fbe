"""A checker or an interactor judges a case: a program too, in a jail that no other can reach.

One that fails is run once more, on the expected output; an interactor, with a program that says
nothing. If it has a verdict there, it has judged what the program said. If not, the data is broken:
the case is masked, and says nothing of the program.
"""

import asyncio
import contextlib
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from io import FileIO

from jail.jails import Jails
from jail.judge.builds import Build
from jail.judge.findings import COMMENT, CaseVerdict
from jail.judge.lane import Errand, Lane, LaneLost
from jail.judge.models import Checker
from jail.judge.suite import Case
from jail.limits import Limits
from jail.outcome import Outcome, Step

CHECKER_WALL = 3.0  # times its seconds of processor time
_PATIENCE = 10.0  # seconds more, for an interactor behind its program
_OUTPUT = 1 << 20  # bytes, of what it says
_WRONG = (1, 2, 4, 8)
_ON_BOTH = "the checker fails on the expected output too"
_ON_THIS = "the checker reads the expected output, and fails on this one"
_ON_NOTHING = "the interactor fails with a program that says nothing, too"
_ON_THIS_ONE = "the interactor judges a program that says nothing, and fails with this one"
_POINTS, _PARTIAL = 7, range(16, 117)
# How interpreters and runtimes report that a program failed, and by which code they end it. It is
# the same as that of a verdict, but a checker that failed has none to give.
_CRASHES = {
    "java": (1, re.compile(rb'\AException in thread "main" ')),
    "go": (2, re.compile(rb"\A(panic|fatal error): ")),
    "rust": (101, re.compile(rb"\A\s*thread 'main'.* panicked at ")),
    "nodejs": (1, re.compile(rb"\n\nNode\.js v[\d.]+\s*\Z")),
}
_CRASHES["typescript"] = _CRASHES["nodejs"]
_SAID_POINTS = re.compile(r"points?\s+([-+]?\d+(?:\.\d+)?)")
# Files as a protocol's programs expect them: (name, which of the case's texts), then arguments.
_FILES: Mapping[str, Mapping[str, str]] = {
    "testlib": {"input": "input", "output": "printed", "answer": "expected"},
    "open_r1": {"input": "input", "answer": "expected", "output": "printed"},
    "scalebox": {"stdin.txt": "input", "stdout.txt": "expected", "answer.txt": "printed"},
}
_ARGUMENTS = {
    "testlib": ["input", "output", "answer"],
    "open_r1": ["input", "answer", "output"],
    "scalebox": [],
}


class Checking:
    """A checker, or an interactor, beside one lane of the program."""

    def __init__(
        self, jails: Jails, checker: Checker, build: Build, limits: Limits, life: float
    ) -> None:
        self._level = jails.level
        self._checker = checker
        self._limits = replace(limits, cpu=checker.timeout, output=_OUTPUT)
        self._life = life
        arguments = _ARGUMENTS[checker.protocol]
        self._lane = Lane(jails, build, self._limits, {}, arguments, life)

    async def check(self, case: Case, printed: bytes) -> CaseVerdict:
        said = await self._read(case, printed)
        expected = next(iter(case.expected or ()), b"")
        if said.letter != "M" or printed == expected:
            return said
        control = await self._read(case, expected)
        if control.letter == "M":
            return replace(said, comment=f"{_ON_BOTH}: {said.comment}"[:COMMENT])
        return CaseVerdict("W", "checker", f"{_ON_THIS}: {said.comment or said.reason}"[:COMMENT])

    async def _read(self, case: Case, printed: bytes) -> CaseVerdict:
        ran = await self._lane.run(self._errand(self._files(case, printed)))
        return verdict_by(self._checker, ran)

    async def interact(
        self, case: Case, lane: Lane, errand: Errand
    ) -> tuple[Step, CaseVerdict, bool]:
        """Run a program and its interactor, joined by pipes: what one prints, the other reads.
        Returns the program's end, the verdict, and whether the interactor ended first."""
        with self._or_lost(), _pipe() as (to_program, said), _pipe() as (to_interactor, printed):
            theirs = replace(self._errand(self._files(case, b"")), wall=self._life)
            running = replace(errand, ends=(to_program, printed))
            theirs = replace(theirs, ends=(to_interactor, said))
            both = (
                asyncio.ensure_future(lane.run(running)),
                asyncio.ensure_future(self._lane.run(theirs)),
            )
            try:
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                hung_up = not both[0].done()
                ran = await both[0]
                return ran, await self._last_word(both[1]), hung_up
            finally:
                for one in both:
                    one.cancel()
                await asyncio.wait(both)

    async def on_nothing(self, case: Case, said: CaseVerdict) -> CaseVerdict:
        """The verdict, or after a failure whether the interactor fails in any case."""
        if said.letter != "M":
            return said
        with self._or_lost(), FileIO("/dev/null") as given, FileIO("/dev/null", "w") as taken:
            errand = replace(self._errand(self._files(case, b"")), ends=(given, taken))
            control = verdict_by(self._checker, await self._lane.run(errand))
        if control.letter == "M":
            return replace(said, comment=f"{_ON_NOTHING}: {said.comment}"[:COMMENT])
        return CaseVerdict(
            "W", "checker", f"{_ON_THIS_ONE}: {said.comment or said.reason}"[:COMMENT]
        )

    @contextlib.contextmanager
    def _or_lost(self) -> Iterator[None]:
        """Their jails count as lost if no descriptors are left to join the two by."""
        try:
            yield
        except OSError as problem:
            why = f"nothing can be opened for an interactor: {problem!r}"
            raise LaneLost(Outcome("infrastructure", self._level, error=why)) from None

    async def _last_word(self, speaking: "asyncio.Future[Step]") -> CaseVerdict:
        """The program has ended, so that it reads an end of file; one that hangs says nothing."""
        try:
            async with asyncio.timeout(_PATIENCE + CHECKER_WALL * self._checker.timeout):
                return verdict_by(self._checker, await speaking)
        except TimeoutError:
            await self._lane.close()
            return CaseVerdict("M", "checker_timeout")

    def _files(self, case: Case, printed: bytes) -> dict[str, bytes]:
        expected = next(iter(case.expected or ()), b"")
        texts = {"input": case.input, "printed": printed, "expected": expected}
        return {name: texts[which] for name, which in _FILES[self._checker.protocol].items()}

    def _errand(self, files: Mapping[str, bytes]) -> Errand:
        cpu = self._checker.timeout
        limits = self._limits
        return Errand(
            cpu, CHECKER_WALL * cpu, limits.memory, limits.output, patient=True, files=files
        )

    async def close(self) -> None:
        await self._lane.close()


def verdict_by(checker: Checker, step: Step) -> CaseVerdict:
    """The verdict of a checker by its exit code, or by what it printed, in the words of its
    protocol."""
    if step.status == "time_limit":
        return CaseVerdict("M", "checker_timeout")
    if step.status != "finished" or step.return_code is None or step.return_code < 0:
        return CaseVerdict("M", "checker_error", _text(step.stderr))
    if _crashed(checker.language, step):
        return CaseVerdict("M", "checker_error", _text(step.stderr))
    return _PROTOCOLS[checker.protocol](step, step.return_code)


def _crashed(language: str, step: Step) -> bool:
    code, report = _CRASHES.get(language, (None, None))
    return report is not None and step.return_code == code and bool(report.search(step.stderr))


def _testlib(step: Step, code: int) -> CaseVerdict:
    comment = _text(step.stderr)
    if code == 0:
        return CaseVerdict("P", comment=comment)
    if code in _WRONG:
        return CaseVerdict("W", "checker", comment)
    if code == _POINTS and (found := _SAID_POINTS.search(comment)):
        points = float(found[1])
        if math.isfinite(points):
            return CaseVerdict("W", "points", comment, points)
    if code in _PARTIAL:
        share = float(code - _PARTIAL.start)
        return CaseVerdict("P" if share == 100.0 else "W", "points", comment, share)
    return CaseVerdict("M", "checker_error", comment)


def _open_r1(step: Step, code: int) -> CaseVerdict:
    """The first word that it prints is a number; the rest is not looked at."""
    words = step.stdout.split(maxsplit=1)
    try:
        points = float(words[0])
    except (IndexError, ValueError):
        return CaseVerdict("M", "checker_error", _text(step.stderr))
    if code or not math.isfinite(points):
        return CaseVerdict("M", "checker_error", _text(step.stderr))
    right = points in (1.0, 100.0)
    return CaseVerdict("P" if right else "W", "" if right else "checker", points=points)


def _scalebox(step: Step, code: int) -> CaseVerdict:
    if code > 1:
        return CaseVerdict("M", "checker_error", _text(step.stderr))
    return CaseVerdict("W", "checker") if code else CaseVerdict("P")


_PROTOCOLS: Mapping[str, Callable[[Step, int], CaseVerdict]] = {
    "testlib": _testlib,
    "open_r1": _open_r1,
    "scalebox": _scalebox,
}


def _text(said: bytes) -> str:
    return said[: 4 * COMMENT].decode(errors="replace").strip()[:COMMENT]


@contextlib.contextmanager
def _pipe() -> Iterator[tuple[FileIO, FileIO]]:
    """A pipe has an end to read and one to write. Both are closed at last."""
    to_read, to_write = os.pipe()
    with FileIO(to_read) as reads, FileIO(to_write, "w") as writes:
        yield reads, writes

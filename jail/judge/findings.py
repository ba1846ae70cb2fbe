"""The findings on a program's cases: a verdict and some figures for each, and few outputs.

Of outputs it holds no more than the result brings back, however much the cases have printed.
"""

from bisect import insort
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple, Protocol

from jail.judge.models import JudgeRequest, JudgeResult, Kept, Letter
from jail.models import CommandResult

COMMENT = 1000  # characters of one
EVIDENCE = 300
_INDEX = itemgetter(0)


@dataclass(frozen=True)
class CaseVerdict:
    """A verdict, and why."""

    letter: Letter
    reason: str = ""
    comment: str = ""
    points: float | None = None
    evidence: str = ""  # what it stands on, if it is one of time, of a limit, or none


class Ran(Protocol):
    """How a case ran."""

    @property
    def return_code(self) -> int | None: ...
    @property
    def stdout(self) -> bytes: ...
    @property
    def stderr(self) -> bytes: ...
    @property
    def stdout_cut(self) -> bool: ...
    @property
    def cpu(self) -> float: ...
    @property
    def idle(self) -> float: ...
    @property
    def duration(self) -> float: ...
    @property
    def memory_peak(self) -> int: ...


class _Figures(NamedTuple):
    """The figures of a run that come back in any case."""

    exit: int = 0
    cpu_ms: int = 0
    wall_ms: int = 0
    memory_kb: int = 0


class Found:
    """Verdicts may come in any order; the result is as if the cases had run one by one."""

    def __init__(self, request: JudgeRequest, count: int, compiled: CommandResult | None) -> None:
        self._request, self._count = request, count
        self.compiled = compiled  # the first compile that failed, or the only one
        self.shared: set[int] = set()  # cases whose assertions ran in the program's own process
        self.end = count  # cases from here on are not needed
        self.rest: CaseVerdict | None = (
            None  # of those that were needed and not judged; None: cut off
        )
        self.own_seconds = 0.0  # that the program used: awake, asleep, and until its time was over
        self._in_turn = self._late = 0  # the first cases that are known, and how many timed out
        self._hopeless = False  # it timed out so often, and passed none
        self._said: dict[int, tuple[CaseVerdict, _Figures]] = {}
        self._failed: list[int] = []
        self._kept: list[tuple[int, Kept, int]] = []  # with their sizes
        self._kept_size = 0
        self._full_from = count

    def enter(self, index: int, said: CaseVerdict, ran: Ran | None) -> None:
        """Enter a case's verdict. A failure may end it all: the cases behind are not needed then,
        whether they ran or not."""
        self._said[index] = said, _figures(ran) if ran else _Figures()
        if ran:
            late = said.letter == "T"
            self.own_seconds += ran.duration if late else min(ran.duration, ran.cpu + ran.idle)
            self._keep(index, said, ran)
        self._count_timeouts()
        if said.letter in "PM":
            return
        insort(self._failed, index)
        most = self._request.failures_until_stop
        if most is not None and len(self._failed) >= most:
            end = self._failed[most - 1] + 1
            if end < self.end:
                self.end, self._hopeless = end, False

    def _count_timeouts(self) -> None:
        """Count timeouts in turn: a case that is not known yet may pass, and then its program is
        not hopeless."""
        most = self._request.stop_timeouts
        while most and self._late < most and (known := self._said.get(self._in_turn)):
            letter = known[0].letter
            if letter == "P":
                self._in_turn = self._count  # and none is counted
                return
            self._in_turn += 1
            self._late += letter == "T"
            if self._late == most and self._in_turn < self.end:
                self.end, self._hopeless = self._in_turn, True

    def cut_off(self, seconds: float, reason: str = "total_seconds") -> Letter:
        """The time for all cases is over, after so many of all lanes together. If the program used
        half of it or more, what is not known yet is known to be late."""
        spent = f"the program's cases used {self.own_seconds:.1f} s of {seconds:.1f} s of its lanes"
        letter: Letter = "T" if self.own_seconds >= seconds / 2 else "S"
        self.rest = self.rest or CaseVerdict(letter, reason, evidence=spent)
        return self.rest.letter

    @property
    def knows_none(self) -> bool:
        """Whether no case has a verdict of its own."""
        return all(said.letter == "M" for said, _ in self._said.values())

    def _keep(self, index: int, said: CaseVerdict, ran: Ran) -> None:
        """Keep what a case printed, if the request asks for it. The first cases are kept, as many
        as there is room for."""
        which = self._request.keep
        if which == "none" or (which != "all" and said.letter == "P") or index >= self._full_from:
            return
        one = Kept.of(ran.stdout, ran.stderr, self._request.keep_bytes, cut=ran.stdout_cut)
        size = one.size
        insort(self._kept, (index, one, size), key=_INDEX)
        self._kept_size += size
        while self._kept_size > self._request.keep_total or (
            which == "first_failure" and len(self._kept) > 1
        ):
            self._full_from, _, size = self._kept.pop()
            self._kept_size -= size

    def result(self) -> JudgeResult:
        found = [
            self._said.get(index) if index < self.end else None for index in range(self._count)
        ]
        known = {index: each for index, each in enumerate(found) if each}
        rest = self.rest or CaseVerdict("S", "total_seconds")
        for index in range(self.end):
            if index not in known:
                found[index] = known[index] = rest, _Figures()
        late = f"{self._late} cases before it ran out of time, and none passed"
        hopeless = CaseVerdict("T", "stop_timeouts", evidence=late)
        if self._hopeless:
            for index in range(self.end, self._count):
                found[index] = known[index] = hopeless, _Figures()
        said = {index: each for index, (each, _) in known.items()}
        figures = [each[1] if each else _Figures() for each in found]
        return JudgeResult(
            verdicts="".join(each[0].letter if each else "S" for each in found),
            compile_result=self.compiled,
            cpu_ms=[each.cpu_ms for each in figures],
            wall_ms=[each.wall_ms for each in figures],
            memory_kb=[each.memory_kb for each in figures],
            exits={index: each.exit for index, each in enumerate(figures) if each.exit},
            reasons={index: one.reason for index, one in said.items() if one.reason},
            comments={index: one.comment for index, one in said.items() if one.comment},
            points={index: one.points for index, one in said.items() if one.points is not None},
            kept={index: one for index, one, _ in self._kept if index < self.end},
            evidence=_first_of_each(said),
            shared=len(self.shared),
        )


def _first_of_each(said: dict[int, CaseVerdict]) -> dict[int, str]:
    """The evidence of the first case with each reason: a result stays small."""
    found: dict[tuple[str, str], tuple[int, str]] = {}
    for index, one in sorted(said.items()):
        if evidence := one.evidence or (one.comment if one.letter == "M" else ""):
            found.setdefault((one.letter, one.reason), (index, evidence[:EVIDENCE]))
    return dict(found.values())


def _figures(ran: Ran) -> _Figures:
    return _Figures(
        ran.return_code or 0, round(ran.cpu * 1000), round(ran.duration * 1000),
        ran.memory_peak >> 10,
    )  # fmt: skip

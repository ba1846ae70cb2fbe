"""What is known of a program's cases: a verdict and some figures for each, and few outputs.

Of outputs it holds no more than the result brings back, however much the cases have printed.
"""

from bisect import insort
from dataclasses import replace
from operator import itemgetter

from worker.judge.models import JudgeRequest, JudgeResult, Kept
from worker.models import CommandResult
from worker.sandbox.local.answer import command_result
from worker.sandbox.local.judging.checking import Said
from worker.sandbox.local.outcome import Step

SHOWN = 64 << 10  # bytes of what a compiler says
_INDEX = itemgetter(0)
NOT_RUN = Step("infrastructure", None, b"", b"", 0.0, 0.0, 0, 0)


class Found:
    """Verdicts may come in any order; the result is as if the cases had run one by one."""

    def __init__(self, request: JudgeRequest, count: int, compiled: Step | None) -> None:
        self._request, self._count = request, count
        self.compiled = compiled  # the first compile that failed, or the only one
        self.end = count  # cases from here on are not needed
        self.rest: Said | None = None  # of those that were needed and not judged; None: cut off
        self._said: dict[int, tuple[Said, Step]] = {}  # without outputs
        self._failed: list[int] = []
        self._kept: list[tuple[int, Kept, int]] = []  # with their sizes
        self._kept_size = 0
        self._full_from = count

    def enter(self, index: int, said: Said, step: Step) -> None:
        """A failure may end it all: what comes behind is not needed then, whether it ran or not."""
        self._said[index] = said, replace(step, stdout=b"", stderr=b"")
        self._keep(index, said, step)
        if said.letter in "PM":
            return
        insort(self._failed, index)
        most = self._request.failures_until_stop
        if most is not None and len(self._failed) >= most:
            self.end = min(self.end, self._failed[most - 1] + 1)

    @property
    def knows_none(self) -> bool:
        """Whether no case has a verdict of its own."""
        return all(said.letter == "M" for said, _ in self._said.values())

    def _keep(self, index: int, said: Said, step: Step) -> None:
        """Of the first ones, as many as there is room for."""
        which = self._request.keep
        if which == "none" or (which != "all" and said.letter == "P") or index >= self._full_from:
            return
        one = Kept.of(step.stdout, step.stderr, self._request.keep_bytes)
        size = one.size
        insort(self._kept, (index, one, size), key=_INDEX)
        self._kept_size += size
        while self._kept_size > self._request.keep_total or (
            which == "first_failure" and len(self._kept) > 1
        ):
            self._full_from, _, size = self._kept.pop()
            self._kept_size -= size

    def result(self) -> JudgeResult:
        found = [self._said.get(index) if index < self.end else None for index in self._indices]
        known = {index: each for index, each in enumerate(found) if each}
        rest = self.rest or Said("S", "total_seconds")
        for index in range(self.end):
            if index not in known:
                found[index] = known[index] = rest, NOT_RUN
        said = {index: each for index, (each, _) in known.items()}
        exits = {index: step.return_code for index, (_, step) in known.items()}
        return JudgeResult(
            verdicts="".join(each[0].letter if each else "S" for each in found),
            compile_result=told_of(self.compiled) if self.compiled else None,
            cpu_ms=[round(each[1].cpu * 1000) if each else 0 for each in found],
            wall_ms=[round(each[1].duration * 1000) if each else 0 for each in found],
            memory_kb=[each[1].memory_peak >> 10 if each else 0 for each in found],
            exits={index: code for index, code in exits.items() if code},
            reasons={index: one.reason for index, one in said.items() if one.reason},
            comments={index: one.comment for index, one in said.items() if one.comment},
            points={index: one.points for index, one in said.items() if one.points is not None},
            kept={index: one for index, one, _ in self._kept if index < self.end},
        )

    @property
    def _indices(self) -> range:
        return range(self._count)


def told_of(step: Step) -> CommandResult:
    """What a compiler did, as results say it."""
    return CommandResult.model_validate(command_result(step)).bounded(SHOWN)

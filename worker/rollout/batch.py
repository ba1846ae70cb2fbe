"""Many rollouts at once: so many in flight, progress shown, each kept as it ends, resumable."""

import asyncio
import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ground.extras import needed_by
from ground.numbers import check_whole
from worker.rollout.dump import RolloutDump
from worker.rollout.request import RolloutRequest
from worker.rollout.rollout import Rollout
from worker.rollout.trajectory import Trajectory

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress


@dataclass
class Batch:
    """`trajectories` are those of this run, in the requests' order; `resumed` were there before."""

    trajectories: list[Trajectory] = field(default_factory=list)
    resumed: int = 0

    @property
    def masked(self) -> list[Trajectory]:
        return [trajectory for trajectory in self.trajectories if trajectory.masked]

    @property
    def mean_score(self) -> float | None:
        """Over those that have a score: what is masked counts neither way."""
        known = [t.score for t in self.trajectories if t.score is not None]
        return sum(known) / len(known) if known else None


async def run_batch(
    rollout: Rollout,
    requests: Iterable[RolloutRequest],
    *,
    concurrency: int = 64,
    rollout_data_dir: Path | str | None = None,
    console: "Console | None" = None,
) -> Batch:
    """Play them all. One that fails is masked, and the others continue.

    With `rollout_data_dir` each is written as it ends, and those that an earlier, broken
    off call wrote there are not run again. Progress is shown where stderr is a terminal,
    or on the `console` given.
    """
    check_whole("concurrency", concurrency)
    wanted = list(requests)
    if len({request.request_id for request in wanted}) < len(wanted):
        raise ValueError("two requests of a batch have the same request_id")
    dump = RolloutDump(rollout_data_dir) if rollout_data_dir is not None else None
    todo = _unplayed(wanted, dump) if dump else wanted
    batch = Batch(resumed=len(wanted) - len(todo))
    with _Shown(len(wanted), batch.resumed, console) as shown:
        played = await _played(rollout, todo, concurrency, dump, shown)
    batch.trajectories = [played[request.request_id] for request in todo]
    return batch


def _unplayed(wanted: list[RolloutRequest], dump: RolloutDump) -> list[RolloutRequest]:
    done = {step: dump.resume(step) for step in {request.step for request in wanted}}
    return [request for request in wanted if request.request_id not in done[request.step]]


async def _played(
    rollout: Rollout,
    todo: list[RolloutRequest],
    concurrency: int,
    dump: RolloutDump | None,
    shown: "_Shown",
) -> dict[str, Trajectory]:
    played: dict[str, Trajectory] = {}
    waiting = iter(todo)

    async def work() -> None:
        for request in waiting:
            trajectory = await rollout.run(request)
            if dump:
                dump.write(trajectory)
            played[request.request_id] = trajectory
            shown.one_more(trajectory)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(concurrency, len(todo))):
                group.create_task(work())
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None  # the others were cancelled for it
    return played


class _Shown(contextlib.AbstractContextManager["_Shown"]):
    """A progress bar, with what the trajectories came to so far."""

    def __init__(self, total: int, resumed: int, console: "Console | None") -> None:
        # Sums, not the trajectories: a look at all of them each time takes their square.
        self._resumed, self._masked, self._scored, self._sum = resumed, 0, 0, 0.0
        self._progress = _progress(console)
        self._task = self._progress.add_task("rollouts", total=total, completed=resumed)
        self._note()

    def one_more(self, trajectory: Trajectory) -> None:
        self._masked += trajectory.masked
        if trajectory.score is not None:
            self._scored, self._sum = self._scored + 1, self._sum + trajectory.score
        self._progress.advance(self._task)
        self._note()

    def _note(self) -> None:
        words = [f"score {self._sum / self._scored:.3f}" if self._scored else ""]
        words += [f"{self._masked} masked" if self._masked else ""]
        words += [f"{self._resumed} resumed" if self._resumed else ""]
        self._progress.update(self._task, note=", ".join(filter(None, words)))

    def __enter__(self) -> "_Shown":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._progress.disable:  # rich before 14.3 would write an empty line
            self._progress.stop()


def _progress(console: "Console | None") -> "Progress":
    with needed_by("a batch's progress bar"):
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
        )

    console = console or Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    )

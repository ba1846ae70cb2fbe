"""The demo as it is seen: a line for each event, and a bar while jobs are done."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class Screen:
    """Talk on one console. A bar that moves only where a terminal shows it."""

    def __init__(self, console: Console, jobs: int, *, moving: bool = True) -> None:
        self._console = console
        self._moving = moving and console.is_terminal
        self._bar = Progress(
            TextColumn("  jobs done"),
            BarColumn(bar_width=40),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not self._moving,
        )
        self._task = self._bar.add_task("jobs", total=jobs)

    def say(self, event: str) -> None:
        self._console.print(f"• {event}", highlight=False, soft_wrap=not self._console.is_terminal)

    def progress(self, done: int) -> None:
        self._bar.update(self._task, completed=done)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()
        if error is None:
            self._console.print(self._bar.get_renderable())

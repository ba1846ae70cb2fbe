"""The demo as it is seen: a line for each event, and a bar while jobs are done."""

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class Screen:
    """Talk on one console. A bar that moves only where a terminal shows it."""

    def __init__(self, console: Console, jobs: int, *, moving: bool = True) -> None:
        self._console = console
        self._moving = moving and console.file.isatty()
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
        wide = self._console.width - 1 if self._console.is_terminal else len(event) + 2
        lines = textwrap.fill(event, wide, initial_indent="• ", subsequent_indent="  ")
        self._console.print(lines, highlight=False, soft_wrap=True)

    def progress(self, done: int) -> None:
        self._bar.update(self._task, completed=done)

    @contextmanager
    def shown(self) -> Iterator[Self]:
        """The bar moves in here, and stays as a line where all went well."""
        with self._bar:
            yield self
        self._console.print(self._bar.get_renderable())

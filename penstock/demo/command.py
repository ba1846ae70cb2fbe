"""`penstock demo`: play the story, and end with what happened, in numbers."""

import json
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ground import PenstockError, SettingError
from ground.extras import needed_by
from ground.settings import GroundSettings
from jail.settings import SandboxSettings
from penstock.demo.drawing import drawn, page
from penstock.demo.record import DemoFailed, Outcome
from penstock.interrupts import Loading
from penstock.named_or_own_redis import require_one_primary, running_redis
from penstock.options import examples, given_settings, say, settings_options
from worker.errors import QueueError

if TYPE_CHECKING:
    from rich.table import Table

NEXT = """  penstock up                            all of it, with a page to look at
  echo 'print(6 * 7)' | penstock run -   beside it: a program through its queue
  penstock top                           beside it: the fleet in a terminal"""


@click.command(
    "demo",
    short_help="Watch it work: real workers, one killed with -9, nothing lost.",
    epilog=examples("""
Examples:

  penstock demo
  penstock demo --jobs 200
  penstock demo --redis-url redis://localhost:6379/0

It needs no Redis: it starts an embedded Redis in a temporary folder, or in
PENSTOCK_DATA_DIR if that is set, and deletes what it created.
"""),
)
@click.option(
    "--jobs", type=click.IntRange(12, 10_000), default=40, show_default=True, help="How many."
)
@click.option(
    "--picture",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where to draw what happened, as .html or .svg. The default is demo.html in the data "
    "directory, or a new file among the temporary ones if nothing can be written there.",
)
@click.option("--json", "as_json", is_flag=True, help="The numbers as one JSON object on stdout.")
@settings_options
def command(jobs: int, picture: Path | None, as_json: bool) -> int:
    """Play one small RL step on real workers and a real sandbox; one is killed, nothing is lost."""
    # Here: a client of models takes half a second, and `--help` needs none.
    with Loading(), needed_by("penstock demo"):
        from rich.console import Console

        from penstock.demo.screen import Screen
        from penstock.demo.story import jobs_of, play

    talk = Console(stderr=True)
    settings = given_settings()
    SandboxSettings.load()  # refused here, rather than by each worker
    for noisy in ("rq", "penstock.worker"):
        logging.getLogger(noisy).setLevel(logging.WARNING)  # the story says it better
    file = _writable(picture, named=True) if picture else _place_of_a_picture(settings)
    outcome = None
    try:
        with (
            _scratch() as scratch,
            _redis(settings, scratch) as url,
            Screen(talk, jobs_of(jobs)).shown() as screen,
        ):
            outcome, record = play(url, jobs, scratch, screen)
    except* PenstockError as failures:
        first = _first(failures)
        if not isinstance(first, DemoFailed | QueueError):
            raise first from None
        say(f"penstock: the demo failed: {first}", err=True)
    if outcome is None:
        return 1
    file.write_text(drawn(record) if file.suffix == ".svg" else page(record, figures_of(outcome)))
    if as_json:
        click.echo(json.dumps({**asdict(outcome), "lost": outcome.lost, "picture": str(file)}))
    else:
        Console().print(summary(outcome))
        click.echo(f"\nThe picture: {file}\n\nNext:\n{_findable()}{NEXT}", err=True)
    return 0 if outcome.well else 1


def _place_of_a_picture(settings: GroundSettings) -> Path:
    """A newcomer named no folder, and may stand in one that is not his, as `/` is."""
    try:
        return _writable(settings.data_dir / "demo.html", named=False)
    except SettingError:
        if "data_dir" in settings.model_fields_set:
            raise
    descriptor, name = tempfile.mkstemp(prefix="penstock-demo-", suffix=".html")
    os.close(descriptor)
    return Path(name)


def _writable(file: Path, *, named: bool) -> Path:
    """Check before the work that its result will have a place."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=file.parent):
            return file
    except OSError as refusal:
        said = f"{file} cannot be written: {refusal.strerror}"
        raise SettingError(
            "--picture" if named else "PENSTOCK_DATA_DIR",
            f"{said}; name a folder that you may write to, or --picture FILE",
        ) from None


def summary(outcome: Outcome) -> "Table":
    """The closing table."""
    from rich.table import Table

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(justify="right", style="bold")
    table.add_column()
    for number, what in figures_of(outcome):
        table.add_row(number, what)
    return table


def figures_of(outcome: Outcome) -> list[tuple[str, str]]:
    """The demo's end in numbers, each with what it counts."""
    again = "program" if outcome.repeated == 1 else "programs"
    return [
        (f"{outcome.finished}/{outcome.jobs}", "programs run to their end, in a real sandbox"),
        ("1", f"worker killed in the middle of a job; it ended with {outcome.killed}"),
        (str(outcome.repeated), f"{again} run again by others, after "
         f"{outcome.permit_back_after:.1f} s; {outcome.executions} executions in all"),
        (f"{outcome.most_at_once}/{outcome.limit}", "permits in flight at most, of the limit; "
         f"{outcome.permits_granted} granted, {outcome.permits_left} left behind"),
        (f"{outcome.groups_delivered}/{outcome.groups}", "groups taken by the trainer; "
         f"{outcome.groups_timed_out} timed out, as planned"),
        (f"{outcome.mean_reward:.2f}", f"mean reward of {outcome.trajectories} trajectories"),
        (str(outcome.lost), "lost"),
        (f"{outcome.seconds:.1f} s", f"on {outcome.server}"),
    ]  # fmt: skip


def _findable() -> str:
    """The hint that lets the shell find the command: `make demo` calls it by its path."""
    activate = Path(sys.prefix, "bin", "activate")
    if shutil.which("penstock") or not activate.is_file():
        return ""
    here = Path.cwd()
    shown = activate.relative_to(here) if activate.is_relative_to(here) else activate
    return f"  . {shown!s:<36} in each terminal, to find penstock\n"


def _first(failures: BaseExceptionGroup[PenstockError]) -> PenstockError:
    """The others follow from it, as a rule."""
    failure = failures.exceptions[0]
    return _first(failure) if isinstance(failure, BaseExceptionGroup) else failure


@contextmanager
def _scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as folder:
        yield Path(folder)


@contextmanager
def _redis(settings: GroundSettings, scratch: Path) -> Iterator[str]:
    require_one_primary(settings)
    own = "data_dir" not in settings.model_fields_set
    with running_redis(settings, folder=scratch / "redis" if own else None) as url:
        yield url

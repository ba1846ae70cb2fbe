"""`penstock bench`: the benchmarks, which come with the source and not with the package."""

import os
import sys
from pathlib import Path

import click

import penstock
from ground import PenstockError
from penstock.options import examples

SOURCE = Path(penstock.__file__).parents[1]


@click.command(
    "bench",
    context_settings={"ignore_unknown_options": True},
    epilog=examples("""
Examples:

  penstock bench --list                      the suites
  penstock bench gates --quick               one suite, in under a minute
  penstock bench queue --without rq --json > queue.json
  penstock bench gates --plot gates.svg

It is `python -m bench`, whose `--help` has every option. Peers are fetched at their
first use, into .bench/.
"""),
)
@click.argument("arguments", metavar="[SUITE|OPTION]...", nargs=-1, type=click.UNPROCESSED)
def command(arguments: tuple[str, ...]) -> None:
    """Measure Penstock and its peers. In a clone of the source."""
    if not (SOURCE / "bench" / "__main__.py").is_file():
        raise PenstockError(
            "the benchmarks are not part of the package; clone the source, and there: "
            "make .venv/.installed && .venv/bin/penstock bench"
        )
    paths = [str(SOURCE), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    os.execve(sys.executable, [sys.executable, "-P", "-m", "bench", *arguments], env)  # noqa: S606

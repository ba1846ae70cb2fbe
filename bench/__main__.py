"""`python -m bench [SUITE…] [--quick] [--json] [--plot FILE.svg]`: measure, peers beside us.

With no suite named, all of them. `--json` prints one object a suite on stdout, each on
a line of its own, and nothing else. Talk goes to stderr.
"""

import importlib
import json
import pkgutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console

import bench
from bench.conditions import conditions, load
from bench.peers import FOLDERS
from bench.report import plot, show
from bench.suite import Suite, judge, run, without

FRAME = {
    "__main__", "against", "conditions", "instructions", "peers", "report", "suite",
}  # fmt: skip


def suites() -> list[str]:
    """Every module of this folder that is not the frame is a suite."""
    found = (module.name for module in pkgutil.iter_modules(bench.__path__) if not module.ispkg)
    return sorted(name for name in found if name not in FRAME and not name.startswith("_"))


def measure(name: str, *, quick: bool, skip: Sequence[str], talk: Console) -> dict[str, Any]:
    """Run one suite, and make its report."""
    before = conditions()
    talk.print(f"{name}: setting up", highlight=False)
    suite: Suite = without(importlib.import_module(f"bench.{name}").measure(quick), skip)
    results, ratios = run(suite, lambda line: talk.print(f"{name}: {line}", highlight=False))
    run_as = {"load after": load(), "rounds": suite.rounds, "quick": quick}
    return {
        "suite": name,
        "conditions": {**before, **suite.conditions, **run_as},
        "results": results,
        "ratios": ratios,
        "targets": judge(suite, results, ratios),
    }


@click.command()
@click.argument("names", metavar="[SUITE]...", nargs=-1)
@click.option("--quick", is_flag=True, help="Under a minute a suite: fewer rounds.")
@click.option("--without", "skip", multiple=True, metavar="NAME", help="Leave a contender out.")
@click.option(
    "--peer", "peers", multiple=True, metavar="NAME=FOLDER",
    help="Source that you fetched: slime-v0=…, slime-v1=… for the suite `buffer`.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object a suite on stdout.")
@click.option("--plot", "picture", type=click.Path(path_type=Path), help="Draw bars to an SVG.")
@click.option("--list", "listing", is_flag=True, help="Name the suites, and end.")
def main(
    names: Sequence[str],
    quick: bool,
    skip: Sequence[str],
    peers: Sequence[str],
    as_json: bool,
    picture: Path | None,
    listing: bool,
) -> None:
    """Measure SUITEs, all by default; peers run beside us, in turns."""
    if listing:
        click.echo("\n".join(suites()))
        return
    for name in names:
        if name not in suites():
            raise click.BadParameter(f"no suite {name!r}; there are {', '.join(suites())}")
    FOLDERS.update(_folder(peer) for peer in peers)
    talk = Console(stderr=True)
    reports = []
    for name in names or suites():
        reports.append(measure(name, quick=quick, skip=skip, talk=talk))
        if as_json:
            click.echo(json.dumps(reports[-1]))
        else:
            show(reports[-1], Console())
    if picture:
        picture.write_text(plot(reports))


def _folder(peer: str) -> tuple[str, Path]:
    name, _, folder = peer.partition("=")
    if not folder or not Path(folder).is_dir():
        raise click.BadParameter(f"{peer!r} is not NAME=FOLDER with a folder that is there")
    return name, Path(folder).resolve()


if __name__ == "__main__":
    main(prog_name="python -m bench")

"""`penstock cases`: a data set's cases, before a model is trained on them."""

import asyncio
import json
import os
from collections import Counter
from collections.abc import Callable
from typing import Any, TextIO, get_args

import click

from jail.errors import RequestRefused
from jail.judge.models import Rule
from jail.models import LANGUAGES
from penstock.options import Seconds, examples, say, settings_options
from penstock.tables import Styled, Table
from penstock.verdict_table import progress_bar
from worker.place import place_of
from worker.reward.rows import RowReport, Wishes, check_row, rows_of

_COLOURS: dict[str, dict[str, Any]] = {
    "error": {"fg": "red"}, "warning": {"fg": "yellow"}, "note": {"dim": True},
}  # fmt: skip


@click.group(
    "cases",
    epilog=examples("""
Examples:

  penstock cases check train.jsonl
  penstock cases check --rule ends --json row.json | jq .summary
"""),
)
def command() -> None:
    """Look at a data set's cases before you train on them."""


@command.command(
    "check",
    short_help="Find rows that no program can pass, and what solutions need.",
    epilog=examples("""
Examples:

  penstock cases check train.jsonl
  penstock cases check --rows 200 --solutions 1 train.jsonl
  penstock cases check --cases-in reward_model.ground_truth --solutions-in extra.gold train.jsonl
  penstock cases check --on redis://10.0.0.5 --json train.jsonl > found.json

FILE has a row a line (JSON Lines), or is one row or a list of rows. A row has any format that
jail.judge.read_cases reads. Its solutions run under the rule that rewards use.

It exits with 1 if a row has an error: it cannot be read, none of its solutions passes, its
checker refuses what is expected. Warnings and notes do not count.
"""),
)
@click.argument("file", type=click.File("r", encoding="utf-8-sig"), metavar="FILE|-")
@click.option("--on", default="local", show_default=True, metavar="PLACE",
              help="Where programs run: local, redis://…, http://…")  # fmt: skip
@click.option("--rule", type=click.Choice(get_args(Rule)), help="In place of the format's own.")
@click.option("--language", default="python", show_default=True, help="That of the solutions.")
@click.option("--cases-in", default="", metavar="NAME", help="Where a row has its cases: a.b.c")
@click.option("--solutions-in", default="", metavar="NAME", help="Where a row has its solutions.")
@click.option("--solutions", "most", type=click.IntRange(0), default=3, show_default=True,
              help="How many of each row's run.")  # fmt: skip
@click.option("--timeout", type=Seconds(0, min_open=True), metavar="SECONDS",
              help="Of a processor, for each case.")  # fmt: skip
@click.option("--memory", type=click.IntRange(1), metavar="MB", help="For each case.")
@click.option("--rows", type=click.IntRange(1), metavar="COUNT", help="Only the first ones.")
@click.option("--at-once", type=click.IntRange(1), default=os.cpu_count() or 1, metavar="COUNT",
              help="Rows side by side. Default: one per processor.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="All that was found, as JSON on stdout.")
@settings_options
def check(
    file: TextIO,
    on: str,
    rule: Rule | None,
    language: str,
    cases_in: str,
    solutions_in: str,
    most: int,
    timeout: float | None,
    memory: int | None,
    rows: int | None,
    at_once: int,
    as_json: bool,
) -> int:
    """Read a data set, run its solutions on its cases, and say what is wrong, row by row."""
    # A wish that no row can have would be found in each, as if the data were at fault.
    if language not in LANGUAGES:
        raise click.UsageError(f"--language {language!r} is none of {', '.join(sorted(LANGUAGES))}")
    try:
        found = rows_of(file.read())[:rows]
    except (RequestRefused, UnicodeDecodeError) as refusal:
        raise click.UsageError(f"{file.name}: {refusal}") from None
    if not found:
        raise click.UsageError(f"{file.name} has no rows")
    wishes = Wishes(cases_in, solutions_in, language, rule, timeout, memory, most)
    with progress_bar(len(found), "row") as at:
        reports = asyncio.run(_all_checked(found, on, wishes, at_once, at or (lambda _: None)))
    if as_json:
        summary = _summary(reports)
        click.echo(json.dumps({"rows": [each.dump() for each in reports], "summary": summary}))
    else:
        _show(reports)
    return int(any(each.is_broken for each in reports))


async def _all_checked(
    rows: list[Any], on: str, wishes: Wishes, at_once: int, tell: Callable[[int], None]
) -> list[RowReport]:
    place, room, done = place_of(on), asyncio.Semaphore(at_once), 0

    async def checked(index: int, row: Any) -> RowReport:
        nonlocal done
        async with room:
            report = await check_row(index, row, place, wishes)
        done += 1
        tell(done - 1)
        return report

    return await asyncio.gather(*(checked(index, row) for index, row in enumerate(rows)))


def _summary(reports: list[RowReport]) -> dict[str, Any]:
    kinds = Counter(kind for each in reports for kind in {one.kind for one in each.findings})
    return {
        "rows": len(reports),
        "broken": sum(each.is_broken for each in reports),
        "without_references": sum(not each.references for each in reports),
        "rows_by_finding": dict(kinds.most_common()),
        "longest_seconds": max(each.longest_seconds for each in reports),
        "cpu_seconds": max(each.cpu_seconds for each in reports),
        "memory_mb": max(each.memory_mb for each in reports),
    }


def _show(reports: list[RowReport]) -> None:
    table = Table("row", "", "finding", "", right=("row",))
    for each in reports:
        row = f"{each.row} {each.name}".strip()
        for one in each.findings:
            table.add(row, Styled(one.level, _COLOURS[one.level]), one.kind, one.text)
    if any(each.findings for each in reports):
        table.show()
    said = _summary(reports)
    say(f"{said['broken']} of {said['rows']} rows are broken")
    if said["without_references"]:
        say(f"{said['without_references']} rows have no solution that could be run")
    say(
        f"solutions need up to {said['cpu_seconds']:.2f} s and {said['memory_mb']:g} MB a case; a "
        f"slow program holds its batch for up to {said['longest_seconds']:,.0f} s"
    )

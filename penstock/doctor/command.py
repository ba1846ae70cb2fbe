"""`penstock doctor`: look, judge, and say what to do."""

import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ground import GroundSettings
from penstock.doctor.finding import Finding
from penstock.doctor.isolation import check_isolation
from penstock.doctor.packages import check_names, check_python, check_versions
from penstock.doctor.redis import check_redis
from penstock.options import examples, for_data, given_settings, settings_options

Report = dict[str, list[Finding]]
_COLOURS = {"ok": "green", "warn": "yellow", "fail": "bold red"}


@click.command(
    "doctor",
    epilog=examples("""
Examples:

  penstock doctor
  penstock doctor --redis-url redis://10.0.0.5:6379/0
  penstock doctor --json | jq '.findings[] | select(.verdict != "ok")'

Exit code: 0 ready (warnings may stand), 1 a check failed, 2 a setting cannot be read.
"""),
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.option("--quiet", "-q", is_flag=True, help="Show only warnings and failures.")
@settings_options
def command(as_json: bool, quiet: bool) -> int:
    """Check Python, packages, Redis and the kernel; say what to do."""
    report = examine(given_settings())
    healthy = all(finding.verdict != "fail" for finding in _all(report))
    if as_json:
        click.echo(_as_json(report, healthy, quiet))
    else:
        show(report, for_data(), quiet=quiet)
    return 0 if healthy else 1


def examine(settings: GroundSettings) -> Report:
    """Every check, by what it is about. Reads settings first: a wrong one raises."""
    checks: dict[str, Callable[[], Iterable[Finding]]] = {
        "redis": lambda: check_redis(settings),
        "python": lambda: [check_python(), *check_versions(), *check_names()],
        "sandbox": check_isolation,
    }
    found = {about: list(check()) for about, check in checks.items()}
    return {about: found[about] for about in ("python", "redis", "sandbox")}


def show(report: Report, console: Console, *, quiet: bool = False) -> None:
    """A table; coloured, and folded to the width, only where a terminal reads it."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for about, findings in report.items():
        shown = [f for f in findings if not quiet or f.verdict != "ok"]
        if shown:
            table.add_row(Text(about, style="bold"))
        for finding in shown:
            verdict = Text(finding.verdict, style=_COLOURS[finding.verdict])
            table.add_row(verdict, finding.about, Text(finding.fact))
            if finding.remedy:
                table.add_row("", "", Text(f"→ {finding.remedy}", style="italic"))
    with console.capture() as captured:
        if table.row_count:
            console.print(table)
        console.print(_verdict(report))
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def _verdict(report: Report) -> Text:
    verdicts = [finding.verdict for finding in _all(report)]
    failed, warned = verdicts.count("fail"), verdicts.count("warn")
    if failed:
        return Text(f"Not ready: {failed} failed, {warned} warned.", style="bold red")
    if warned:
        return Text(f"Ready, with {warned} to look at.", style="yellow")
    return Text("Ready.", style="green")


def _all(report: Report) -> list[Finding]:
    return [finding for findings in report.values() for finding in findings]


def _as_json(report: Report, healthy: bool, quiet: bool) -> str:
    findings = [
        {"section": about, **asdict(finding)}
        for about, listed in report.items()
        for finding in listed
        if not quiet or finding.verdict != "ok"
    ]
    indent = 2 if sys.stdout.isatty() else None
    return json.dumps({"ready": healthy, "findings": findings}, indent=indent)

"""`penstock doctor`: look, judge, and say what to do."""

import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

import click

from ground.redis.connect import UNWELL
from ground.settings import GroundSettings
from penstock.doctor.finding import Finding
from penstock.doctor.isolation import check_isolation
from penstock.doctor.packages import check_names, check_python, check_versions
from penstock.doctor.redis import check_redis, fleets_target, trouble_of
from penstock.doctor.stored import check_fleet
from penstock.options import examples, given_settings, settings_options
from penstock.tables import Styled, Table, coloured

Report = dict[str, list[Finding]]
_COLOURS: dict[str, dict[str, Any]] = {
    "ok": {"fg": "green"},
    "warn": {"fg": "yellow"},
    "fail": {"fg": "red", "bold": True},
}


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
    """Check Python, packages, Redis, the kernel and the fleet; say what to do."""
    report = examine(given_settings())
    healthy = all(finding.verdict != "fail" for finding in _all(report))
    if as_json:
        click.echo(_as_json(report, healthy, quiet))
    else:
        table_of(report, quiet=quiet).show()
        click.echo(coloured(_verdict(report)))
    return 0 if healthy else 1


def examine(settings: GroundSettings) -> Report:
    """Every check, by what it is about. Reads settings first: a wrong one raises."""
    checks: dict[str, Callable[[], Iterable[Finding]]] = {
        "redis": lambda: check_redis(settings),
        "python": lambda: [check_python(), *check_versions(), *check_names()],
        "sandbox": check_isolation,
    }
    found = {about: list(check()) for about, check in checks.items()}
    # Of a Redis that does not serve us, one finding is enough.
    served = all(finding.verdict != "fail" for finding in found["redis"])
    found["fleet"] = list(_fleet(settings)) if served else []
    return {about: found[about] for about in ("python", "redis", "sandbox", "fleet")}


def _fleet(settings: GroundSettings) -> Iterable[Finding]:
    target = fleets_target(settings)
    try:
        yield from check_fleet(target, settings.run)
    except UNWELL as trouble:
        if target is None:
            raise
        yield trouble_of("fleet", target, trouble)


def table_of(report: Report, *, quiet: bool = False) -> Table:
    table = Table("", "", "")
    for about, findings in report.items():
        shown = [f for f in findings if not quiet or f.verdict != "ok"]
        if shown:
            table.add(Styled(about, {"bold": True}), "", "")
        for finding in shown:
            verdict = Styled(finding.verdict, _COLOURS[finding.verdict])
            table.add(verdict, finding.about, finding.fact)
            if finding.remedy:
                table.add("", "", Styled(f"→ {finding.remedy}", {"italic": True}))
    return table


def _verdict(report: Report) -> Styled:
    verdicts = [finding.verdict for finding in _all(report)]
    failed, warned = verdicts.count("fail"), verdicts.count("warn")
    if failed:
        return Styled(f"Not ready: {failed} failed, {warned} warned.", _COLOURS["fail"])
    if warned:
        return Styled(f"Ready, with {warned} to look at.", _COLOURS["warn"])
    return Styled("Ready.", _COLOURS["ok"])


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

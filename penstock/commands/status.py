"""`penstock status`: the verdict on the fleet, for people, scripts and probes."""

import json
from collections.abc import Sequence
from typing import Any

import click

from ground import PenstockError
from ground.redis.connect import UNWELL
from penstock.fleet import Fleet, FleetReader
from penstock.fleet.health import EXIT_CODES
from penstock.fleet.model import Level
from penstock.in_order import run_in_order
from penstock.named_or_own_redis import fleets_redis, require_one_primary
from penstock.options import examples, given_settings, settings_options
from penstock.tables import Styled, coloured

_COLOURS: dict[str, dict[str, Any]] = {
    "well": {"fg": "green"},
    "warn": {"fg": "yellow"},
    "bad": {"fg": "red", "bold": True},
    "unused": {"fg": "yellow"},
}


@click.command(
    "status",
    epilog=examples("""
Examples:

  penstock status
  penstock status --json | jq -r '.problems[] | "\\(.text): \\(.remedy)"'
  penstock status || mail -s "$(penstock status | head -1)" me@example.com

Exit code: 0 healthy, 1 something is wrong, 3 nothing has used this Redis yet. It is 2 if the fleet
cannot be judged: no URL, no Redis, or one that refuses.
"""),
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout, also if no Redis "
              "answers.")  # fmt: skip
@settings_options
def command(as_json: bool) -> int:
    """Say whether the fleet is healthy, and what to do if it is not: the worst first."""
    settings = given_settings()
    try:
        require_one_primary(settings)
        with fleets_redis(settings) as url:
            fleet = run_in_order(_look(url, settings.run))
    except (PenstockError, *UNWELL) as trouble:
        if as_json:
            click.echo(json.dumps({"level": "unknown", "sentence": str(trouble), "problems": []}))
        raise
    if as_json:
        click.echo(json.dumps(_shown(fleet), indent=2))
    else:
        for line, level in _lines(fleet):
            click.echo(coloured(Styled(line, _COLOURS[level])))
    return EXIT_CODES[fleet.level]


async def _look(url: str, run: str) -> Fleet:
    async with FleetReader(url, run) as reader:
        return await reader.read(workers=0)


def _lines(fleet: Fleet) -> Sequence[tuple[str, Level]]:
    """All that is wrong, a line each; else the one sentence."""
    found: list[tuple[str, Level]] = [
        (f"{one.level:4}  {one.said}", one.level) for one in fleet.alarms
    ]
    return found or [(fleet.sentence, fleet.level)]


def _shown(fleet: Fleet) -> dict[str, Any]:
    named = ("level", "verdict", "text", "remedy", "kind", "name")
    problems = [{name: getattr(one, name) for name in named} for one in fleet.alarms]
    return {
        "level": fleet.level, "sentence": fleet.sentence, "at": fleet.at, "run": fleet.run,
        "redis": fleet.server.where, "problems": problems,
    }  # fmt: skip

"""`penstock why`: from a reward to what it stands on."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

import click

from penstock.fleet import FleetReader
from penstock.in_order import run_in_order
from penstock.named_or_own_redis import fleets_redis, require_one_primary
from penstock.options import examples, given_settings, say, settings_options
from penstock.tables import Styled, Table, coloured
from penstock.why import Explained, Fact, NothingFound, explain
from penstock.why.replay import Replay, replay

_COLOURS: dict[str, dict[str, Any]] = {
    "": {}, "well": {"fg": "green"}, "warn": {"fg": "yellow"}, "bad": {"fg": "red"},
}  # fmt: skip
_Found = list[tuple[Explained, list[Replay]]]


@click.command(
    "why",
    short_help="Say why a sample has its reward, or why it waits.",
    epilog=examples("""
Examples:

  penstock why 5f0c9b1e4d7a4c0f8a6b2d3e4f506172     a job, as Grade.job has it
  penstock why math_0-3                            an item of the buffer, by its uid
  penstock why math_0:1                            a group: its instance, and its round
  penstock why 6f1c0e5a9b3d4c27                    a session of the gateway
  penstock why penstock-1f9c6e0a                   a session sandbox
  penstock why --replay JOB                        judge it again here
  penstock why --json JOB | jq -r '.found[].facts[] | "\\(.what): \\(.said)"'

Exit code: 0 if it is explained, and with --replay if it ends here as it did. It is 1 if nothing
has that id, and with --replay if the end is another, or it cannot be judged again.
"""),
)
@click.argument("id")
@click.option("--replay", "again", is_flag=True, help="Judge the program again, in the embedded "
              "sandbox of this machine, and say what differs.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@settings_options
def command(id: str, again: bool, as_json: bool) -> int:
    """Say why a job, an item, a session or a sandbox has its reward, has none, or waits.

    It goes from the reward to verdict, evidence, attempts, permit, turns and versions. All of it
    is what Redis keeps: it says so if that is gone.
    """
    settings = given_settings()
    require_one_primary(settings)
    with fleets_redis(settings) as url:
        try:
            found = run_in_order(_looked_at(url, settings.run, id, again=again))
        except NothingFound as nothing:
            if as_json:
                click.echo(json.dumps({"id": id, "found": []}))
            say(f"penstock: {nothing}", err=True)
            return 1
    if as_json:
        shown = [asdict(one) | {"replays": [asdict(each) for each in replays]}
                 for one, replays in found]  # fmt: skip
        click.echo(json.dumps({"id": id, "found": shown}, indent=2))
    else:
        _show(found, again=again)
    return int(again and not all(each.same for _, replays in found for each in replays or [_NONE]))


_NONE = Replay("", "it names no job that can be judged again", None)


async def _looked_at(url: str, run: str, id: str, *, again: bool) -> _Found:
    async with FleetReader(url, run) as reader:
        found = await explain(reader, id)
        return [
            (one, [await replay(reader, job) for job in one.jobs] if again else [])
            for one in found
        ]  # fmt: skip


def _show(found: _Found, *, again: bool) -> None:
    for number, (one, replays) in enumerate(found):
        if number:
            click.echo()
        where = f" of {one.where}" if one.where else ""
        _print(f"{one.kind} {one.name}{where}: {one.sentence}", one.look, one.facts)
        for each in (replays or [_NONE]) if again else ():
            click.echo()
            look = {True: "well", False: "warn", None: "bad"}[each.same]
            _print(
                f"replay{f' of job {each.job}' if each.job else ''}: {each.sentence}",
                look,
                each.facts,
            )


def _print(sentence: str, look: str, facts: Iterable[Fact]) -> None:
    table = Table("", "", whole=("what",))
    for row in _rows(facts):
        table.add(*row)
    click.echo(coloured(Styled(_visible(sentence), _COLOURS[look])))
    table.show()


def _rows(facts: Iterable[Fact]) -> Iterator[tuple[str | Styled, str | Styled]]:
    for fact in facts:
        yield f"  {fact.what}", Styled(fact.said, _COLOURS[fact.look])


def _visible(text: str) -> str:
    from ground import visible

    return visible(text)

"""What a pair, a job, a tool's call and a write cost in instructions, beside what is noted.

    make instructions                       the same as the next
    python -m bench.instructions            1 if something takes over 2% more than noted
    python -m bench.instructions --renew    write `.ci/instructions.txt`

So nobody pays for a feature that he does not use, without that somebody decides it. Instructions of
user space are counted by valgrind; another version of the server or of Python has others. What is
disturbed takes more of them, so what is over is counted again, and the least counts. What is noted
is the median.
"""

import platform
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click

from bench.against import FIGURES, SUITES, Side, who_works
from ground.server.binary import bundled_server

NOTED = Path(__file__).parents[1] / ".ci/instructions.txt"
WORKS = {
    "permits": "gates", "one_job": "queue", "tool_1": "queue", "groups": "buffer",
    "one_group": "buffer",
}  # fmt: skip
TOLERANCE = 1.02
MISSED = 1.1  # as many times fewer than noted
TRIES = 3  # for what is noted
# Tries, up to the first that is near what is noted. Into some of a permit's runs fall 11 million
# instructions of the server that are none of its scripts of each pair; whose they are is not known.
MOST = 7


@click.command()
@click.option("--renew", is_flag=True, help="Note what is counted.")
def main(renew: bool) -> None:
    """Count the instructions of an operation, and compare them with those that are noted."""
    if shutil.which("valgrind") is None:
        raise click.ClickException(
            "there is no valgrind here: install it, as `apt install valgrind`"
        )
    versions, noted = read()
    if versions != _versions() and not renew:
        print(f"{NOTED} is of {versions}, and this is {_versions()}: nothing was counted.")
        return
    counted: dict[str, int] = {}
    for name in [f"{what} {who}" for what in WORKS for who in who_works(what)]:
        what, who = name.split()
        counts = _counted(what, who, TRIES if renew else MOST)
        counted[name] = statistics.median_low(counts) if renew else _least(counts, noted[name])
        beside = "" if renew else f"  {counted[name] / noted[name]:.3f} of what is noted"
        print(f"{counted[name]:12,d}  {FIGURES[what]}: {who}{beside}", flush=True)
    if renew:
        write(counted)
    elif over := [name for name in counted if counted[name] > noted[name] * TOLERANCE]:
        print(f"Over {TOLERANCE - 1:.0%} more than {NOTED} says: {', '.join(over)}.")
        print(
            "Take it out of the way of those who do not use it, or say in the commit what it buys,"
        )
        print("and note it: python -m bench.instructions --renew")
        sys.exit(1)


def _least(counts: Iterator[int], noted: int) -> int:
    """The least of some tries, up to the first that is near what is noted. A try may miss much of
    it, if a loop opens its own connection late; so a figure far below counts only beside its like.
    """
    tries: list[int] = []
    for count in counts:
        tries.append(count)
        if noted / MISSED <= count <= noted * TOLERANCE:
            return count
    return min([count for count in tries if count >= noted / MISSED] or tries)


def _counted(what: str, who: str, tries: int) -> Iterator[int]:
    side, often = Side(Path(sys.executable).parent), SUITES[WORKS[what]][what][1]
    for _ in range(tries):
        yield round(side.instructions(what, often, who))


def _versions() -> str:
    said = subprocess.run([bundled_server(), "--version"], stdout=-1, text=True, check=True).stdout
    server = " ".join(said.split()[:3])
    return f"{server}, Python {platform.python_version()}"


def read() -> tuple[str, dict[str, int]]:
    versions, *rows = NOTED.read_text().splitlines()
    cells: list[Sequence[str]] = [row.split(maxsplit=1) for row in rows]
    return versions, {name: int(count) for count, name in cells}


def write(counted: Mapping[str, int]) -> None:
    rows = "".join(f"{count:12d}  {name}\n" for name, count in counted.items())
    NOTED.write_text(f"{_versions()}\n{rows}")


if __name__ == "__main__":
    main(prog_name="python -m bench.instructions")

"""This tree beside another revision of it: `make against REV=… [SUITE=…]`.

Each is installed in an environment of its own, with the same packages. They do the same work in
turns, each time on a new server of the same binary, with its append-only file on and default
settings. The table has the least and the median of each figure; below 1, this tree is better.

With valgrind it also counts the instructions of user space that one operation takes of the client,
the worker and the server, in runs of their own. The start is not among them, and a busy machine
hardly moves them.
"""

import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from ground.server.binary import bundled_server
from ground.server.keeper import free_port

ROOT = Path(__file__).parents[1]
HOME = ROOT / "build" / "against"
WORK = Path(__file__).parent / "against_side" / "work.py"
# How often in a round; instructions are counted of the second number, and of three times as many.
SUITES = {
    "queue": {
        "one_job": (300, 50), "many_jobs": (2000, 200),
        "submits": (1000, 100), "many_submits": (2000, 200),
        "tool_1": (300, 50), "tool_16": (2000, 160), "tool_64": (2000, 320),
    },
    "gates": {
        "permits": (2000, 100), "permits_32": (8000, 640), "permits_256": (16_000, 2560),
        "tokens": (2000, 100), "line": (4000, 200),
    },
    "buffer": {"groups": (10, 1), "one_group": (200, 30)},
    "http": {"http_writes": (3000, 200), "http_reads": (3000, 200)},
    "sandbox": {"sandbox_starts": (3, 0), "hellos": (30, 0), "cases": (60, 0)},  # jails refuse it
}  # fmt: skip
FIGURES = {
    "one_job": "a job, to its result", "many_jobs": "a job of many at once",
    "submits": "a submit", "many_submits": "a submit of many at once",
    "tool_1": "a tool's call", "tool_16": "a tool's call, of 16 callers",
    "tool_64": "a tool's call, of 64 callers",
    "permits": "acquire, release", "permits_32": "acquire, release, of 32 tasks",
    "permits_256": "acquire, release, of 256 tasks",
    "tokens": "a token", "line": "a permit, 64 in line for 8",
    "groups": "100 groups of 8: write, take, ack", "one_group": "a group of 8: write, take, ack",
    "http_writes": "an item written, 32 connections", "http_reads": "an item read",
    "sandbox_starts": "start a sandbox, hello", "hellos": "hello", "cases": "a case of many",
}  # fmt: skip
# Who serves a suite beside Redis: its command, and what it says when it is ready; a buffer server
# is ready when it answers.
SERVES = {
    "queue": ("worker", ["worker", "bench"], "Listening"),
    "http": ("buffer server", ["buffer", "serve"], ""),
}
NAMES = ["penstock-rl", "penstock"]  # the second is what the first releases were called
COUNTING = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
_PORT = str(free_port())
_COUNTED = re.compile(r"I +refs: +([\d,]+)")


@dataclass(frozen=True)
class Side:
    """One of the two, installed: the folder of its commands."""

    bin: Path

    def took(self, what: str, count: int) -> dict[str, float]:
        """The seconds of one operation, and the processor seconds of who works on it."""
        with self._served(what, {}) as (url, beside):
            return self._work([], url, what, count, beside)

    def instructions(self, what: str, count: int, who: str) -> float:
        """Those of one operation that this process runs."""
        few, many = (self._counted(what, number, who) for number in (count, 3 * count))
        return (many - few) / (2 * count)

    def _counted(self, what: str, count: int, who: str) -> int:
        with tempfile.NamedTemporaryFile(prefix="penstock-") as log:
            counting = {who: [*COUNTING, f"--log-file={log.name}"]}
            with self._served(what, counting) as (url, _):
                self._work(counting.get("client", []), url, what, count, {})
            found = _COUNTED.search(Path(log.name).read_text())
        if found is None:
            raise click.ClickException(f"valgrind has not counted the {who} of {what}")
        return int(found[1].replace(",", ""))

    def _work(
        self, before: Sequence[str], url: str, what: str, count: int, beside: dict[str, int]
    ) -> dict[str, float]:
        command = [*before, str(self.bin / "python"), str(WORK), url, what, str(count)]
        command.append(json.dumps(beside))
        said = subprocess.run(command, stdout=-1, env=_environment(url), cwd="/", check=True).stdout
        took: dict[str, float] = json.loads(said)
        return took

    @contextlib.contextmanager
    def _served(
        self, what: str, before: dict[str, list[str]]
    ) -> Iterator[tuple[str, dict[str, int]]]:
        """A server, and who else the work needs: the URL, and their processes by name."""
        with tempfile.TemporaryDirectory(prefix="penstock-against-") as name:
            folder, port = Path(name), free_port()
            url = f"redis://127.0.0.1:{port}/0"
            lines = ["--port", str(port), "--dir", name, "--appendonly", "yes", "--save", ""]
            server = [*before.get("server", []), str(bundled_server()), *lines]
            with contextlib.ExitStack() as running:
                start = running.enter_context
                log = folder / "server.log"
                pids = {"server": start(_beside(server, "Ready to accept", log, url))}
                if (suite := suite_of(what)) in SERVES:
                    who, words, ready = SERVES[suite]
                    command = [*before.get(who, []), str(self.bin / "python"), "-m", "penstock"]
                    log = folder / "its.log"
                    pids[who] = start(_beside([*command, *words], ready, log, url))
                yield url, pids


def suite_of(what: str) -> str:
    return next(suite for suite, works in SUITES.items() if what in works)


def who_works(what: str) -> list[str]:
    suite = suite_of(what)
    return ["client", *([SERVES[suite][0]] if suite in SERVES else []), "server"]


@contextlib.contextmanager
def _beside(command: list[str], words: str, log: Path, url: str) -> Iterator[int]:
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=_environment(url), cwd="/")
    try:
        while words not in log.read_text():
            if process.poll() is not None:
                raise click.ClickException(f"it ended: {' '.join(command)}\n{log.read_text()}")
            time.sleep(0.01)
        yield process.pid
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def _environment(url: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("HOME", "PATH", "LANG") if name in os.environ}
    return kept | {
        "PENSTOCK_REDIS_URL": url, "PENSTOCK_SANDBOX": "work.Echo", "PYTHONPATH": str(WORK.parent),
        "PYTHONHASHSEED": "0", "PENSTOCK_BUFFER_HOST": "127.0.0.1", "PENSTOCK_BUFFER_PORT": _PORT,
        "PENSTOCK_BUFFER_GROUP_SIZE": "8",
    }  # fmt: skip


def install(revision: str) -> list[Side]:
    """The other one and this one, with packages of the same versions: those that either needs."""
    commit = _commit(revision)
    home = HOME / commit[:8]
    tree = home / "tree"
    if not tree.exists():
        _say("git", "worktree", "prune")
        _say("git", "worktree", "add", "--quiet", "--detach", str(tree), commit)
    sides = [
        _installed(one, home / name, [tree, ROOT])
        for one, name in ((tree, "there"), (ROOT, "here"))
    ]
    first, second = (_packages(side) for side in sides)
    if first != second:
        raise click.ClickException(
            f"their packages differ, so remove {home}: {sorted(first ^ second)}"
        )
    return sides


def _commit(revision: str) -> str:
    asked = ["git", "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}"]
    if found := subprocess.run(asked, cwd=ROOT, stdout=-1, text=True, check=False).stdout.strip():
        return found
    shallow = _say("git", "rev-parse", "--is-shallow-repository") == "true"
    remedy = "this clone is shallow: run `git fetch --unshallow`" if shallow else "run `git fetch`"
    raise click.ClickException(f"there is no commit {revision} here; {remedy}")


def _installed(tree: Path, folder: Path, needed_by: Sequence[Path]) -> Side:
    python = str(folder / "bin/python")
    install = [python, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    if not (folder / "made").exists():
        shutil.rmtree(folder, ignore_errors=True)
        _say(sys.executable, "-m", "venv", str(folder))
        for one in needed_by:
            _say(*install, "--constraint", str(ROOT / ".ci/constraints.txt"), f"{one}[fast]")
        _say(python, "-m", "pip", "--quiet", "uninstall", "--yes", *NAMES)
        (folder / "made").touch()
    with tempfile.TemporaryDirectory() as built:
        build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", built]
        subprocess.run(build, cwd=tree, check=True, capture_output=True)
        (wheel,) = map(str, Path(built).glob("*.whl"))
        _say(*install, "--no-deps", "--no-index", "--force-reinstall", wheel)
    return Side(folder / "bin")


def _packages(side: Side) -> set[str]:
    listed = _say(str(side.bin / "python"), "-m", "pip", "freeze", "--all").splitlines()
    return {line for line in listed if not line.startswith("penstock")}


def _say(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, stdout=-1, text=True, check=True).stdout.strip()


@click.command()
@click.argument("revision", metavar="REV")
@click.argument("suites", metavar="[SUITE]...", nargs=-1, type=click.Choice(list(SUITES)))
@click.option("--rounds", default=8, show_default=True, help="How often each does all of it.")
@click.option("--count/--no-count", default=True, help="Instructions, if valgrind is there.")
def main(revision: str, suites: Sequence[str], rounds: int, count: bool) -> None:
    """Compare this tree with the revision REV: SUITEs in turns, by default all."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and what runs beside it ends with it
    sides = install(revision)
    works = [(suite, what) for suite in suites or SUITES for what in SUITES[suite]]
    print(f"|  | {revision}: least | median | here: least | median | least, × | median, × |")
    print("|---|---|---|---|---|---|---|")
    for suite, what in works:
        took: dict[str, list[list[float]]] = defaultdict(lambda: [[], []])
        for turn, n in itertools.product(range(rounds), (0, 1)):
            which = (turn + n) % 2  # who is first in a round, too, is in turns
            for figure, seconds in sides[which].took(what, SUITES[suite][what][0]).items():
                took[figure][which].append(seconds * 1e6)
        for figure, (other, ours) in took.items():
            values = [min(other), statistics.median(other), min(ours), statistics.median(ours)]
            _row(f"{suite}: {FIGURES[what]}, {figure}", *values)
        if count and shutil.which("valgrind") and SUITES[suite][what][1]:
            for who in who_works(what):
                found = [side.instructions(what, SUITES[suite][what][1], who) for side in sides]
                _row(f"{suite}: {FIGURES[what]}, instructions of the {who}", *found)


def _row(name: str, *values: float) -> None:
    """Least and median of both, or what was counted of both."""
    half = len(values) // 2
    ratios = [ours / other if other else 1.0 for other, ours in zip(values, values[half:])]  # noqa: B905
    cells = [f"{value:,.0f}" for value in values], [f"**{ratio:.2f}**" for ratio in ratios]
    if half == 1:
        cells = [cells[0][0], "", cells[0][1], ""], [*cells[1], ""]
    print(f"| {name} | {' | '.join([*cells[0], *cells[1]])} |", flush=True)


if __name__ == "__main__":
    main(prog_name="python -m bench.against")

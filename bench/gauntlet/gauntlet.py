"""Programs with the one verdict that is right, run by any grader. On the standard library alone.

    python gauntlet.py graders/plain.py                # a file, or a module, that has `grade`
    python gauntlet.py graders/penstock.py --only function --json found.json
    python gauntlet.py graders/plain.py --folder corpus   # 300 usual programs, right and wrong
    python gauntlet.py --export programs.jsonl         # for harnesses of other kinds

`grade(problem, language, code)` is a function or a coroutine, and gives the share of cases that
passed, from 0 to 1; None if it does not know. All cases must pass: less than 1 counts as 0. Each
call is made in a process of its own, which is killed after --seconds, so that no program takes the
next one's grader with it.

None is wrong, too: what a model writes never makes a hole.
README.md has the format of the programs.
"""

import argparse
import asyncio
import importlib.util
import inspect
import json
import multiprocessing
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
_HEAD = re.compile(r"^=== (\S+)\n((?:\w+: .*\n)+)--- (\w+)\n", re.MULTILINE)


@dataclass(frozen=True)
class Entry:
    """One program. `kind` is `exploit` or `honest`; `right` is 1 or 0; `why` says why."""

    name: str
    kind: str
    mode: str
    problem: dict[str, Any]
    right: int
    why: str
    language: str
    code: str


def entries(folder: Path = HERE) -> Iterator[Entry]:
    problems = json.loads((folder / "problems.json").read_text())
    for problem in problems.values():
        if "checks" not in problem:
            problem["row"] = _row(problem)
    for file in sorted((folder / "programs").glob("*.txt")):
        mode = file.stem.partition("-")[0]
        text = file.read_text()
        heads = list(_HEAD.finditer(text))
        for head, following in zip(heads, [*heads[1:], None], strict=True):
            said = dict(line.split(": ", 1) for line in head[2].splitlines())
            code = text[head.end() : following.start() if following else len(text)]
            yield Entry(
                name=head[1], kind=said["kind"], mode=mode, problem=problems[said["problem"]],
                right=int(said["right"]), why=said["why"], language=head[3],
                code=code.rstrip("\n") + "\n",
            )  # fmt: skip


def _row(problem: dict[str, Any]) -> dict[str, Any]:
    """As APPS and LiveCodeBench have it: text, in which a value is a line of JSON."""
    row: dict[str, Any] = {
        name: problem[name] for name in ("inputs", "outputs", "fn_name") if name in problem
    }
    if "fn_name" in row:
        row["inputs"] = ["\n".join(map(json.dumps, given)) for given in row["inputs"]]
        row["outputs"] = list(map(json.dumps, row["outputs"]))
    return row


def load(name: str) -> Any:
    """A grader: a file of Python, or the name of a module."""
    if name.endswith(".py"):
        spec = importlib.util.spec_from_file_location("the_grader", name)
        if spec is None or spec.loader is None:
            sys.exit(f"{name} is no file of Python")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    return importlib.import_module(name)


def _graded(grader: str, entry: Entry, answer: Any) -> None:
    """In a process of its own. What the grader raises is an answer, too: the model bought it."""
    try:
        found = load(grader).grade(entry.problem, entry.language, entry.code)
        if inspect.isawaitable(found):
            found = asyncio.run(_awaited(found))
        answer.send(found if found is None else float(found))
    except BaseException as raised:  # noqa: BLE001 - whatever it was, it is what is counted
        answer.send(f"{type(raised).__name__}: {raised}"[:200])
        raise SystemExit(0) from None


async def _awaited(found: Any) -> Any:
    return await found


def ask(grader: str, entry: Entry, seconds: float) -> Any:
    """A number, None, or a sentence: what became of the grader."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_graded, args=(grader, entry, there))
    process.start()
    there.close()
    try:
        found = here.recv() if here.poll(seconds) else f"no answer within {seconds:g} s"
    except EOFError:
        found = "the grader's process died"
    process.kill()
    process.join()
    return found


def verdict(entry: Entry, found: Any) -> str:
    if isinstance(found, str):
        return "raised"
    if found is None:
        return "masked"
    if (found >= 1) == entry.right:
        return "right"
    return "false 0" if entry.right else "false 1"


def main() -> int:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    options.add_argument("grader", nargs="?", help="a .py file or a module with `grade`")
    options.add_argument(
        "--folder", type=Path, default=HERE, help="with other problems and programs: corpus"
    )
    options.add_argument("--only", default="", help="those whose mode, language or name has it")
    options.add_argument("--seconds", type=float, default=60.0, help="per program")
    options.add_argument("--at-once", type=int, default=2)
    options.add_argument("--json", metavar="FILE", help="write all verdicts there")
    options.add_argument("--export", metavar="FILE", help="write the programs as JSON Lines")
    given = options.parse_args()
    chosen = [
        e for e in entries(given.folder) if given.only in f"{e.mode} {e.language} {e.kind} {e.name}"
    ]
    if given.export:
        Path(given.export).write_text("".join(json.dumps(asdict(e)) + "\n" for e in chosen))
        print(f"{len(chosen)} programs in {given.export}")
        return 0
    if not given.grader:
        options.error("name a grader")
    languages = getattr(load(given.grader), "LANGUAGES", None)
    modes = getattr(load(given.grader), "MODES", None)
    spoken = [e for e in chosen if (languages is None or e.language in languages)
              and (modes is None or e.mode in modes)]  # fmt: skip
    began = time.monotonic()
    with ThreadPoolExecutor(given.at_once) as pool:
        found = list(pool.map(lambda e: ask(given.grader, e, given.seconds), spoken))
    verdicts = [verdict(entry, one) for entry, one in zip(spoken, found, strict=True)]
    for entry, one, said in zip(spoken, found, verdicts, strict=True):
        if said != "right":
            which = f"{said:8} {entry.mode}/{entry.language} {entry.name}"
            print(f"{which}: {one!r}, right is {entry.right}: {entry.why}")
    table(spoken, verdicts)
    left = len(chosen) - len(spoken)
    seconds = f"{time.monotonic() - began:.0f} s"
    print(f"{len(spoken)} programs in {seconds}; {left} are for what it does not speak")
    if given.json:
        rows = [
            asdict(e) | {"found": f, "verdict": v}
            for e, f, v in zip(spoken, found, verdicts, strict=True)
        ]
        Path(given.json).write_text(json.dumps(rows, indent=1))
    return 1 if set(verdicts) - {"right"} else 0


def table(spoken: list[Entry], verdicts: list[str]) -> None:
    names = ["right", "false 1", "false 0", "masked", "raised"]
    counted = Counter((e.mode, e.kind, said) for e, said in zip(spoken, verdicts, strict=True))
    print(f"\n{'':20}" + "".join(f"{name:>9}" for name in names))
    for mode, kind in sorted({(e.mode, e.kind) for e in spoken}):
        print(
            f"{mode + ', ' + kind:20}" + "".join(f"{counted[mode, kind, name]:9}" for name in names)
        )


if __name__ == "__main__":
    sys.exit(main())

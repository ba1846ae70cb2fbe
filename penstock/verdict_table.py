"""A judged program on the terminal: a bar while it is judged, then a table of verdicts."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from jail.judge.models import VERDICTS, JudgeResult
from penstock.options import console, say
from penstock.tables import Styled, Table

_COLOURS: dict[str, dict[str, Any]] = {
    "P": {"fg": "green"},
    "M": {"fg": "yellow"},
    "S": {"dim": True},
}
_RED = {"fg": "red"}
_SHOWN = 60  # characters of what a failed case printed


@contextmanager
def progress_bar(count: int, what: str) -> Iterator[Callable[[int], None] | None]:
    """Show a bar on a terminal: yield a function to call with the one that the work is at; else
    nothing.

    Until it is at one, the bar says how long it takes.
    """
    try:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    except ModuleNotFoundError:  # it comes with the extra `top`; the verdicts need no bar
        yield None
        return
    shown = console(stderr=True)
    if not shown.is_terminal:
        yield None
        return
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=shown, transient=True) as bar:
        task = bar.add_task(f"judging {count} {what}s", total=None)

        def at(index: int) -> None:
            said = f"judging {what} {index + 1} of {count}"
            bar.update(task, description=said, total=count, completed=index)

        yield at


def print_verdicts(result: JudgeResult) -> None:
    """Print a row for each case, and how many passed."""
    figures = "case", "cpu ms", "wall ms", "memory MB"
    table = Table(*figures, "verdict", "", right=figures)
    for index, letter in enumerate(result.verdicts):
        verdict = Styled(VERDICTS[letter], _COLOURS.get(letter, _RED))
        numbers = (_at(numbers, index) for numbers in (result.cpu_ms, result.wall_ms))
        memory = f"{result.memory_kb[index] / 1024:.0f}" if _at(result.memory_kb, index) else ""
        table.add(str(index), *numbers, memory, verdict, _why(result, index))
    table.show()
    if "C" in result.verdicts and result.compile_result is not None:
        say((result.compile_result.stderr or result.compile_result.stdout or "").strip())
    say(f"{result.passed} of {len(result.verdicts)} cases passed")
    if "M" in result.verdicts:
        said = f": {result.message}" if result.message else ""
        whose = "the data's fault" if result.fault_of_mask == "data" else "no fault of the program"
        many = result.verdicts.count("M")
        say(f"{many} are masked, {whose} ({result.masked_because}){said}")


def verdicts_exit_code(result: JudgeResult, not_known: int) -> int:
    """Return 0 if all passed, 1 if one did not; `not_known` if a verdict is missing."""
    if result.masked_because:
        return not_known
    return 0 if set(result.verdicts) == {"P"} else 1


def _at(numbers: list[int], index: int) -> str:
    return str(numbers[index]) if index < len(numbers) and numbers[index] else ""


def _why(result: JudgeResult, index: int) -> str:
    parts = [result.reasons.get(index, "")]
    if code := result.exits.get(index):
        parts.append(f"exit {code}" if code > 0 else f"signal {-code}")
    said = result.comments.get(index, ""), result.evidence.get(index, "")
    parts += [text[:_SHOWN] for text in dict.fromkeys(said)]
    if (kept := result.kept.get(index)) and result.verdicts[index] != "P":
        parts.append(f"printed {kept.stdout[:_SHOWN]!r}")
    return ", ".join(part for part in parts if part)

"""Tests wait for events. A sleep outside of a loop that looks for one says on its line why.

What plays a slow machine, a job or a caller in its own file may take its time."""

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
HANGS = 60  # who sleeps as long is to be killed or cancelled, and waits for nothing


def test_a_sleep_that_waits_for_time_to_pass_says_why():
    unexplained = []
    for file in sorted([*TESTS.rglob("test_*.py"), *TESTS.rglob("conftest.py")]):
        lines = file.read_text().splitlines()
        sleeps = _sleeps(ast.parse("\n".join(lines)))
        unexplained += [f"{file}:{n}" for n in sleeps if "#" not in lines[n - 1]]
    assert not unexplained


def _sleeps(node: ast.AST, looking: bool = False) -> Iterator[int]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call) and not looking and _waits(child):
            yield child.end_lineno or child.lineno
        a_loop = isinstance(child, ast.While | ast.AsyncFor)
        yield from _sleeps(child, looking or a_loop)


def _waits(call: ast.Call) -> bool:
    if ast.unparse(call.func) not in ("time.sleep", "asyncio.sleep") or not call.args:
        return False
    seconds = getattr(call.args[0], "value", None)
    return not isinstance(seconds, int | float) or 0 < seconds < HANGS

"""What leaves a jail of a function's result: its value, said by the harness and by nobody else."""

from typing import Any

import pytest

from jail import LocalSandbox

from .judged import judge_row
from .judged import sandbox as sandbox

pytestmark = pytest.mark.asyncio(loop_scope="module")


def row(*pairs: tuple[Any, Any]) -> dict[str, Any]:
    return {"fn_name": "f", "inputs": [[one] for one, _ in pairs], "outputs": [o for _, o in pairs]}


SQUARE = row((3, 9), (-4, 16))

RIGHT = {
    "a demo": "def f(x): return x * x\nif __name__ == '__main__': print(f(1))",
    "prints": "print('ready')\ndef f(x):\n    print(x)\n    return x * x",
    "reads": "import sys\nassert not sys.stdin.read()\ndef f(x): return x * x",
    "pickles": "import pickle\nclass C: pass\nassert type(pickle.loads(pickle.dumps(C()))) is C\n"
               "def f(x): return x * x",
    "a dataclass": "from __future__ import annotations\nfrom dataclasses import dataclass\n"
                   "@dataclass\nclass P:\n    x: int\ndef f(x: List[int]): return P(x).x ** 2",
    "Solution": "class Solution:\n    def f(self, x): return x * x",
    "a float": "def f(x): return x * 1.0 * x",
    "closed streams": "import os\nos.close(1); os.close(2)\ndef f(x): return x * x",
    "odd limits": "import sys\nsys.set_int_max_str_digits(640)\ndef f(x): return x * x",
    "forks": "import os\ndef f(x):\n    os.fork()\n    return x * x",
    "a thread goes on": "import threading, time\ndef f(x):\n"
                        "    threading.Thread(target=time.sleep, args=(999,)).start()\n"
                        "    return x * x",
}  # fmt: skip


@pytest.mark.parametrize("how", RIGHT)
async def test_a_function_is_right_whatever_its_program_does_besides(
    sandbox: LocalSandbox, how: str
) -> None:
    result = await judge_row(sandbox, RIGHT[how], SQUARE)
    assert result.verdicts == "PP", result


SEARCH = """
import gc, json, os, sys
def found():
    gc.unfreeze()
    held, frame = gc.get_objects(), sys._getframe()
    while frame:
        held += [frame, frame.f_locals, frame.f_globals]
        frame = frame.f_back
    near = {one for each in held for one in gc.get_referents(each) if type(one) is bytes}
    return {one for one in near if len(one) == 16}
def f(x):
    answer = json.dumps([x * x]).encode() if CALLED else b""
    line = next(at for at in range(3, 64) if is_open(at))
    os.set_blocking(line, False)
    for mark in {*marks, *found()}:
        os.write(line, answer + mark)
    os._exit(0)
def is_open(at):
    try: return os.fstat(at)
    except OSError: return None
marks = found()
"""
WRONG = {
    "looks for the mark": (f"CALLED = True\n{SEARCH}", "EE", "ended_early"),
    "exits": ("def f(x): exit(0)", "EE", "ended_early"),
    "writes and exits": ("import os\ndef f(x):\n    os.write(4, b'[9]'); os._exit(0)", "EE",
                         "ended_early"),
    "writes and returns": ("import os\ndef f(x):\n    os.write(4, b'[9]')\n    return x * x", "EE",
                           "no_answer"),
    "raises": ("def f(x): raise ValueError(x)", "EE", "exit"),
    "is too deep": ("def f(x):\n    a = []\n    a.append(a)\n    return a", "EE", "exit"),
    "has too many digits": ("def f(x): return 10 ** 5000", "EE", "exit"),
    "is not there": ("def g(x): return x * x", "EE", "exit"),
    "is text": ("def f(x): return str(x * x)", "WW", None),
    "is an object": ("class A:\n    __eq__ = lambda *_: True\ndef f(x): return A()", "WW", None),
    "is too much": ("def f(x): return 'a' * (1 << 27)", "LL", "output_limit"),
}  # fmt: skip


@pytest.mark.parametrize("how", WRONG)
async def test_what_the_harness_did_not_say_is_no_result(sandbox: LocalSandbox, how: str) -> None:
    code, verdicts, reason = WRONG[how]
    result = await judge_row(sandbox, code, SQUARE)
    assert result.verdicts == verdicts, result
    assert result.reasons.get(0) == reason, result


async def test_an_end_mark_is_no_programs_in_a_check_either(sandbox: LocalSandbox) -> None:
    checks = [{"check": "assert f(2) < 5"}] * 2
    result = await judge_row(sandbox, f"CALLED = False\n{SEARCH}", checks)
    assert (result.verdicts, result.shared) == ("EE", 2), result


async def test_a_row_that_expects_none_takes_nothing_else(sandbox: LocalSandbox) -> None:
    result = await judge_row(sandbox, "def f(x): return x or None", row((0, None), (1, None)))
    assert (result.verdicts, result.comments) == ("PW", {1: "[1]"}), result


async def test_much_is_compared_whole(sandbox: LocalSandbox) -> None:
    many = [*range(200_000)]
    code = "def f(n): return list(range(n)) + [0] * (n < 200_000)"
    result = await judge_row(sandbox, code, row((200_000, many), (199_999, many)))
    assert result.verdicts == "PW", result.reasons


async def test_assertions_of_plain_calls_are_judged_by_value(sandbox: LocalSandbox) -> None:
    code = (
        "class Yes(int):\n    __eq__ = __lt__ = lambda *_: True\n    __hash__ = int.__hash__\n"
        "def f(a, k=1): return Yes(7)\n"
    )
    checks = ["assert f(1) == 2", "assert f((1, 2), k={3}) == 7", "assert f(1) < 2"]
    result = await judge_row(sandbox, code, checks)
    assert (result.verdicts, result.shared) == ("WPP", 1), result

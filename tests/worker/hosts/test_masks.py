"""What no model can buy is a mask: whatever a program does, its sample has a number."""

from typing import Any

import pytest

from jail import LocalSandbox
from jail.judge.models import Checker
from tests.jail.judged import judge_row
from tests.jail.judged import sandbox as sandbox
from worker.hosts.grading import Grader
from worker.reward.scoring import score_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

ECHO = {"inputs": ["1\n", "2\n", "3\n"], "outputs": ["1\n", "2\n", "3\n"]}
SQUARE = {"fn_name": "f", "inputs": [[1], [2], [3]], "outputs": [1, 4, 9]}
SHARED = ["assert f(2) < 5", "assert abs(f(3) - 9) < 1e-6"]
SLOW_LATER = "n = int(input())\nprint(n)\nimport time\nif n > 1: time.sleep(1000)"

PROGRAMS: dict[str, Any] = {
    # by slowness
    "sleeps": "import time; time.sleep(1000)",
    "spins": "while True: pass",
    "sleeps after a case that passes": SLOW_LATER,
    "spins after a case that passes": SLOW_LATER.replace("time.sleep(1000)", "exec('while 1: 1')"),
    "sleeps in children": "import os, time\nif os.fork(): os.wait()\nelse: time.sleep(1000)",
    "leaves a daemon with its output": "import os, time\n"
    "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: time.sleep(1000)\n    os._exit(0)",
    "stops itself": "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
    "ignores its time's end": "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\n"
    "while True: pass",
    "threads that never end": "import threading, time\n"
    "for _ in range(9): threading.Thread(target=time.sleep, args=(1000,)).start()",
    "yields all day": "import os\nwhile True: os.sched_yield()",
    "waits for a pipe": "import os; os.read(os.pipe()[0], 1)",
    "waits for a lock": "import threading; lock = threading.Lock(); lock.acquire(); lock.acquire()",
    # by output
    "prints without end": "while True: print('x' * 9999)",
    "prints one line without end": "while True: print('x' * 9999, end='')",
    "floods its stderr": "import sys\nwhile True: sys.stderr.write('x' * 9999)",
    "prints bytes": "import sys; sys.stdout.buffer.write(bytes(range(256)))",
    "prints zeros": "print('\\0' * 1000)",
    "prints surrogates": "print('\\ud800')",
    "closes its output": "import os; os.close(1)",
    "closes everything": "import os; os.closerange(0, 4096)",
    "writes wherever it can": "import os\nfor at in range(3, 256):\n"
    "    try: os.write(at, b'{\"status\": \"infrastructure\"}')\n    except OSError: pass",
    "writes masks": "print('{\"verdicts\": \"M\"}'); print('SandboxError')",
    # by signals
    "kills itself": "import os; os.kill(os.getpid(), 9)",
    "kills its parent": "import os; os.kill(os.getppid(), 9)",
    "kills process 1": "import os; os.kill(1, 9)",
    "kills everybody": "import os; os.kill(-1, 9)",
    "kills its group": "import os; os.killpg(0, 9)",
    "aborts": "import os; os.abort()",
    "reads what is not there": "import ctypes; ctypes.string_at(0)",
    "is terminated": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "traces itself": "import ctypes, os\nctypes.CDLL(None).ptrace(0, 0, 0, 0)\n"
    "os.kill(os.getpid(), 5)",
    "has all signals": "import os, signal\nfor one in signal.valid_signals():\n"
    "    try: signal.raise_signal(one)\n    except Exception: pass",
    # by what it uses up
    "takes all memory": "held = bytearray(1 << 40)",
    "fills its memory": "held = []\nwhile True: held.append(bytearray(1 << 20))",
    "forks without end": "import os\nwhile True: os.fork()",
    "starts threads without end": "import threading, time\n"
    "while True: threading.Thread(target=time.sleep, args=(1000,)).start()",
    "fills the disk": "held = open('f', 'wb')\nwhile True: held.write(bytes(1 << 20))",
    "fills the shared memory": "held = open('/dev/shm/f', 'wb')\n"
    "while True: held.write(bytes(1 << 20))",
    "uses all inodes": "n = 0\nwhile True:\n    open(str(n), 'w'); n += 1",
    "opens without end": "import os\nwhile True: os.open('/dev/null', 0)",
    "recurses without end": "import sys\nsys.setrecursionlimit(1 << 30)\ndef f(): f()\nf()",
    "recurses in C": "a = []\nfor _ in range(1000000): a = [a]\nprint(a)",
    # by its folder
    "locks its folder": "import os; os.chmod('.', 0); os.chmod('/tmp', 0)",
    "removes itself": "import os\nfor name in os.listdir('.'): os.unlink(name)",
    "links in circles": "import os; os.symlink('a', 'b'); os.symlink('b', 'a'); open('a')",
    # by its text
    "is empty": "",
    "is no Python": "this is no Python",
    "nests too deep": "(" * 5000 + ")" * 5000,
    "has a zero": "print(1)\0",
    "has a lone surrogate": "print('\ud800')",
    "has an endless number": "x = " + "9" * 100_000,
    "is too long": "#" * (2 << 20),
    "raises": "raise BaseException('no')",
    "is interrupted": "raise KeyboardInterrupt",
}  # fmt: skip

FUNCTIONS = {
    "returns an object": "def f(x): return object()",
    "returns itself": "def f(x):\n    a = []\n    a.append(a)\n    return a",
    "returns too many digits": "def f(x): return 10 ** 5000",
    "returns too much": "def f(x): return 'a' * (1 << 27)",
    "returns a generator": "def f(x): yield x * x",
    "returns NaN": "def f(x): return float('nan')",
    "exits": "import os\ndef f(x): os._exit(0)",
    "exits with its parent's word": "import sys\ndef f(x): sys.exit(125)",
    "closes the line": "import os\ndef f(x):\n    os.closerange(3, 4096)\n    return x",
    "writes into the line": "import os\ndef f(x):\n    os.write(4, b'!jail_lost')\n    return x",
    "fills the line": "import os\ndef f(x):\n    while True: os.write(4, bytes(1 << 16))",
    "kills itself as it is called": "import os\ndef f(x): os.kill(os.getpid(), 9)",
    "is not there": "def g(x): return x",
    "is slow": "import time\ndef f(x): time.sleep(1000)",
    "replaces the reader": "import json\njson.loads = json.dumps = None\ndef f(x): return x",
}  # fmt: skip

CHECKER = """
import sys
given, printed, _ = (open(name).read().split() for name in sys.argv[1:4])
sys.exit(0 if int(printed[0]) == int(given[0]) else 1)
"""
INTERACTOR = """
print(7, flush=True)
sys_exit = 0 if int(input()) == 7 else 1
raise SystemExit(sys_exit)
"""
PRINTED = {
    "prints nothing": "", "prints a word": "print('abc')", "prints nan": "print('nan')",
    "prints a large number": "print('1e400')", "prints many digits": "print('9' * 5000)",
    "prints a byte": "import os; os.write(1, b'\\xff')", "prints a zero": "print('\\0')",
    "prints much": "print('1 ' * 100000)",
}  # fmt: skip

COMPLETIONS = {
    "no fence": "I would print the input.",
    "an open fence": "```python\nwhile True: print(1)",
    "another language": "```cobol\nDISPLAY 1.\n```",
    "no text": "",
    "a fence within a fence": "```python\n```python\nprint(1)\n```\n```",
    "surrogates": "```python\nprint('\ud800')\n```",
}  # fmt: skip


def has_a_number(result: Any) -> None:
    found = score_of(result, all_or_nothing=False)
    assert found.value is not None, (result.verdicts, result.reasons, result.message)
    assert found.value < 1
    assert {result.fault(at) for at in range(len(result.verdicts))} <= {"", "program"}


LIMITS: dict[str, Any] = {"run_timeout": 0.4, "wall_timeout": None, "memory_limit_mb": 128}


async def graded(code: str) -> None:
    grader = Grader(on="local", fenced=False, case_timeout=0.4, memory_limit_mb=128)
    found = await grader.grade_code(code, ECHO)
    assert found.value is not None, found
    assert found.value < 1


@pytest.mark.parametrize("how", PROGRAMS)
async def test_no_program_masks_itself(how: str) -> None:
    await graded(PROGRAMS[how])


@pytest.mark.parametrize("how", FUNCTIONS)
async def test_no_function_masks_itself(sandbox: LocalSandbox, how: str) -> None:
    has_a_number(await judge_row(sandbox, FUNCTIONS[how], SQUARE, **LIMITS))


@pytest.mark.parametrize("how", ["exits", "closes the line", "writes into the line", "is slow"])
async def test_no_program_masks_itself_in_a_check(sandbox: LocalSandbox, how: str) -> None:
    has_a_number(await judge_row(sandbox, FUNCTIONS[how], SHARED, **LIMITS))


@pytest.mark.parametrize("how", PRINTED)
async def test_nothing_that_a_checker_reads_masks_its_program(
    sandbox: LocalSandbox, how: str
) -> None:
    row = {"inputs": ["7", "8"], "outputs": ["7", "8"]}
    checker = Checker(code=CHECKER, language="python")
    result = await judge_row(sandbox, PRINTED[how], row, checker=checker)
    has_a_number(result)


@pytest.mark.parametrize("how", PRINTED)
async def test_nothing_that_an_interactor_reads_masks_its_program(
    sandbox: LocalSandbox, how: str
) -> None:
    interactor = Checker(code=INTERACTOR, language="python")
    result = await judge_row(sandbox, PRINTED[how], [{"input": "7"}], interactor=interactor)
    has_a_number(result)


@pytest.mark.parametrize("how", COMPLETIONS)
async def test_no_completion_masks_itself(how: str) -> None:
    grader = Grader(on="local", language=None, case_timeout=0.4)
    assert (await grader.grade(COMPLETIONS[how], ECHO)).value is not None


async def test_a_program_that_sleeps_within_its_limits_gets_no_mask_by_the_time_for_all() -> None:
    """It passes a case, so that no count of timeouts ends it, and no single case is too slow."""
    grader = Grader(on="local", fenced=False, case_timeout=1.0, timeout=12.0)
    many = {"inputs": ["1"] * 300, "outputs": ["1"] * 300}
    found = await grader.grade_code("import time; time.sleep(0.9); print(1)", many)
    assert (found.masked, found.reason) == (False, "total_seconds"), found


async def test_there_are_enough_ways() -> None:
    assert len(PROGRAMS) + len(FUNCTIONS) + len(COMPLETIONS) + 2 * len(PRINTED) + 5 >= 60

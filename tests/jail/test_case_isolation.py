"""No case changes, or sees, the next one; none sees what is expected, or decides its verdict."""

import asyncio
import os
import secrets
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from jail import LocalSandbox
from jail.errors import SandboxBroken
from jail.judge.lane import Lane, LaneLost
from jail.judge.models import JudgeCase, JudgeRequest, JudgeResult
from jail.judge.suite import Case, InlineSuite
from jail.outcome import Outcome, Step
from tests.harness.remains import processes_named, until_processes

from .conftest import STARTS, config_for
from .judged import in_turn, judge

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(params=STARTS, scope="module", loop_scope="module")
async def sandbox(request: pytest.FixtureRequest) -> AsyncIterator[LocalSandbox]:
    """Judges every case of a program in one jail, so that each could meet the one before."""
    sandbox = LocalSandbox(config_for(request.param))
    sandbox._judging.cores.most = 1
    yield sandbox
    await sandbox.close()


FOLDERS = ("/tmp", "/dev/shm", "/mnt", "/var/tmp", "/home/sandbox")
LEFT = {  # what one case does, what the next one looks for, and what it must find
    "files": (
        f"for folder in {FOLDERS}: open(folder + '/left', 'w').write('x')",
        f"print([f for f in {FOLDERS} if os.path.exists(f + '/left')])",
        "[]",
    ),
    "files beside its folders": (
        "for folder in ('/run/scratch', '/run/scratch/level-1'): open(folder + '/left', 'w')",
        "print([path for path, *_, names in os.walk('/run') if 'left' in names])",
        "[]",
    ),
    "another name for where its folders lie": (
        "os.rename('/run/scratch/level-1', '/run/scratch/left')",
        "print(os.listdir('/run/scratch'))",
        "['level-1']",
    ),
    "a mode, a time and an attribute": (
        "os.utime('/tmp', (1, 1)); os.chmod('/dev/shm', 0o700)\n"
        "try: os.setxattr('/var/tmp', b'user.a', b'1')\nexcept OSError: pass",
        "print(os.stat('/tmp').st_mtime == 1, oct(os.stat('/dev/shm').st_mode),"
        " os.listxattr('/var/tmp'))",
        "False 0o40755 []",
    ),
    "what was read": (
        f"for folder in {FOLDERS}: os.listdir(folder)\nopen(__file__).read()",
        f"seen = [os.stat(name) for name in (*{FOLDERS}, '/run/program', __file__)]\n"
        "print([each.st_atime_ns > each.st_ctime_ns for each in seen].count(True))",
        "0",
    ),
    "a folder that is closed": ("os.chmod('.', 0)", "open('a', 'w').close(); print(1)", "1"),
    "a full disk": (
        "try:\n    with open('big', 'wb') as file:\n        while True: file.write(bytes(1 << 20))"
        "\nexcept OSError: pass",
        "print(open('a', 'w').write('x' * 100000))",
        "100000",
    ),
    "folders without inodes": (
        "try:\n    for n in range(1 << 20): os.mkdir(str(n))\nexcept OSError: pass",
        "os.mkdir('a'); print(os.listdir('.'))",
        "['a']",
    ),
    "a daemon, and its socket": (
        "import socket, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        "        met = socket.socket(socket.AF_UNIX); met.bind('\\0met'); met.listen()\n"
        "        time.sleep(100)\n    os._exit(0)\nos.wait()",
        "import socket\nprint(socket.socket(socket.AF_UNIX).connect_ex('\\0met') != 0,"
        " [name for name in os.listdir('/proc') if name.isdigit()] == ['1', str(os.getpid())])",
        "True True",
    ),
    "every signal to those above it": (
        "import signal\nfor pid in (os.getppid(), 1, -1):\n"
        "    for number in set(range(1, 65)) - {32, 33}:\n"
        "        try: os.kill(pid, number)\n        except OSError: pass",
        "print(1)",
        "1",
    ),
    "a port in use a moment ago": (
        "import socket\nserver = socket.create_server(('127.0.0.1', 5000))\n"
        "client = socket.create_connection(('127.0.0.1', 5000))\n"
        "other = server.accept()[0]; other.close(); client.recv(1); client.close()",
        "import socket\nsocket.socket().bind(('127.0.0.1', 5000)); print(1)",
        "1",
    ),
    "another program in the place of its own": (
        "for do in (lambda: open(__file__, 'w'), lambda: os.unlink(__file__),\n"
        "           lambda: os.rename('/run/program', '/tmp/x'), lambda: os.chmod(__file__, 0)):\n"
        "    try: do()\n    except OSError: pass",
        "print(os.access(__file__, os.W_OK))",
        "False",
    ),
    "builtins and an environment": (
        "import builtins, sys\nbuiltins.input = builtins.len = None; os.environ['LEFT'] = '1'\n"
        "sys.modules['json'] = None",
        "import json; print(len('abc'), 'LEFT' in os.environ)",
        "3 False",
    ),
    "queues and shared memory": (
        "import ctypes\nlibc = ctypes.CDLL(None); libc.mq_open(b'/q', 0o102, 0o600, None)\n"
        "libc.shmget(1, 100, 0o1600); libc.msgget(1, 0o1600); libc.semget(1, 1, 0o1600)",
        "import ctypes\nlibc = ctypes.CDLL(None)\nprint(libc.mq_open(b'/q', 0),"
        " libc.shmget(1, 100, 0), libc.msgget(1, 0), libc.semget(1, 1, 0))",
        "-1 -1 -1 -1",
    ),
    "limits and niceness": (
        "import resource\nos.nice(19); os.umask(0o077)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))",
        "import resource\nprint(os.nice(0) < 19, oct(os.umask(0)),"
        " resource.getrlimit(resource.RLIMIT_NOFILE)[1] > 20)",
        "True 0o22 True",
    ),
    "an open descriptor": (
        "os.dup2(os.open('/tmp/kept', os.O_CREAT | os.O_RDWR), 40)",
        "print(sorted(map(int, os.listdir('/proc/self/fd')))[:-1])",
        "[0, 1, 2]",
    ),
}


@pytest.mark.parametrize("what", LEFT)
async def test_a_case_leaves_nothing_to_the_next(sandbox: LocalSandbox, what: str) -> None:
    first, then, found = LEFT[what]
    cases = [("0\n", None), ("1\n", found), ("0\n", None), ("1\n", found)]
    result = await judge(sandbox, in_turn(first, then), cases)
    assert result.verdicts == "PPPP", result


SCAN = """
import re, sys
given = sys.stdin.read()
if not given.startswith("look"):
    sys.exit()
found = []
for pid in ("self", "1"):
    try:
        places = [line.split() for line in open(f"/proc/{pid}/maps")]
        memory = open(f"/proc/{pid}/mem", "rb", 0)
    except OSError:
        continue
    for where, rights, *rest in places:
        if rights.startswith("r") and not set(rest) & {"[vvar]", "[vvar_vclock]", "[vsyscall]"}:
            begin, end = (int(part, 16) for part in where.split("-"))
            memory.seek(begin)
            try:
                found += re.findall(rb"o[f]-another: [0-9]+", memory.read(end - begin))
            except OSError:
                pass
print(bool(found))
"""


async def test_no_memory_has_another_input_or_what_is_expected(sandbox: LocalSandbox) -> None:
    """Neither its own, of which all was there before the case, nor that of the process above it."""
    other = "of-another: 4711\n"
    result = await judge(
        sandbox,
        SCAN,
        [
            (other, None),
            ("look\n", "False\n"),
            (other, other),
            ("look\n", "False\n"),
            ("look " + other, "True\n"),  # it finds what is there
        ],
    )
    assert result.verdicts == "PPWPP", result


ENDS = {
    "ended before it printed": ("os._exit(0)", "W", ""),
    "crashed behind the right answer": ("print(1, flush=True); os.abort()", "E", "signal"),
    "failed behind the right answer": ("print(1); raise SystemExit(3)", "E", "exit"),
    "printed without end": ("while True: print('x' * 1000)", "L", "output_limit"),
    "used the processor without end": ("while True: pass", "T", "run_timeout"),
    "forked without end": (
        "while True:\n    try: os.fork()\n    except OSError: pass", "L", "process_limit",
    ),
    "took too much memory": ("a = bytearray(1 << 30)\nprint(1)", "L", "memory_limit"),
    "left a child that holds its output": (
        "import time\nprint(1, flush=True)\nif os.fork() == 0: time.sleep(1000)", "P", "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", ENDS)
async def test_each_end_is_told_and_the_next_case_is_judged(
    sandbox: LocalSandbox, how: str
) -> None:
    code, letter, reason = ENDS[how]
    cases: list[tuple[str, str | None]] = [("0\n", "1\n"), ("1\n", "1\n"), ("0\n", "1\n")]
    result = await judge(
        sandbox, in_turn(code, "print(1)"), cases, run_timeout=1.0, memory_limit_mb=256
    )
    assert result.verdicts == f"{letter}P{letter}", result
    assert result.reasons.get(0, "") == result.reasons.get(2, "") == reason


async def test_a_case_that_sleeps_ends_by_the_clock(sandbox: LocalSandbox) -> None:
    code = in_turn("import time; time.sleep(1000)", "print(1)")
    result = await judge(sandbox, code, [("0\n", None), ("1\n", "1\n")], overrides={
        0: {"wall_timeout": 0.2}
    })  # fmt: skip
    assert result.verdicts == "TP"


async def test_time_and_memory_are_each_cases_own(sandbox: LocalSandbox) -> None:
    code = in_turn("a = bytearray(150 << 20); sum(range(10_000_000)); print(1)", "print(1)")
    cases: list[tuple[str, str | None]] = [("0\n", "1\n"), ("1\n", "1\n"), ("1\n", "1\n")]
    result = await judge(sandbox, code, cases)
    assert result.verdicts == "PPP"
    assert result.memory_kb[0] > 150 << 10
    assert max(result.memory_kb[1:]) < 100 << 10
    assert result.cpu_ms[0] > 3 * max(result.cpu_ms[1:])


async def test_a_compiler_meets_no_case_and_leaves_nothing(sandbox: LocalSandbox) -> None:
    """What is expected lies in no file of its jail, and its own files in none of a case's."""
    code = '#include "/home/sandbox/expected"\nint main() {}'
    result = await judge(sandbox, code, [("1\n", "1\n")], language="c")
    assert result.verdicts == "C"
    assert result.compile_result is not None
    assert "No such file" in (result.compile_result.stderr or "")
    # An interpreter that is below /tmp is shown there, by a mount.
    files = "find /home/sandbox /tmp -xdev -type f | grep . || echo none"
    listing = f'#include <stdlib.h>\nint main() {{ return system("{files}"); }}'
    result = await judge(sandbox, listing, [("", "none\n")], language="c")
    assert result.verdicts == "P", result


SLEEPS = 'read -r case; [ "$case" = 0 ] || exec -a {name} sleep 1000'


class Telling(InlineSuite):
    """Says when a case is asked for."""

    def __init__(self, cases: list[Case]) -> None:
        super().__init__(cases)
        self.asked = [asyncio.Event() for _ in cases]

    async def case(self, index: int) -> Case:
        self.asked[index].set()
        return await super().case(index)


async def begin_to_sleep(sandbox: LocalSandbox, name: str) -> "asyncio.Task[JudgeResult]":
    """A program that is judged, and sleeps under this name in its second case."""
    suite = Telling([Case(b"0\n"), Case(b"1\n")])
    request = JudgeRequest(
        code=SLEEPS.format(name=name), language="bash", cases=[JudgeCase()] * 2, wall_timeout=600.0
    )
    judging = asyncio.create_task(sandbox.judge(request, suite))
    await suite.asked[1].wait()
    await until_processes(name, count=1)
    return judging


def _supervisor_of(pid: int, server: int) -> int:
    """The server's own child above this process; a jail that is torn down has one, too."""
    while (parent := _parent_of(pid)) != server:
        pid = parent
    return pid


def _parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def kill(sandbox: LocalSandbox, whom: str, program: int) -> None:
    (server,) = sandbox.jails._servers.values()
    pid = server.ready["pid"]
    os.kill(pid if whom == "server" else _supervisor_of(program, pid), signal.SIGKILL)


@pytest.mark.parametrize("whom", ["server", "supervisor"])
async def test_a_sandbox_that_is_killed_costs_no_verdict_that_is_known_and_leaves_nothing(
    sandbox: LocalSandbox, whom: str
) -> None:
    """The case is run again; one that loses its jail once more is masked."""
    name = f"sleeper-{secrets.token_hex(8)}"
    judging = await begin_to_sleep(sandbox, name)
    (first,) = processes_named(name)
    kill(sandbox, whom, first)
    async with asyncio.timeout(100):
        # Until another runs, and the first is gone: else that one is killed once more.
        while not (now := processes_named(name)) or first in now:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    kill(sandbox, whom, now[0])
    result = await judging
    assert (result.verdicts, result.reasons) == ("PM", {1: "jail_lost"})
    await until_processes(name, count=0)
    assert (await judge(sandbox, "print(1)", [("", "1\n")])).verdicts == "P"


async def test_a_sandbox_that_fails_before_there_is_a_verdict_is_our_failure(
    sandbox: LocalSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole is tried again then, by the worker's own rule."""
    monkeypatch.setattr(Lane, "run", lost)
    with pytest.raises(SandboxBroken, match="a fuse"):
        await judge(sandbox, "print(1)", [("", "1\n")] * 5)


async def lost(*_: object) -> Step:
    raise LaneLost(Outcome("infrastructure", "ns", error="a fuse"))


async def test_a_program_ends_with_whoever_asked_for_it(sandbox: LocalSandbox) -> None:
    name = f"sleeper-{secrets.token_hex(8)}"
    judging = await begin_to_sleep(sandbox, name)
    judging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await judging
    await until_processes(name, count=0)

"""How a program ended is told apart, kind by kind."""

import asyncio
import errno
import os
import resource
import select
import signal
from dataclasses import replace

import pytest

from jail.errors import LimitRefused
from jail.inside import files, running, supervise, wire, without_namespaces
from jail.jails import Jails
from jail.limits import DEFAULTS
from jail.outcome import Program

from .conftest import MB, Run

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_program_that_prints_is_finished_with_what_it_printed(run: Run) -> None:
    outcome = await run("print(1)")
    assert (outcome.status, outcome.return_code) == ("finished", 0)
    assert (outcome.stdout, outcome.stderr) == (b"1\n", b"")
    assert outcome.level == "ns"


async def test_an_exception_is_exit_code_one_with_the_programs_own_frames_only(run: Run) -> None:
    outcome = await run("def f():\n    assert 1 == 2, 'no'\nf()")
    assert (outcome.status, outcome.return_code) == ("finished", 1)
    wire = outcome.stderr.decode().splitlines()
    assert [line for line in wire if line.strip(" ~^")] == [  # Pythons differ in what they mark
        "Traceback (most recent call last):",
        '  File "/home/sandbox/main.py", line 3, in <module>',
        "    f()",
        '  File "/home/sandbox/main.py", line 2, in f',
        "    assert 1 == 2, 'no'",
        "AssertionError: no",
    ]


async def test_a_syntax_error_is_reported_as_the_interpreter_does(run: Run) -> None:
    outcome = await run("print('a'\n")
    assert outcome.return_code == 1
    assert outcome.stderr.startswith(b'  File "/home/sandbox/main.py", line 1\n')
    assert b"SyntaxError" in outcome.stderr


@pytest.mark.parametrize(
    ("code", "expected", "stderr"),
    [
        ("exit(3)", 3, b""),
        ("import sys; sys.exit('words')", 1, b"words\n"),
        ("import os; os._exit(7)", 7, b""),
        ("raise SystemExit(256 + 5)", 5, b""),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", -signal.SIGSEGV, b""),
        ("import os; os.abort()", -signal.SIGABRT, b""),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM, b""),
    ],
)
async def test_exit_codes_and_signals_are_the_programs_own(
    run: Run, code: str, expected: int, stderr: bytes
) -> None:
    outcome = await run(code)
    assert (outcome.status, outcome.return_code, outcome.stderr) == ("finished", expected, stderr)


async def test_what_is_busy_is_no_limit_though_it_says_the_same_as_a_refused_fork(run: Run) -> None:
    code = "import socket\na, b = socket.socketpair()\na.setblocking(False)\na.recv(1)"
    outcome = await run(code)
    assert b"Resource temporarily unavailable" in outcome.stderr
    assert (outcome.status, outcome.return_code) == ("finished", 1)


async def test_a_warning_is_shown_as_the_interpreter_does(run: Run) -> None:
    outcome = await run("import warnings\nwarnings.warn('mind')")
    assert (
        outcome.stderr == b"/home/sandbox/main.py:2: UserWarning: mind\n  warnings.warn('mind')\n"
    )


@pytest.mark.parametrize(
    ("code", "narrow", "wide", "status"),
    [
        ("x = bytearray(300 << 20)", {"memory": 256 * MB}, {"memory": 512 * MB}, "memory_limit"),
        ("print('x' * 2_000_000)", {"output": MB}, {"output": 4 * MB}, "output_limit"),
        (
            "import os, time\nfor _ in range(60):\n    os.fork() or (time.sleep(9), os._exit(0))",
            {"processes": 32},
            {"processes": 128},
            "process_limit",
        ),
        (
            "import os, time\nfor _ in range(7):\n    os.fork() or (time.sleep(1), os._exit(0))\n"
            "for _ in range(7): os.wait()",
            {"processes": 7},
            {"processes": 8},
            "process_limit",
        ),
        ("import time; time.sleep(0.5)", {"wall": 0.2}, {"wall": 20.0}, "time_limit"),
        ("while __import__('time').process_time() < 1: pass", {"cpu": 0.3}, {}, "time_limit"),
    ],
)
async def test_what_a_limit_stops_a_wider_one_lets_through(
    run: Run, code: str, narrow: dict[str, float], wide: dict[str, float], status: str
) -> None:
    assert (await run(code, **narrow)).status == status
    outcome = await run(code, **wide)
    assert (outcome.status, outcome.return_code) == ("finished", 0)


async def test_our_having_no_descriptors_left_is_our_failure(run: Run) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        outcome = await run("print(1)")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert outcome.status == "infrastructure"
    assert "Too many open files" in outcome.error
    assert (await run("print(1)")).stdout == b"1\n"


@pytest.mark.parametrize(("limited", "told"), [(True, files.Refused), (False, OSError)])
async def test_a_full_disk_is_the_requests_doing_where_its_size_was_set_and_else_ours(
    limited: bool, told: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    class Full(without_namespaces.Folder):
        def __init__(self) -> None:
            self.limited, self.writable, self.scratch = limited, "nothing", "/"

        def target(self, name: str) -> str:
            return "/file"

    monkeypatch.setattr(files, "_write", full)
    with pytest.raises(told, match="No space left on device"):
        files.write(Full(), ["a"], [b"x"])


async def test_why_a_process_was_never_the_program_is_told_if_its_order_comes_too_late() -> None:
    ours, theirs = wire.pair()
    theirs.close()
    said, saying = os.pipe()
    os.write(saying, b"!PermissionError: no way")
    os.close(saying)
    place = without_namespaces.Folder.__new__(without_namespaces.Folder)
    job = supervise.Job(
        said, -1, what="program", channel=None, joins=[], evidence=None, place=place, killed=0
    )
    with pytest.raises(RuntimeError, match="PermissionError: no way"):
        supervise._begin(running.Running(0, {}, said, ours), job, 0, b"", [])
    ours.close()
    os.close(said)


async def test_the_interpreter_ends_as_it_always_does(run: Run) -> None:
    code = """
import atexit, threading
atexit.register(print, "atexit")
threading.Thread(target=lambda: (threading.main_thread().join(), print("thread"))).start()
class Last:
    def __del__(self): print("del")
last = Last()
left_open = open("left", "w")
left_open.write("flushed")
print("main")
"""
    outcome = await run(code, fetch=["left"])
    assert outcome.stdout == b"main\nthread\natexit\ndel\n"
    assert outcome.files == {"left": b"flushed"}


async def test_half_a_megabyte_of_output_is_legitimate(run: Run) -> None:
    outcome = await run("print('x' * 500_000)")
    assert (outcome.status, len(outcome.stdout)) == ("finished", 500_001)


async def test_an_unknown_language_and_an_absurd_limit_are_refused_with_a_reason(
    run: Run,
) -> None:
    assert (await run("x", "cobol")).status == "refused"
    outcome = await run("x", wall=1e9)
    assert outcome.status == "refused"
    assert "cap" in outcome.error


@pytest.mark.parametrize("name", ["", "A=B", "A\0", "\ud800"])
async def test_a_variable_that_no_process_can_have_is_refused(run: Run, name: str) -> None:
    outcome = await run("1", env={name: "x"})
    assert (outcome.status, "variable" in outcome.error) == ("refused", True), outcome


async def test_a_quota_below_what_the_folders_themselves_need_is_refused(run: Run) -> None:
    outcome = await run("1", inodes=1)
    assert (outcome.status, "nr_inodes=1" in outcome.error) == ("refused", True), outcome
    with pytest.raises(LimitRefused, match="nan"):
        replace(DEFAULTS, wall=float("nan"))


async def test_a_file_that_cannot_be_put_there_is_refused(run: Run) -> None:
    outcome = await run("x", files={"/etc/passwd": b"mine"})
    assert outcome.status == "refused"
    assert "/etc/passwd" in outcome.error


LARGE_STACK = """
import threading
threading.stack_size(256 << 20)
thread = threading.Thread(target=print, args=["ran"])
thread.start()
thread.join()
"""
LARGE_DATA = """
#include <cstdio>
static volatile char data[8L << 30];  // else it is left out
int main() { data[1L << 30] = 1; puts("ran"); }
"""


@pytest.mark.parametrize(("code", "language"), [(LARGE_STACK, "python"), (LARGE_DATA, "cpp")])
async def test_what_a_program_reserves_and_does_not_use_is_no_memory_of_its_cgroup(
    sandbox: Jails, run: Run, code: str, language: str
) -> None:
    if sandbox.memory_by == "sampling":
        pytest.skip("what a process reserves is limited where no cgroup counts what it uses")
    outcome = await run(code, language)
    if "install" in outcome.error:
        pytest.skip(outcome.error)
    assert (outcome.status, outcome.stdout) == ("finished", b"ran\n"), outcome


@pytest.mark.parametrize(
    "words",
    [
        'Exception in thread "main" java.lang.OutOfMemoryError: Java heap space',
        "OpenJDK 64-Bit Server VM warning: os::commit_memory failed; error='Not enough space'",
        "fatal error: runtime: out of memory",
        "fatal error: runtime: cannot allocate memory",
        "memory allocation of 8589934592 bytes failed",
        "main.sh: xrealloc: cannot allocate 134217856 bytes",
    ],
)
async def test_memory_that_runs_out_is_named_in_every_language(run: Run, words: str) -> None:
    """Also where a long trace comes after the words."""
    code = f"import sys; sys.exit({words!r} + '\\n' + 'trace\\n' * 10_000)"
    outcome = await run(code)
    assert (outcome.status, outcome.return_code) == ("memory_limit", 1), outcome.stderr[:200]


async def test_the_death_of_the_fork_server_is_our_failure_and_the_next_run_works(
    sandbox: Jails, caplog: pytest.LogCaptureFixture
) -> None:
    server, restarts = await sandbox._live_server(), sandbox.restarts
    posted = server.posted
    running = asyncio.ensure_future(sandbox.run(Program("import time; time.sleep(60)")))
    while server.posted == posted:  # noqa: ASYNC110  there is nothing to await on
        await asyncio.sleep(0.01)
    os.kill(server.ready["pid"], signal.SIGKILL)
    assert (await running).status == "infrastructure"
    select.select([server._control], [], [])  # a jail may end a moment before its server's line
    assert (await sandbox.run(Program("print(2)"))).stdout == b"2\n"
    assert sandbox.restarts == restarts + 1
    assert "the fork server ended: it left no message; the next program" in caplog.text


async def test_a_run_that_finds_the_fork_server_dead_is_given_a_new_one(sandbox: Jails) -> None:
    """Before anything else has found that: nothing was sent, so nothing can have been run."""
    server, restarts = await sandbox._live_server(), sandbox.restarts
    ended = os.pidfd_open(server.ready["pid"])
    os.kill(server.ready["pid"], signal.SIGKILL)
    select.select([ended], [], [])
    os.close(ended)
    select.select([server._control], [], [])  # nor has a jail that it was forking its connection
    assert not server.dead
    outcomes = await asyncio.gather(*(sandbox.run(Program("print(2)")) for _ in range(3)))
    assert [outcome.stdout for outcome in outcomes] == [b"2\n"] * 3, outcomes
    assert sandbox.restarts == restarts + 1

"""How a program ended is told apart, kind by kind."""

import asyncio
import os
import signal

import pytest

from worker.sandbox.local import Jails, Program

from .conftest import Run

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_program_that_prints_is_finished_with_what_it_printed(run: Run) -> None:
    outcome = await run("print(1)")
    assert (outcome.status, outcome.return_code) == ("finished", 0)
    assert (outcome.stdout, outcome.stderr) == (b"1\n", b"")
    assert outcome.level == "ns"


async def test_an_exception_is_exit_code_one_with_the_programs_own_frames_only(run: Run) -> None:
    outcome = await run("def f():\n    assert 1 == 2, 'no'\nf()")
    assert (outcome.status, outcome.return_code) == ("finished", 1)
    assert outcome.stderr.decode().splitlines() == [
        "Traceback (most recent call last):",
        '  File "/home/sandbox/main.py", line 3, in <module>',
        "    f()",
        '  File "/home/sandbox/main.py", line 2, in f',
        "    assert 1 == 2, 'no'",
        "           ^^^^^^",
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


async def test_the_interpreter_ends_as_it_always_does(run: Run) -> None:
    code = """
import atexit, threading, time
atexit.register(print, "atexit")
threading.Thread(target=lambda: (time.sleep(0.05), print("thread"))).start()
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


async def test_a_file_that_cannot_be_put_there_is_refused(run: Run) -> None:
    outcome = await run("x", files={"/etc/passwd": b"mine"})
    assert outcome.status == "refused"
    assert "/etc/passwd" in outcome.error


async def test_the_death_of_the_fork_server_is_our_failure_and_the_next_run_works(
    sandbox: Jails,
) -> None:
    server, restarts = await sandbox._live_server(), sandbox.restarts
    posted = server.posted
    running = asyncio.ensure_future(sandbox.run(Program("import time; time.sleep(60)")))
    while server.posted == posted:  # noqa: ASYNC110  there is nothing to await on
        await asyncio.sleep(0.01)
    os.kill(server.ready["pid"], signal.SIGKILL)
    assert (await running).status == "infrastructure"
    assert (await sandbox.run(Program("print(2)"))).stdout == b"2\n"
    assert sandbox.restarts == restarts + 1

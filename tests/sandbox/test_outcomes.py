"""How a program ended is told apart, kind by kind."""

import asyncio
import os
import signal

import pytest

from worker.sandbox.local import Jails, Program

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


async def test_a_time_limit_keeps_what_was_printed(run: Run) -> None:
    outcome = await run("import time; print('so far', flush=True); time.sleep(60)", wall=0.3)
    assert (outcome.status, outcome.return_code) == ("time_limit", None)
    assert outcome.stdout == b"so far\n"


async def test_ignoring_signals_does_not_outlive_the_time_limit(run: Run) -> None:
    code = """
import os, signal
for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    os.kill(os.getppid(), signal.SIGSTOP)
while True: pass
"""
    outcome = await run(code, wall=0.3)
    assert outcome.status == "time_limit"


async def test_processor_time_is_limited_for_the_whole_tree(run: Run) -> None:
    code = "import os\nfor _ in range(3): os.fork()\nwhile True: pass"
    outcome = await run(code, cpu=0.5)
    assert outcome.status == "time_limit"
    assert outcome.run is not None
    assert outcome.run.duration < 15


async def test_one_large_allocation_is_a_memory_limit(run: Run) -> None:
    outcome = await run("x = bytearray(700 << 20)")
    assert (outcome.status, outcome.return_code) == ("memory_limit", 1)
    assert b"MemoryError" in outcome.stderr


async def test_memory_is_limited_for_the_whole_tree(run: Run) -> None:
    code = """
import os, time
for _ in range(6):
    if os.fork() == 0:
        x = bytearray(200 << 20)
        time.sleep(60)
        os._exit(0)
for _ in range(6): os.wait()
"""
    outcome = await run(code, memory=400 * MB)
    assert outcome.status == "memory_limit"
    assert outcome.run is not None
    assert outcome.run.memory_peak < 800 * MB


async def test_pages_shared_by_forks_are_counted_once(run: Run) -> None:
    code = """
import os, time
x = bytearray(100 << 20)
for _ in range(40):
    if os.fork() == 0:
        time.sleep(0.3)
        os._exit(0)
for _ in range(40): os.wait()
print("fine")
"""
    outcome = await run(code)
    assert (outcome.status, outcome.stdout) == ("finished", b"fine\n")


async def test_a_flood_of_output_ends_at_the_cap(run: Run) -> None:
    outcome = await run("while True: print('x' * 1000)", output=1 * MB)
    assert (outcome.status, outcome.return_code) == ("output_limit", None)
    assert len(outcome.stdout) == 1 * MB


async def test_half_a_megabyte_of_output_is_legitimate(run: Run) -> None:
    outcome = await run("print('x' * 500_000)")
    assert (outcome.status, len(outcome.stdout)) == ("finished", 500_001)


async def test_a_fork_bomb_is_a_process_limit(run: Run) -> None:
    outcome = await run("import os\nwhile True: os.fork()")
    assert outcome.status == "process_limit"
    assert outcome.run is not None
    assert outcome.run.processes_peak <= 66


async def test_ten_thousand_threads_are_a_process_limit(run: Run) -> None:
    code = """
import threading, time
threading.stack_size(65536)
for _ in range(10_000): threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
"""
    outcome = await run(code)
    assert outcome.status == "process_limit"


async def test_a_child_left_in_the_background_does_not_delay_the_end(run: Run) -> None:
    code = "import subprocess; subprocess.Popen(['sleep', '60']); print('done')"
    outcome = await run(code)
    assert (outcome.status, outcome.stdout) == ("finished", b"done\n")
    assert outcome.run is not None
    assert outcome.run.duration < 10


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

"""What a program finds is an interpreter as `python` starts and ends it."""

import signal

import pytest

from .conftest import MB, Run

pytestmark = pytest.mark.asyncio(loop_scope="module")

INTERRUPTED = b"""Traceback (most recent call last):
  File "/home/sandbox/main.py", line 1, in <module>
    raise KeyboardInterrupt
KeyboardInterrupt
"""
CLOSED = b"""Exception ignored in: <_io.TextIOWrapper name='<stdout>' mode='w' encoding='utf-8'>
OSError: [Errno 9] Bad file descriptor
"""
HOOK_FAILS = """
import sys
def hook(*_): raise ValueError("hook")
sys.excepthook = hook
raise KeyError("program")
"""


TEE = """
import sys
class Tee:
    def write(self, text): sys.__stdout__.write(text.upper())
    def flush(self): sys.__stdout__.flush()
sys.stdout = Tee()
print("said")
"""
NO_FLUSH = """
import sys
class Mute:
    def __repr__(self): return "mute"
    def write(self, text): pass
sys.stdout = Mute()
"""
LAST_WORDS = """
import sys
class Last:
    def __del__(self): print("bye")
last = Last()
sys.stdout.write("said\\n")
sys.stdout = None
"""
# Each has names of its module to find as it goes; plain `python` prints the same.
LAST_DEEDS = {
    "an object": """
import time
class Last:
    def __del__(self): print("bye", time.time() > 0, helper())
def helper(): return 1
last = Last()
""",
    "a ring of objects": """
class Last:
    def __del__(self): print("bye", *words)
words = (True, 1)
last = Last()
last.itself = last
""",
    "a generator": """
def generator():
    try: yield
    finally: print("bye", *words)
words = (True, 1)
last = generator()
next(last)
""",
    "an object of another module": "import helper",
    "an object that the interpreter holds on to": """
import signal
class Last:
    def __del__(self): print("bye True 1")
last = Last()
def handler(*_): pass
signal.signal(signal.SIGTERM, handler)
""",
}
HELPER = b"""
class Last:
    def __del__(self): print("bye", *words)
words = (True, 1)
last = Last()
"""
THREADS_GO_ON = """
import threading, time
def work():
    while True:
        time.sleep(0)
        step()
def step(): pass
for _ in range(8): threading.Thread(target=work, daemon=True).start()
many = [[each] for each in range(200_000)]
"""
HOOK_ENDS = """
import sys
def hook(*_): sys.exit(7)
sys.excepthook = hook
1 / 0
"""
KEEPS_TRACING = """
import sys
traced = []
def trace(frame, event, _):
    traced.append(event)
    return trace
sys.settrace(trace)
"""
CODE_CANNOT_BE_TOLD = """
class Mute:
    def __str__(self): raise ValueError
raise SystemExit(Mute())
"""
THREADS_ARE_NOT_AWAITED = """
import atexit, threading
def interrupted(): raise KeyboardInterrupt
threading._register_atexit(interrupted)
atexit.register(print, "said")
"""
IGNORED = b"Exception ignored in: mute\nAttributeError: 'Mute' object has no attribute 'flush'\n"
DETACHED = b"Exception ignored in: <_io.TextIOWrapper mode='w' encoding='utf-8'>\nValueError: "


@pytest.mark.parametrize(
    ("code", "return_code", "stdout", "stderr"),
    [
        (TEE, 0, b"SAID\n", b""),
        (LAST_WORDS, 0, b"said\nbye\n", b""),
        (NO_FLUSH, 120, b"", IGNORED),
        (
            "import sys; sys.stdout.detach().write(b'x')",
            120,
            b"x",
            DETACHED + b"underlying buffer has been detached\n",
        ),
    ],
)
async def test_a_program_may_write_by_an_object_of_its_own(
    run: Run, code: str, return_code: int, stdout: bytes, stderr: bytes
) -> None:
    outcome = await run(code)
    found = outcome.return_code, outcome.stdout, outcome.stderr
    assert found == (return_code, stdout, stderr), outcome


@pytest.mark.parametrize(
    ("code", "return_code", "stderr"),
    [
        ("raise KeyboardInterrupt", -signal.SIGINT, INTERRUPTED),
        ("exit(130)", 130, b""),
        ("exit(2**70)", 255, b""),
        (CODE_CANNOT_BE_TOLD, 1, b"\n"),
        (KEEPS_TRACING, 0, b""),
        ("import sys; sys.stderr = None; exit('said')", 1, b"said\n"),
        ("import sys; sys.stdout.close()", 0, b""),
        ("import os; os.close(1); print('x')", 120, CLOSED),
        ("import os; os.close(1); print('x'); exit(3)", 120, CLOSED),
    ],
)
async def test_the_last_words_are_those_of_the_interpreter(
    run: Run, code: str, return_code: int, stderr: bytes
) -> None:
    outcome = await run(code)
    assert (outcome.return_code, outcome.stderr) == (return_code, stderr), outcome


@pytest.mark.parametrize("deed", LAST_DEEDS)
async def test_what_an_object_does_last_finds_the_names_of_its_module(run: Run, deed: str) -> None:
    outcome = await run(LAST_DEEDS[deed], files={"helper.py": HELPER})
    assert (outcome.stdout, outcome.stderr) == (b"bye True 1\n", b""), outcome


async def test_a_file_that_another_module_left_open_is_written(run: Run) -> None:
    outcome = await run(
        "import helper; helper.file.write('kept')",
        files={"helper.py": b"file = open('left', 'w')"},
        fetch=["left"],
    )
    assert outcome.files == {"left": b"kept"}, outcome


async def test_threads_that_go_on_at_the_end_say_nothing(run: Run) -> None:
    outcomes = [await run(THREADS_GO_ON) for _ in range(5)]
    assert [outcome.stderr for outcome in outcomes] == [b""] * 5


async def test_a_hook_may_end_the_program(run: Run) -> None:
    outcome = await run(HOOK_ENDS)
    assert (outcome.return_code, outcome.stderr) == (7, b""), outcome


@pytest.mark.parametrize("name", ["stdout", "stderr"])
async def test_its_streams_may_be_wrapped_anew(run: Run, name: str) -> None:
    """Those of a pipe cannot be sought in, whatever the fork server's own are."""
    code = f"import io, sys; sys.{name} = io.TextIOWrapper(sys.{name}.buffer, encoding='utf-8')"
    outcome = await run(f"{code}; sys.{name}.write('said')")
    assert (outcome.return_code, outcome.stdout + outcome.stderr) == (0, b"said"), outcome


async def test_a_kind_of_interrupt_is_an_exception_like_others(run: Run) -> None:
    outcome = await run("class Kind(KeyboardInterrupt): pass\nraise Kind")
    assert outcome.return_code == 1, outcome


async def test_what_is_registered_is_done_though_threads_were_not_awaited(run: Run) -> None:
    outcome = await run(THREADS_ARE_NOT_AWAITED)
    assert (outcome.return_code, outcome.stdout) == (0, b"said\n"), outcome


async def test_a_hook_that_fails_is_told_with_what_it_was_to_tell(run: Run) -> None:
    outcome = await run(HOOK_FAILS)
    said = outcome.stderr.decode()
    assert said.startswith("Error in sys.excepthook:\nTraceback (most recent call last):\n  File")
    assert "ValueError: hook\n\nOriginal exception was:\nTraceback" in said
    assert said.endswith("KeyError: 'program'\n")
    assert "inside" not in said


async def test_a_program_may_recurse_as_deep_as_alone_but_for_a_few_frames(run: Run) -> None:
    code = "def f(n): return n and 1 + f(n - 1)\nprint(f(990))"
    assert (await run(code)).stdout == b"990\n"


async def test_no_frame_of_the_server_or_of_init_is_below_a_program(run: Run) -> None:
    code = "import sys, traceback; traceback.print_stack(); print(sys.orig_argv[1:])"
    outcome = await run(code)
    assert outcome.stdout == b"['/home/sandbox/main.py']\n"
    assert b"zygote.py" not in outcome.stderr
    assert b"supervise.py" not in outcome.stderr


async def test_no_line_of_ours_is_shown_for_one_of_its_own(run: Run) -> None:
    """Python 3.13 has kept the lines of `python -c` for what else is called "<string>"."""
    outcome = await run("exec('1 / 0')")
    assert outcome.stderr.endswith(b"line 1, in <module>\nZeroDivisionError: division by zero\n")


async def test_its_time_zone_is_what_the_request_gives(run: Run) -> None:
    code = "import time; print(time.tzname[0], time.localtime(0).tm_hour)"
    assert (await run(code, env={"TZ": "Asia/Tokyo"})).stdout == b"JST 9\n"


async def test_its_machine_is_found_by_name(run: Run) -> None:
    code = "import socket; print(socket.gethostbyname(socket.gethostname()))"
    assert (await run(code)).stdout == b"127.0.0.1\n"


DEEPER = """
import ctypes, resource
resource.setrlimit(resource.RLIMIT_STACK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
with open("/proc/self/maps") as maps:
    [its] = [line for line in maps if line.endswith("[stack]\\n")]
lowest = int(its.split("-")[0], 16)
for page in range(lowest, lowest - (100 << 20), -4096): ctypes.memset(page - 1, 1, 1)
"""


async def test_it_may_have_a_larger_stack_which_counts_as_memory(run: Run) -> None:
    assert (await run(DEEPER, memory=64 * MB)).status == "memory_limit"


# The first lines of a header that is put before programs to keep them from cheating, and more.
GUARD = """
import builtins, os, shutil, subprocess, sys
import atexit, gc, io, signal, threading, traceback
builtins.exit = builtins.quit = None
for name in ("kill", "_exit", "abort", "getpid", "write", "fork", "putenv", "remove", "chdir"):
    setattr(os, name, None)
shutil.rmtree = subprocess.Popen = signal.signal = gc.collect = None
atexit._run_exitfuncs = traceback.print_exc = traceback.print_exception = None
sys.settrace = sys.setprofile = sys.__stdout__ = sys.__stderr__ = None
for name in ("resource", "tkinter", "psutil"): sys.modules[name] = None
"""
NO_BUILTINS = """
import builtins
show, sleep = print, __import__("time").sleep
for name in ("print", "type", "getattr", "isinstance", "set", "any", "vars", "BaseException"):
    setattr(builtins, name, None)
"""


@pytest.mark.parametrize("guard", [GUARD, NO_BUILTINS, "import sys; sys.modules = {}\n"])
@pytest.mark.parametrize(
    ("code", "return_code", "stderr"),
    [
        ("pass", 0, b""),
        ("raise ValueError('wrong')", 1, b"ValueError: wrong\n"),
        ("raise SystemExit(3)", 3, b""),
        ("raise KeyboardInterrupt", -signal.SIGINT, b"KeyboardInterrupt\n"),
    ],
)
async def test_a_program_ends_alike_whatever_names_it_has_changed(
    run: Run, guard: str, code: str, return_code: int, stderr: bytes
) -> None:
    outcome = await run(f"{guard}\nimport sys; sys.stdout.write('said\\n')\n{code}")
    found = outcome.return_code, outcome.stdout
    assert found == (return_code, b"said\n"), outcome
    assert outcome.stderr.endswith(stderr), outcome
    assert bool(outcome.stderr) == bool(stderr), outcome


async def test_a_program_that_keeps_the_exit_from_ending_it_still_fails(run: Run) -> None:
    outcome = await run("import os; os._exit = lambda code: None; raise ValueError")
    assert outcome.return_code == 1, outcome


async def test_what_c_has_not_written_yet_is_written(run: Run) -> None:
    outcome = await run("import ctypes; ctypes.CDLL(None).puts(b'said')")
    assert (outcome.return_code, outcome.stdout) == (0, b"said\n"), outcome


ALARM_AT_THE_END = """
import signal
def late(*_): raise TimeoutError
signal.signal(signal.SIGALRM, late)
class Last:
    def __del__(self):
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        while True: pass
last = Last()
raise SystemExit(3)
"""


async def test_a_signal_at_its_end_does_not_change_how_it_ends(run: Run) -> None:
    assert (await run(ALARM_AT_THE_END)).return_code == 3


@pytest.mark.parametrize("name", ["token", "types", "signal", "random", "struct", "contextlib"])
async def test_a_file_of_its_own_comes_before_a_module_of_that_name(run: Run, name: str) -> None:
    code = f"import {name}; print({name}.__file__, {name}.own)"
    outcome = await run(code, files={f"{name}.py": b"own = 1"})
    assert outcome.stdout == f"/home/sandbox/{name}.py 1\n".encode(), outcome


async def test_a_package_of_its_own_comes_before_one_of_that_name(run: Run) -> None:
    code = "import json; from json import decoder; print(json.own, decoder.own)"
    outcome = await run(code, files={"json/__init__.py": b"own = 1", "json/decoder.py": b"own = 2"})
    assert outcome.stdout == b"1 2\n", outcome


@pytest.mark.parametrize("file", ["os.py", "token.txt", "token/data", "sys.py"])
async def test_other_files_hide_no_module(run: Run, file: str) -> None:
    """What `python` itself has imported as it begins is not looked for."""
    name = file[:5].partition(".")[0]
    outcome = await run(f"import {name}; print(hasattr({name}, 'own'))", files={file: b"own = 1"})
    assert (outcome.stdout, outcome.stderr) == (b"False\n", b""), outcome


async def test_a_module_is_found_that_a_program_writes_beside_one_of_a_known_name(run: Run) -> None:
    code = (
        "open('later.py', 'w').write('own = 2'); import token, later; print(token.own, later.own)"
    )
    outcome = await run(code, files={"token.py": b"own = 1"})
    assert outcome.stdout == b"1 2\n", outcome

"""The interpreter of a session by itself, as a provider runs it, but in no jail."""

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jail.inside import notebook
from tests.harness.servers import until
from worker.lifecycle import caller

CALLER, SOURCE = (Path(each.__file__).read_text() for each in (caller, notebook))
Run = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def source() -> str:
    return SOURCE


@pytest.fixture
def begin(tmp_path: Path, source: str) -> Iterator[Run]:
    """Begin a program of the session; it is ended with the interpreter."""
    begun: list[subprocess.Popen[str]] = []

    def begin(code: str) -> "subprocess.Popen[str]":
        file = tmp_path / f"{len(begun)}.py"
        file.write_text(code)
        begun.append(
            subprocess.Popen(
                [sys.executable, "-c", CALLER, source, file.name],
                cwd=tmp_path,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return begun[-1]

    yield begin
    begin("import os; os._exit(0)").communicate(timeout=100)
    for process in begun:
        process.kill()
        process.communicate()


def ran(program: "subprocess.Popen[str]") -> tuple[str, str, int]:
    printed, told = program.communicate(timeout=100)
    return printed, told, program.returncode


BUSY = "open('began', 'w').close()\nwhile True: pass"


def killed_while_busy(begin: Run, folder: Path, code: str) -> "subprocess.Popen[str]":
    program = begin(code)
    until((folder / "began").exists, "it to run")
    program.kill()
    return program


def test_a_program_whose_caller_was_killed_is_interrupted_and_the_next_one_runs(begin, tmp_path):
    killed_while_busy(begin, tmp_path, f"x = 1\n{BUSY}")
    assert ran(begin("print(x)")) == ("1\n", "", 0)


def test_one_that_catches_an_interruption_gets_another(begin, tmp_path):
    tried = BUSY.replace("\n", "\n    ")
    stubborn = f"try:\n    {tried}\nexcept KeyboardInterrupt:\n    x = 2\nwhile True: pass"
    killed_while_busy(begin, tmp_path, stubborn)
    assert ran(begin("print(x)")) == ("2\n", "", 0)


@pytest.mark.parametrize("source", [SOURCE.replace("_GRACE = 3.0", "_GRACE = 0.3")])
def test_one_that_ignores_them_takes_the_interpreter_with_it(begin, tmp_path):
    ignores = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"
    deaf = killed_while_busy(begin, tmp_path, f"{ignores}\nx = 1\n{BUSY}")
    deaf.communicate(timeout=100)  # its end is that of what it printed
    printed, told, code = ran(begin("print(x)"))
    assert (printed, code) == ("", 1)
    assert told.startswith("[a new interpreter: the variables of earlier programs are gone]\n")


def test_a_program_whose_caller_was_killed_before_its_turn_never_runs(begin, tmp_path):
    first = begin("import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)")
    until((tmp_path / ".penstock-interpreter").exists, "the interpreter")
    second = begin("open('ran', 'w').close()")
    second.kill()
    second.communicate(timeout=100)
    (tmp_path / "go").touch()
    assert ran(first) == ("", "", 0)
    assert ran(begin("print('next')")) == ("next\n", "", 0)
    assert not (tmp_path / "ran").exists()


def test_what_a_program_did_to_its_streams_is_over_with_it(begin):
    assert ran(begin("import sys; print(1); sys.stdout.close(); sys.stderr = None")) == (
        "1\n", "", 0,
    )  # fmt: skip
    assert ran(begin("import sys; print(2); print(3, file=sys.stderr)")) == ("2\n", "3\n", 0)


def test_programs_that_begin_together_share_one_interpreter(begin):
    pids = {ran(each)[0] for each in [begin("import os; print(os.getpid())") for _ in range(5)]}
    assert len(pids) == 1


def test_programs_share_an_event_loop(begin):
    begun = "import asyncio\nasync def f(): return 7\ntask = asyncio.create_task(f())"
    assert ran(begin(begun)) == ("", "", 0)
    assert ran(begin("print(await task)")) == ("7\n", "", 0)
    assert ran(begin("print(asyncio.run(f()))")) == ("7\n", "", 0)
    _, told, code = ran(begin("await asyncio.sleep(0)\n1 / 0"))
    assert (told.count("File"), code) == (1, 1)


def test_one_that_awaits_is_interrupted_too(begin, tmp_path):
    waits = "import asyncio\nx = 1\nopen('began', 'w').close()\nawait asyncio.Event().wait()"
    killed_while_busy(begin, tmp_path, waits)
    assert ran(begin("print(x)")) == ("1\n", "", 0)


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [("pass", 0, ""), ("sys.exit(3)", 3, ""), ("sys.exit('no')", 1, "no"), ("1 / 0", 1, "Zero")],
)
def test_a_process_that_a_program_forks_ends_with_the_program(begin, end, code, said):
    forks = f"import os, sys\nif os.fork() == 0:\n    print('child')\n    {end}\nelse:\n"
    forks += "    n = os.WEXITSTATUS(os.wait()[1])\n    print(n)"
    printed, told, ended = ran(begin(forks))
    assert (printed, ended) == (f"child\n{code}\n", 0)
    assert said in told
    for _ in range(3):  # of two interpreters at one door, one would not know it
        assert ran(begin("print(n)")) == (f"{code}\n", "", 0)


def test_what_a_program_shows_is_printed(begin):
    shown = "n = 2\n!echo {n}\ndisplay('x')\nfrom IPython.display import display\ndisplay(3)\n4"
    assert ran(begin(shown)) == ("2\n'x'\n3\n", "", 0)


def test_the_text_that_is_sent_is_for_older_pythons():
    for text in (CALLER, SOURCE):
        ast.parse(text, feature_version=(3, 8))

"""An interpreter that lives across calls, and `/run_jupyter`, which is one for one request."""

import asyncio
import json
from dataclasses import replace

import pytest

from jail.jails import Jails
from jail.notebook import SessionEnded

from .conftest import QUICK

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_state_stays_from_cell_to_cell(sandbox: Jails) -> None:
    async with sandbox.session(QUICK) as session:
        assert (await session.run("a = 123")).display == []
        assert (await session.run("a")).display == [{"text/plain": "123"}]
        shown = await session.run("import sys; print(a); sys.stderr.write('err'); None")
        assert (shown.stdout, shown.stderr) == ("123\n", "err")


async def test_a_cell_that_raises_is_described_and_the_next_one_runs(sandbox: Jails) -> None:
    async with sandbox.session(QUICK) as session:
        failed = await session.run("def f():\n    raise ValueError('no')\nf()")
        assert failed.error[0]["ename"] == "ValueError"
        assert failed.error[0]["evalue"] == "no"
        assert "".join(failed.error[0]["traceback"]).count("File") == 2
        assert (await session.run("1 + 1")).display == [{"text/plain": "2"}]
        assert (await session.run("def f(:")).error[0]["ename"] == "SyntaxError"


async def test_a_failed_cell_shows_its_lines(sandbox: Jails) -> None:
    async with sandbox.session(QUICK) as session:
        await session.run("def f():\n    raise ValueError('no')")
        failed = await session.run("f()")
    assert "    raise ValueError('no')\n" in "".join(failed.error[0]["traceback"])


async def test_an_exception_that_cannot_be_told_does_not_end_the_session(sandbox: Jails) -> None:
    mute = "class Mute(Exception):\n    def __str__(self): raise KeyboardInterrupt\nraise Mute"
    async with sandbox.session(QUICK) as session:
        failed = await session.run(mute)
        assert failed.error[0]["evalue"] == "<exception str() failed>"
        assert (await session.run("1 + 1")).display == [{"text/plain": "2"}]


async def test_cells_show_what_they_are_asked_to(sandbox: Jails) -> None:
    async with sandbox.session(QUICK) as session:
        shown = await session.run("display('a', 1, clear=True)\nprint('b')\n2")
        assert [entry["text/plain"] for entry in shown.display] == ["'a'", "1", "2"]
        assert shown.stdout == "b\n"
        own = await session.run("def display(value): print(value)\ndisplay(3)")
        assert (own.stdout, own.display) == ("3\n", [])


async def test_a_task_of_one_cell_lives_in_the_next(sandbox: Jails) -> None:
    begun = """
import asyncio
queue = asyncio.Queue()
async def work():
    await asyncio.sleep(0)
    queue.put_nowait(5)
    print('worked')
    return 7
task = asyncio.create_task(work())
task.done()
"""
    async with sandbox.session(QUICK) as session:
        assert (await session.run(begun)).display == [{"text/plain": "False"}]
        later = await session.run("await asyncio.gather(task, queue.get())")
        assert (later.stdout, later.display) == ("worked\n", [{"text/plain": "[7, 5]"}])


async def test_a_task_goes_on_between_two_cells(sandbox: Jails) -> None:
    begun = """
import asyncio, os
read, write = os.pipe()
async def tell(): os.write(write, b'x')
task = asyncio.get_running_loop().create_task(tell())
"""
    async with sandbox.session(QUICK) as session:
        await session.run(begun)
        # No `await` lets it go on in this cell.
        assert (await session.run("os.read(read, 1)")).display == [{"text/plain": "b'x'"}]


async def test_a_cell_without_await_runs_coroutines_as_a_script_does(sandbox: Jails) -> None:
    async with sandbox.session(QUICK) as session:
        await session.run("import asyncio\nasync def f(): return asyncio.get_running_loop()")
        for way in ("asyncio.run(f())", "asyncio.get_event_loop().run_until_complete(f())"):
            assert (await session.run(f"{way}\n5")).display == [{"text/plain": "5"}]
        await session.run("asyncio.get_event_loop().close()")
        assert (await session.run("await f() is asyncio.get_event_loop()")).display == [
            {"text/plain": "True"}
        ]


async def test_cells_await_on_one_event_loop(sandbox: Jails) -> None:
    async with sandbox.session(QUICK) as session:
        await session.run("import asyncio\nlater = asyncio.Event()")
        begun = "async def wait(): await later.wait(); return 5\ntask = None"
        await session.run(begun)
        await session.run(
            "task = asyncio.get_running_loop().create_task(wait())\nawait asyncio.sleep(0)"
        )
        assert (await session.run("later.set()\nawait task")).display == [{"text/plain": "5"}]
        failed = await session.run("await asyncio.sleep(0)\n1 / 0")
        assert "".join(failed.error[0]["traceback"]).count("File") == 1
        late = await session.run("await asyncio.sleep(60)", 0.3)
        assert late.error[0]["ename"] == "CellTimeout"
        assert (await session.run("await asyncio.sleep(0, 6)")).display == [{"text/plain": "6"}]


async def test_a_cell_that_awaited_for_too_long_does_not_go_on_in_the_next(sandbox: Jails) -> None:
    async with sandbox.session(QUICK) as session:
        await session.run("import asyncio\nlater = asyncio.Event()\nawait asyncio.sleep(0)")
        waits = "await later.wait()\nprint('late')"
        assert (await session.run(waits, 0.3)).error[0]["ename"] == "CellTimeout"
        after = await session.run("later.set()\nfor _ in range(9): await asyncio.sleep(0)")
        assert (after.stdout, after.error) == ("", [])


MAGIC_AND_NONE = """%matplotlib inline
if True:
    !echo '(said'
text = '''
%s!
!'''
print(text
      % 'x\f\u2028')
"""


async def test_only_what_is_no_python_is_taken_for_magic(sandbox: Jails) -> None:
    async with sandbox.session(QUICK) as session:
        told = await session.run(MAGIC_AND_NONE)
        assert (told.stdout, told.error) == ("(said\n\nx\f\u2028!\n!\n", [])


@pytest.mark.parametrize(
    ("cell", "magic"),
    [("x = 1\n%cd /tmp", "%cd"), ("%%writefile x\nit's text", "%%writefile"), ("%run x", "%run")],
)
async def test_a_magic_that_would_do_something_else_is_refused(
    sandbox: Jails, cell: str, magic: str
) -> None:
    async with sandbox.session(QUICK) as session:
        [refused] = (await session.run(cell)).error
        assert refused["ename"] == "UsageError"
        assert refused["evalue"].startswith(f"{magic} is not offered here")
        assert (await session.run("x")).error[0]["ename"] == "NameError"


async def test_ipythons_display_is_there_in_the_small(sandbox: Jails) -> None:
    async with sandbox.session(QUICK) as session:
        await session.run("import sys; before = 'IPython' in sys.modules")
        assert (await session.run("before")).display == [{"text/plain": "False"}]
        shown = await session.run("""
from IPython.display import HTML, JSON, Image, Markdown, Math, clear_output, display
display(HTML('<b>'), Markdown('# x'), JSON({'a': 1}), Math('x'))
clear_output(wait=True)
display({'a/b': 'raw'}, raw=True)
Image(data=b'png')
""")
        assert shown.error == []
        forms = [{**entry, "text/plain": ""} for entry in shown.display]
        assert forms == [
            {"text/plain": "", "text/html": "<b>"},
            {"text/plain": "", "text/markdown": "# x"},
            {"text/plain": "", "application/json": '{"a": 1}'},
            {"text/plain": "", "text/latex": "$\\displaystyle x$"},
            {"text/plain": "", "a/b": "raw"},
            {"text/plain": "", "image/png": "cG5n"},
        ]
        assert (await session.run("import IPython; IPython.get_ipython()")).display == []


async def test_what_processes_and_c_write_is_among_what_a_cell_wrote(sandbox: Jails) -> None:
    async with sandbox.session(QUICK) as session:
        cell = await session.run(
            "import os, subprocess, sys, ctypes\n"
            "print('python')\nos.system('echo shell; echo wrong >&2')\n"
            "subprocess.run(['echo', 'process'])\nos.write(1, b'bytes\\n')\n"
            "sys.stderr.write('err\\n');\n"
            "print(sys.stdout.fileno(), sys.stdout.isatty())"
        )
        assert cell.stdout == "python\nshell\nprocess\nbytes\n1 False\n"
        assert (cell.stderr, cell.error) == ("wrong\nerr\n", [])
        assert (await session.run("None")).stdout == ""
        at_the_end = await session.run("import atexit; atexit.register(print, 'last');")
        assert (at_the_end.stdout, at_the_end.display) == ("", [])
        outcome = await session.end()
    assert outcome.stdout == b"last\n"


async def test_a_stream_that_a_cell_closed_or_changed_is_there_for_the_next(sandbox: Jails) -> None:
    async with sandbox.session(QUICK) as session:
        await session.run("import io, sys\nkept = sys.stdout = io.StringIO()\nprint('kept')")
        assert (await session.run("sys.stdout = sys.__stdout__\nprint(kept.getvalue())")).stdout
        assert (await session.run("print('x'); sys.stdout.close()")).stdout == "x\n"
        assert (await session.run("print('again')")).stdout == "again\n"


async def test_a_value_before_a_semicolon_is_not_shown(sandbox: Jails) -> None:
    async with sandbox.session(QUICK) as session:
        for quiet in ("5;", "x = 3\nx;  # said to no one", "5;\n\n"):
            assert (await session.run(quiet)).display == []
        for shown in ("'a;'", "1; 2", "2 # ;"):
            assert len((await session.run(shown)).display) == 1


async def test_inputs_and_outputs_are_kept_as_a_notebook_keeps_them(sandbox: Jails) -> None:
    async def said(code: str) -> str:
        [shown] = (await session.run(code)).display
        return shown["text/plain"]

    async with sandbox.session(QUICK) as session:
        await session.run("40 + 2")
        assert await said("_ + 1, Out[1], _1") == "(43, 42, 42)"
        assert await said("_i, _i1, In[1], In[-1]") == repr(
            ("_ + 1, Out[1], _1", "40 + 2", "40 + 2", "_i, _i1, In[1], In[-1]")
        )
        assert await said("__") == "(43, 42, 42)"
        await session.run("7;")
        assert await said("sorted(Out)") == "[1, 2, 3, 4]"
        await session.run("_ = 'its own'")
        await session.run("5")
        assert await said("_") == "'its own'"


async def test_a_shell_command_prints_both_its_streams_and_gives_its_lines(sandbox: Jails) -> None:
    async with sandbox.session(QUICK) as session:
        cell = await session.run("n = 3\n!echo {n} $n $$n '{' ; echo wrong >&2; exit 4")
        assert (cell.stdout, cell.stderr) == ("3 3 {\nwrong\n", "")
        assert (await session.run("_exit_code")).display == [{"text/plain": "4"}]
        await session.run("lines = !echo one; echo two >&2")
        assert (await session.run("lines")).display == [{"text/plain": "['one', 'two']"}]
        script = await session.run("%%bash\nfor i in 1 2; do echo $i; done; echo {n} >&2")
        assert (script.stdout, script.stderr) == ("1\n2\n", "{n}\n")
        timed = await session.run("%time m = 5\nm")
        assert timed.display == [{"text/plain": "5"}]


async def test_an_object_is_shown_in_every_form_that_it_offers(sandbox: Jails) -> None:
    forms = """
class Shown:
    def __repr__(self): return 'plain'
    def _repr_html_(self): return '<b>'
    def _repr_png_(self): return b'png'
    def _repr_svg_(self): raise NotImplementedError
    def _repr_latex_(self): return None
    def _repr_mimebundle_(self, include=None, exclude=None): return {'a/b': {'c': 1}}, {}
"""
    every = {"text/plain": "plain", "text/html": "<b>", "image/png": "cG5n", "a/b": '{"c": 1}'}
    async with sandbox.session(QUICK) as session:
        await session.run(forms)
        assert (await session.run("Shown()")).display == [every]
        assert (await session.run("display(Shown())")).display == [every]
        assert list((await session.run("Shown")).display[0]) == ["text/plain"]


async def test_what_cannot_be_shown_fails_its_cell_alone(sandbox: Jails) -> None:
    async with sandbox.session(QUICK) as session:
        failed = await session.run("a = []; a.append(a)\ndisplay({'a/b': a}, raw=True)")
        assert failed.error[0]["ename"] == "ValueError"
        assert (await session.run("1 + 1")).display == [{"text/plain": "2"}]


async def test_a_cell_beyond_its_time_is_interrupted_and_state_stays(sandbox: Jails) -> None:
    async with sandbox.session(QUICK) as session:
        await session.run("kept = 1")
        late = await session.run("while True: pass", 0.3)
        assert late.error[0]["ename"] == "CellTimeout"
        assert (await session.run("kept")).display == [{"text/plain": "1"}]


async def test_a_cell_that_will_not_be_interrupted_loses_the_session(sandbox: Jails) -> None:
    stubborn = "import signal; signal.signal(signal.SIGALRM, signal.SIG_IGN)\nwhile True: pass"
    async with sandbox.session(QUICK) as session:
        with pytest.raises(SessionEnded):
            await session.run(stubborn, 0.3)
        with pytest.raises(SessionEnded):
            await session.run("1")


def claim(header: str, blob: str = "''") -> str:
    """A cell that answers for its interpreter, in a message that is whole."""
    return f"""
import os
header, blob = ({header}).encode(), ({blob}).encode()
os.write(4, len(header).to_bytes(4, "big") + len(blob).to_bytes(8, "big") + header + blob)
"""


@pytest.mark.parametrize(
    "lie",
    [
        claim("'{}'"),
        claim("'[]'"),
        claim("'{\"blobs\": [2]}'", "'{}'"),
        claim('\'{"shown": [], "failed": 0, "blobs": []}\''),
        claim('\'{"shown": [[1]], "failed": 0, "blobs": [0, 1]}\'', "'x'"),
        claim('\'{"shown": [], "failed": 1, "blobs": [0, 0, 1]}\'', "'x'"),
        claim('\'{"shown": [], "failed": 0, "blobs": [1, -1, 1]}\'', "'x'"),
        claim("'[' * 50_000", "'x' * 50_000"),
        "import os; os.write(4, b'\\xff' * 100)",
        "import os; os.write(4, (5).to_bytes(4, 'big') + (0).to_bytes(8, 'big') + b'x' * 5)",
        "import os; os.write(4, (2).to_bytes(4, 'big') + (1 << 60).to_bytes(8, 'big') + b'{}')",
        "import os; os.close(4)",
        "import os; os._exit(0)",
    ],
)
async def test_a_lie_on_the_channel_ends_the_session_only(sandbox: Jails, lie: str) -> None:
    async with sandbox.session(QUICK) as session, sandbox.session(QUICK) as other:
        with pytest.raises(SessionEnded):
            await session.run(lie, 5.0)
        assert (await other.run("2")).display == [{"text/plain": "2"}]


async def test_what_a_cell_claims_to_show_is_text(sandbox: Jails) -> None:
    """What is no text might be no JSON either, or nested deeper than whoever passes it on can."""
    header = '{"shown": [["a", [[NaN]]]], "failed": 0, "blobs": [0, 0, 800, 2]}'
    claims = claim(f"'{header}'", "'[' * 400 + ']' * 400 + '{}'")
    async with sandbox.session(QUICK) as session:
        # Else its own answer would follow.
        cell = await session.run(f"{claims}import time; time.sleep(60)")
    assert cell.display == [{"a": "[" * 400 + "]" * 400, "[[nan]]": "{}"}]


async def test_the_name_of_a_form_is_text_that_every_reader_of_json_takes(sandbox: Jails) -> None:
    async with sandbox.session(QUICK) as session:
        cell = await session.run("display({'\\ud800': 'x'}, raw=True)")
    assert cell.display == [{"?": "x"}]


async def test_a_cell_that_nobody_waits_for_any_more_answers_for_no_other(sandbox: Jails) -> None:
    async with sandbox.session(QUICK) as session:
        running = asyncio.create_task(session.run("import time; time.sleep(0.2); print()"))
        await asyncio.sleep(0)  # it has the channel, and no answer yet
        running.cancel()
        await asyncio.wait([running])
        with pytest.raises(SessionEnded):
            await session.run("print('second')")


@pytest.mark.parametrize(
    "flood",
    [
        "print('x' * 2_000_000)",
        "raise ValueError('x' * 2_000_000)",
        "!head -c 2000000 /dev/zero",
        "for _ in range(20_000): display(1)",
        claim("'{\"a\": [' + '{},' * 300_000 + '1]}'"),
    ],
)
async def test_a_cell_says_no_more_than_the_limit_of_output(sandbox: Jails, flood: str) -> None:
    async with sandbox.session(replace(QUICK, output=1 << 20)) as session:
        await session.run("print('x' * 500_000)")
        with pytest.raises(SessionEnded):
            await session.run(flood)
        with pytest.raises(SessionEnded):
            await session.run("1")
        outcome = await session.end()
    assert (outcome.status, outcome.return_code) == ("output_limit", None)


async def test_of_what_a_cell_says_a_short_header_is_parsed(sandbox: Jails, monkeypatch) -> None:
    parsed, loads = [], json.loads
    monkeypatch.setattr(json, "loads", lambda text: parsed.append(len(text)) or loads(text))
    header = '\'{"shown": [["a"]], "failed": 0, "blobs": [0, 0, 3000000]}\''
    async with sandbox.session(QUICK) as session:
        parsed.clear()  # of its start
        flood = claim(header, "'{},' * 1_000_000")
        cell = await session.run(f"{flood}import time; time.sleep(60)")
        assert cell.size == 3_000_000
        assert max(parsed) < 100


async def test_limits_hold_for_the_session_as_a_whole(sandbox: Jails) -> None:
    async with sandbox.session(QUICK) as session:
        with pytest.raises(SessionEnded):
            await session.run(
                "import os, signal\nfor _ in range(6):\n    if os.fork() == 0:\n"
                "        x = bytearray(100 << 20)\n        while True: pass\nsignal.pause()"
            )
        assert (await session.end()).status == "memory_limit"


async def test_a_session_beyond_a_cap_is_refused(sandbox: Jails) -> None:
    with pytest.raises(Exception, match="cap"):
        async with sandbox.session(replace(QUICK, wall=1e9)):
            pass

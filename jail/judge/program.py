"""A case runs this text: the program, the case's assertions behind it, the call of its function.

Of a case that is judged by value, the sandbox calls the function: `jail/inside/ending.py`. One that
only runs programs is given a program that does the same, `script_of`.
"""

import contextlib
import inspect
import json
import secrets
import tokenize
from io import StringIO

from jail.errors import SandboxUnfit
from jail.inside import values
from jail.judge.models import Checker, JudgeRequest
from jail.judge.suite import Case

# Code for such tasks is written as if all this were there.
_PRELUDE = """\
from string import *
from re import *
from datetime import *
from collections import *
from heapq import *
from bisect import *
from copy import *
from math import *
from random import *
from statistics import *
from itertools import *
from functools import *
from operator import *
from io import *
from sys import *
from json import *
from builtins import *
from typing import *
import bisect, collections, copy, datetime, functools, heapq, io, itertools, json, math
import operator, random, re, statistics, string, sys
"""

# One line, so that the lines behind it keep their distances. The function's own name becomes a
# builtin: the program can use it, and what stands under it in `__main__` is the program's own.
_BEFORE = (
    "exec({prelude}); [__import__('builtins').__dict__.setdefault(_, globals().pop(_))"
    " for _ in [{name}] if _ in globals()]\n"
)

# Nothing that the program may have called `json` or `print` is used.
_AFTER = """
if __name__ == "__main__":
    __import__("builtins").exec({call}, {{"own": __import__("builtins").globals(), "name": {name}}})
"""

# A line of stdin is one argument; what the function returns is printed.
_CALL = """\
import json, sys
given = sys.stdin.read()
arguments = [json.loads(line) for line in given.rstrip().split("\\n")] if given.strip() else []
function = own.get(name)
if function is None and "Solution" in own:
    function = getattr(own["Solution"](), name, None)
if function is None:
    sys.exit("there is no function " + name + ", and no class Solution that has it")
as_json = type(None), bool, dict, list, tuple
print((lambda it: json.dumps(it) if isinstance(it, as_json) else it)(function(*arguments)))
"""


def text_of(request: JudgeRequest, case: Case) -> str:
    """The text that a case of this request runs. The same text for every case that has no
    `check`."""
    if case.check and request.mode not in ("check", "function"):
        raise SandboxUnfit(
            f"a case of the suite has a `check`, and the request's mode {request.mode} runs none: "
            "ask for mode check",
            reason="suite_unfit",
        )
    if request.mode == "function":
        if request.judges_values:
            assert request.function is not None  # noqa: S101 - the request is whole
            return _called(_checked(request.language, request.code, case.check), request.function)
        expected = b"".join(case.expected or ()).decode(errors="replace")
        given = case.input.decode(errors="replace") if case.check else ""
        whole = request.code, case.check, request.function, given, expected
        return program_of(request.language, *whole)
    if not case.check:
        return request.code
    return program_of(request.language, request.code, case.check, None, None, None)


# Also in the check's functions and subshells. What fails in the program's own lines, which stand
# before, fails nothing. A program may have made LINENO a plain variable. That is then one number,
# or the first trap stays: either way each failure counts.
_EACH_COMMAND = """\
builtin set -E; builtin trap 'exit 1' ERR
builtin declare -ir LINENO=LINENO && builtin trap "((LINENO < $LINENO)) || exit 1" ERR
"""


def _first_line(language: str, check: str) -> str:
    """The line that makes each assertion count, and not the last alone, or none."""
    if language in ("c", "cpp"):  # templates of contests switch assertions off
        return "#undef NDEBUG\n#include <assert.h>\n"
    if language == "bash" and "$?" not in check:  # which looks at failures itself
        return _EACH_COMMAND
    return ""


# Only of languages whose scripts go on as they would, and end by the same code. A check that ends
# its program itself, as those for Lua do, would count as one that was not reached.
_LAST_LINE = {
    "python": '__import__("os").write(1, b"{mark}")',
    "bash": 'set -- "$?"; builtin printf %s {mark}; exit "$1"',
    "nodejs": ';globalThis.process.stdout.write("{mark}");',
    "perl": ';print STDOUT "{mark}";',
}


def marked(language: str, text: str, check: str) -> tuple[str, str]:
    """A script with a check that prints a mark at its end, and the mark. Without a check, or if no
    line can be put behind it: the text itself and no mark."""
    if not check or language not in _LAST_LINE:
        return text, ""
    mark = secrets.token_hex(16)
    return f"{text}\n{_LAST_LINE[language].format(mark=mark)}\n", mark


_SCRIPT = """\
import os, sys, types
values = types.ModuleType("values")
exec(compile({values}, "values.py", "exec"), values.__dict__)
calls = values.calls_in(sys.stdin.buffer.read())
answer, pid = os.dup(1), os.getpid()
os.dup2(2, 1)
module = sys.modules["main"] = types.ModuleType("main")
exec(compile({program}, "main.py", "exec"), module.__dict__)
said = values.text_of(list(values.answers(module.__dict__, calls)))
if os.getpid() == pid:
    os.write(answer, {mark}.encode() + said + {mark}.encode())
"""

# Python ends a script that does not compile, or raises, by 1: the code by which a checker says
# `wrong`. This one ends it by 3, testlib's code for a checker's own fault; or by 8, its code for
# an end of file: an interactor whose program has hung up.
_CHECKER = """\
def _failed(kind, problem, trace):
    import sys
    sys.__excepthook__(kind, problem, trace)
    codes = {{AssertionError: 1, EOFError: 8, BrokenPipeError: 8}}
    sys.exit(next((code for known, code in codes.items() if issubclass(kind, known)), 3))


__import__("sys").excepthook = _failed
del _failed
exec(compile({code}, "checker.py", "exec", dont_inherit=True))
"""


def checker_text(checker: Checker) -> str:
    """The text that runs in a checker's or an interactor's place: its own, if it is no Python."""
    if checker.language != "python":
        return checker.code
    return _CHECKER.format(code=repr(checker.code))


def program_of(
    language: str,
    code: str,
    check: str,
    function: str | None,
    given: str | None,
    expected: str | None,
) -> str:
    """The text of a case: the code, the case's assertions behind it, and the call of its function.

    Assertions that come with neither arguments nor an expected output are the whole case:
    the function is not called once more.
    """
    checked = _checked(language, code, check)
    if not function:
        return checked
    whole = check.strip() and not (given or "").strip() and not (expected or "").strip()
    after = "" if whole else _AFTER.format(call=repr(_CALL), name=_quoted(function))
    return _called(checked, function) + after


def _checked(language: str, code: str, check: str) -> str:
    return f"{code}\n\n{_first_line(language, check) if check else ''}{check}"


def _called(code: str, function: str) -> str:
    """The program with what code for such tasks imports without saying so."""
    return _with_prelude(code, _BEFORE.format(prelude=repr(_PRELUDE), name=_quoted(function)))


def _quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=True)


def script_of(program: str, mark: str) -> str:
    """A program whose calls are its stdin. Their JSON comes on its stdout between two marks, and
    nothing else does: what the program prints goes to stderr."""
    return _SCRIPT.format(
        values=repr(inspect.getsource(values)), program=repr(program), mark=repr(mark)
    )


def answer_in(stdout: str, mark: str) -> bytes | None:
    """The part of the script's output between its marks; None if it did not come to its end."""
    parts = stdout.split(mark)
    return parts[1].encode() if len(parts) == 3 and not parts[0] and not parts[2] else None


def _with_prelude(code: str, prelude: str) -> str:
    """Put the prelude at the top, but behind a `from __future__`, before which no statement may
    stand."""
    lines = StringIO(code).readlines()
    lines.insert(_end_of_futures(code), prelude)
    return "".join(lines)


def _end_of_futures(code: str) -> int:
    """The line of the last `from __future__` that may stand where it does; reads only the top."""
    if "__future__" not in code:
        return 0
    end = 0
    statement: list[tokenize.TokenInfo] = []
    with contextlib.suppress(SyntaxError, tokenize.TokenError):  # running it will say so
        for token in tokenize.generate_tokens(StringIO(code).readline):
            if token.type not in (tokenize.NEWLINE, tokenize.NL, tokenize.COMMENT):
                statement.append(token)
            elif token.type == tokenize.NEWLINE and statement:  # a lone backslash is none
                if [each.string for each in statement[:2]] == ["from", "__future__"]:
                    end = token.start[0]
                elif statement[0].type != tokenize.STRING:  # which a docstring is
                    break
                statement = []
    return end

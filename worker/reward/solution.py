"""The program in what a model wrote, and the program that calls a function of it."""

import json

# Whatever the model's code imports for itself, code for such tasks is written as if all
# this were there. Executed apart from it, so that its first line may be a `from __future__`.
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

# A line of stdin is one argument; what the function returns is printed.
_CALL = """\
import json as _json, sys as _sys
_prelude = {{"__name__": "__main__"}}
exec(compile({prelude}, "<prelude>", "exec"), _prelude)
_space = dict(_prelude)
exec(compile({code}, "<solution>", "exec"), _space)
_given = _sys.stdin.read()
_arguments = [_json.loads(_line) for _line in _given.split("\\n")] if _given.strip() else []
_function = _space.get({name})
if _function is _prelude.get({name}):  # `add` of `operator` is not the solution's
    _function = None
if _function is None and "Solution" in _space:
    _function = getattr(_space["Solution"](), {name}, None)
if _function is None:
    _sys.exit("there is no function " + {name} + ", and no class Solution that has it")
_result = _function(*_arguments)
_as_json = _result is None or isinstance(_result, (bool, dict, list, tuple))
print(_json.dumps(_result) if _as_json else _result)
"""


def code_of(completion: str) -> str | None:
    """The last ```python block, else the first block of any kind; None where there is none."""
    if "```python" in completion:
        return completion.rpartition("```python")[2].partition("```")[0]
    pieces = completion.split("```")
    if len(pieces) < 2:
        return None
    language, newline, code = pieces[1].partition("\n")
    return code if newline and language.strip().isalpha() else pieces[1]


def calling(code: str, function: str) -> str:
    """A program that calls a function of the code, or a method of its class `Solution`.

    Arguments are JSON, a line of stdin each. The result is printed as JSON where it is
    a container, a truth value or None, else as text. A function that raises ends the
    program with its traceback and a code that is not 0.
    """
    return _CALL.format(
        prelude=repr(_PRELUDE), code=repr(code), name=json.dumps(function, ensure_ascii=True)
    )

"""Cases as datasets write them, read into the one form that is judged.

    given = read_cases(row["input_output"])          # a dict, a list, or their JSON
    given.cases, given.function, given.compare

A format is known by its shape. What fits none, or contradicts itself, raises `RequestRefused`,
which says what is wrong and in which case.
"""

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pydantic import ValidationError

from ground.numbers import shown
from jail.errors import RequestRefused
from jail.judge.arguments import arguments_of
from jail.judge.models import MAX_CASES, Compare, JudgeCase, Mode
from jail.judge.packed import Packed, pack
from jail.models import MAX_STDIN

MAX_SUITE = 512 << 20  # bytes of all cases of one problem
_TAIL = 64  # characters

LINES = Compare(rule="lines")  # scraped outputs end in blanks, which no program is to repeat
LIVECODEBENCH = Compare(rule="decimals")
CODECONTESTS = Compare(rule="floats", abs=1e-5, rel=0.0)
_CHECK = re.compile(r"^def check\(", re.MULTILINE)
_TEST_CASES = re.compile(r"^class (\w+)\(.*TestCase\b", re.MULTILINE)
_RUN_ALL = """

import unittest

for tests in ({},):
    found = unittest.TextTestRunner().run(unittest.defaultTestLoader.loadTestsFromTestCase(tests))
    assert found.wasSuccessful() and found.testsRun
"""


@dataclass(frozen=True)
class Cases:
    """The cases of one problem, and what the dataset says of how they are judged."""

    cases: Sequence[JudgeCase]
    function: str | None = None
    compare: Compare = field(default_factory=Compare)
    run_timeout: float | None = None
    memory_limit_mb: int | None = None
    values: bool = True  # False: what a function returns is printed, as verl does it

    @property
    def mode(self) -> Mode:
        """How they are judged, unless an interactor does it."""
        if self.function:
            return "function"
        return "check" if any(case.check for case in self.cases) else "stdin"

    @cached_property
    def size(self) -> int:
        """The size of all of them in bytes of UTF-8: counted once, for all programs."""
        return sum(case.size for case in self.cases)

    @cached_property
    def end_in_blanks(self) -> bool:
        """Whether a line that is expected last does, before its newline."""
        return any(
            text[-_TAIL:].rstrip("\n").endswith((" ", "\t", "\r"))
            for case in self.cases
            for text in ([case.expected] if isinstance(case.expected, str) else case.expected or ())
        )

    @cached_property
    def packed(self) -> Packed:
        """The cases as Redis keeps them: made once, for all programs that are judged on these
        cases."""
        return pack(self.cases)


def read_cases(given: Any) -> Cases:
    """Cases in any of the formats below, or their JSON; at least one, at most 10,000.

    verl, APPS, TACO    {inputs, outputs, fn_name?, assert_case?}, also within `input_output`
    LiveCodeBench       {public_test_cases, private_test_cases?, metadata?}, or either list
    CodeContests        {public_tests, private_tests, generated_tests, time_limit?, …}
    PrimeIntellect      [{type, input, output, fn_name?}]
    Sandbox Fusion      {test: [{input: {stdin}, output: {stdout}}]}
    ScaleBox            {test_cases: {type?, input, output, fn_name?}}, or a list of objects
    asserts             ["assert f(1) == 2"], or MBPP's {test_list, test_setup_code?}
    HumanEval           {test, entry_point}; BigCodeBench's test defines a TestCase, and no `check`
    Penstock            [{input, expected}], or {cases: [...], function?, compare?, run_timeout?}

    What programs print is compared by the rule `lines`, but LiveCodeBench's by `decimals`,
    CodeContests' by `floats`, and Penstock's own by `ends`.
    """
    try:
        read = check_cases(_read(given))
    except RecursionError:
        raise RequestRefused("the cases are nested too deeply to be read") from None
    for index, case in enumerate(read.cases if read.function else ()):
        try:
            arguments_of(case.input.encode())
        except ValueError as wrong:
            raise _wrong(index, f"has as an argument {wrong}") from None
    return read


def check_cases(given: Cases) -> Cases:
    """The cases, checked. Raises `RequestRefused` for none, for too many, for too large."""
    cases = given.cases
    if not cases:
        raise RequestRefused("there are no cases: a program is judged on at least one")
    if len(cases) > MAX_CASES:
        raise RequestRefused(f"there are {len(cases):,} cases, and at most {MAX_CASES:,} are taken")
    total = 0
    for index, case in enumerate(cases):
        total += case.size
        if case.size > MAX_STDIN:
            raise _wrong(index, f"has {case.size:,} bytes, and at most {MAX_STDIN:,} are taken")
        if total > MAX_SUITE:
            raise RequestRefused(
                f"the cases are more than {MAX_SUITE:,} bytes together, from case {index} on"
            )
    return given


def _read(given: Any) -> Cases:
    return _of_list(given) if isinstance(given := _parsed(given), list) else _of_dict(given)


def _wrong(index: int, why: str) -> RequestRefused:
    return RequestRefused(f"case {index} {why}")


def _parsed(given: Any) -> Any:
    if not isinstance(given, str | bytes):
        return given
    try:
        return json.loads(given)
    except (ValueError, RecursionError) as wrong:
        raise RequestRefused(f"the cases are not JSON: {wrong!s:.200}") from None


def _of_dict(given: Any) -> Cases:
    if not isinstance(given, dict):
        raise RequestRefused(f"cases are an object or a list, not {type(given).__name__}")
    given = _present(given)
    for key, read in _BY_KEY.items():
        if key in given:
            return read(given)
    known = ", ".join(_BY_KEY)
    raise RequestRefused(
        f"the format of the cases is unknown: it has {', '.join(map(str, given))[:100] or 'no key'}"
        f", and none of {known}"
    )


def _present(given: dict[str, Any]) -> dict[str, Any]:
    """The fields without what is None, as columns are that only another dataset of a joined one
    has."""
    return {name: value for name, value in given.items() if value is not None}


def _of_list(given: list[Any]) -> Cases:
    if not given:
        return Cases([])
    if all(isinstance(one, str) for one in given):
        return Cases([checked_case(index, check=check) for index, check in enumerate(given)])
    cases = []
    functions: set[str | None] = set()
    compare = Compare()
    for index, one in enumerate(given):
        if not isinstance(one, dict):
            raise _wrong(index, f"is an object, not {type(one).__name__}")
        cases.append(_of_object(index, one))
        functions.add(_function_of(one))
        if one.get("testtype") == "stdin":
            compare = LIVECODEBENCH
        elif "expected" not in one and compare != LIVECODEBENCH:
            compare = LINES
    if len(functions) > 1:
        raise RequestRefused(f"the cases call several functions: {sorted(map(str, functions))}")
    function = functions.pop()
    return Cases(cases, function, Compare() if function else compare)


def _function_of(one: dict[str, Any]) -> str | None:
    """The function as a case names it itself, or in its metadata, as LiveCodeBench's do in some
    copies."""
    about = _parsed(one.get("metadata") or {})
    named = one.get("fn_name") or (about.get("func_name") if isinstance(about, dict) else None)
    return str(named) if named else None


def _of_object(index: int, one: dict[str, Any]) -> JudgeCase:
    """A case whose parts are named: the form of several datasets, and of Penstock."""
    says = not one.get("check") and ("output" in one or "expected" in one)
    one = _present(one)
    kind = one.get("type") or one.get("testtype") or ""
    if kind == "assert" or (one.get("check") and "input" not in one):
        check = one.get("check") or one.get("test") or one.get("input")
        return checked_case(index, check=_text(index, "check", check))
    if "input" not in one:
        raise _wrong(index, f"has no input: it has {', '.join(map(str, one))[:100]}")
    given, expected = one["input"], one.get("expected", one.get("output"))
    if isinstance(given, dict) and "stdin" in given:  # Sandbox Fusion's
        given = given["stdin"]
        expected = expected.get("stdout") if isinstance(expected, dict) else expected
    check = _text(index, "check", one.get("check") or "")
    if kind == "functional":  # LiveCodeBench's: the output is JSON, as the arguments are
        _value(index, "output", expected)
    shape = None if kind == "functional" else given
    if kind in ("functional", "function_call") or one.get("fn_name"):
        return checked_case(
            index,
            input=_arguments(index, given),
            expected=_returned(index, shape, expected) if says or expected is not None else None,
            check=check,
        )
    accepted = (
        [_text(index, "expected", each) for each in expected]
        if isinstance(expected, list) and "expected" in one
        else None if expected is None else _text(index, "expected", expected)
    )  # fmt: skip
    return checked_case(index, input=_text(index, "input", given), expected=accepted, check=check)


def checked_case(index: int, **parts: Any) -> JudgeCase:
    """Make a case of its parts. `RequestRefused` names the case that is no text, or too large."""
    try:
        return JudgeCase(**parts)
    except ValidationError as refusal:
        first = refusal.errors(include_url=False, include_input=False)[0]
        why = first["msg"].removeprefix("Value error, ")
        raise _wrong(index, f"{first['loc'][0]} {why}") from None


def _text(index: int, what: str, value: Any) -> str:
    """Lists of lines are joined, as APPS and TACO have them."""
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    if not isinstance(value, str):
        raise _wrong(index, f"has as its {what} {shown(value)}, and text is read and printed")
    return value


def _value(index: int, what: str, text: Any) -> Any:
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError):
        raise _wrong(index, f"has as its {what} {shown(text)}, which is not JSON") from None


def _as_json(index: int, what: str, value: Any) -> str:
    try:
        return json.dumps(value)
    except (ValueError, TypeError, RecursionError):
        raise _wrong(
            index, f"has as its {what} a {type(value).__name__} that JSON cannot hold"
        ) from None


def _arguments(index: int, given: Any) -> str:
    """A JSON value a line. Text is that already; a list has an argument in each element."""
    if given is None or isinstance(given, str):
        return given or ""
    values = given if isinstance(given, list) else [given]
    return "\n".join(_as_json(index, "input", value) for value in values)


def _returned(index: int, given: Any, expected: Any) -> str | list[str]:
    """The accepted returns, as JSON. Beside arguments that are JSON it is JSON already; text that
    is none is itself. APPS puts the value into a list of its own, and not always."""
    if isinstance(expected, str) and not isinstance(given, list):
        return expected
    alone = isinstance(given, list) and isinstance(expected, list) and len(expected) == 1
    returned = [
        _as_json(index, "output", value)
        for value in ([expected, expected[0]] if alone else [expected])
    ]
    return returned if alone else returned[0]


def _pairs(given: dict[str, Any]) -> Cases:
    """verl's, APPS', TACO's: lists side by side."""
    inputs, outputs = _listed(given, "inputs"), _listed(given, "outputs")
    asserts = given.get("assert_case")
    checks = _listed(given, "assert_case") if asserts is not None else [""] * len(inputs)
    if not len(inputs) == len(outputs) == len(checks):
        raise RequestRefused(
            f"there are {len(inputs)} inputs, {len(outputs)} outputs"
            + (f" and {len(checks)} assertions" if asserts is not None else "")
        )
    function = given.get("fn_name") or None
    cases = []
    for index, (one, expected, check) in enumerate(zip(inputs, outputs, checks, strict=True)):
        if function:
            into = _arguments(index, one)
            nothing = expected is None and check  # which is all of it then
            out = None if nothing else _returned(index, one, expected)
        else:
            into = "" if one is None else _text(index, "input", one)
            out = None if expected is None else _text(index, "output", expected)
        cases.append(
            checked_case(index, input=into, expected=out, check=_text(index, "check", check))
        )
    return Cases(cases, function, Compare() if function else LINES)


def _listed(given: dict[str, Any], name: str) -> list[Any]:
    found = given.get(name)
    if not isinstance(found, list):
        raise RequestRefused(f"the cases' {name} are a list, not {shown(found)}")
    return found


def _nested(given: dict[str, Any]) -> Cases:
    return _read(given["input_output"])


def _asserts(given: dict[str, Any]) -> Cases:
    if "inputs" in given or "outputs" in given:
        return _pairs(given)
    return _of_list(_listed(given, "assert_case"))


def _mbpp(given: dict[str, Any]) -> Cases:
    imports, setup = given.get("test_imports") or [], given.get("test_setup_code") or ""
    if not isinstance(imports, list) or not all(isinstance(line, str) for line in imports):
        raise RequestRefused(f"test_imports are a list of lines, not {shown(imports)}")
    if not isinstance(setup, str):
        raise RequestRefused(f"test_setup_code is text, not {shown(setup)}")
    before = "\n".join([*imports, setup]).strip()
    before = f"{before}\n" if before else ""
    checks = _listed(given, "test_list")
    return Cases(
        [checked_case(i, check=before + _text(i, "check", c)) for i, c in enumerate(checks)]
    )


def _livecodebench(given: dict[str, Any]) -> Cases:
    cases: list[JudgeCase] = []
    compare = LINES
    functions: list[str | None] = []
    for name in ("public_test_cases", "private_test_cases"):
        if (some := given.get(name)) is None:
            continue
        try:
            read = _of_list(_as_list(name, some))
        except RequestRefused as wrong:
            raise RequestRefused(
                f"{name}: {wrong}. If it is a pickle, which could run anything, convert it offline"
            ) from None
        cases += read.cases
        compare = LIVECODEBENCH if LIVECODEBENCH in (compare, read.compare) else LINES
        functions.append(read.function)
    function = next(filter(None, [_function_of(given), *functions]), None)
    return Cases(cases, function, Compare() if function else compare)


def _as_list(name: str, some: Any) -> list[Any]:
    if not isinstance(read := _parsed(some), list):
        raise RequestRefused(f"{name} is a list, not {type(read).__name__}")
    return read


def _codecontests(given: dict[str, Any]) -> Cases:
    for name in ("input_file", "output_file"):
        if given.get(name):
            raise RequestRefused(f"the program uses {name} {shown(given[name])}, and not its stdin")
    cases: list[JudgeCase] = []
    for name in ("public_tests", "private_tests", "generated_tests"):
        part = given.get(name)
        if part is None:
            continue
        if isinstance(part, dict):
            cases += _pairs({"inputs": part.get("input"), "outputs": part.get("output")}).cases
        else:
            cases += _of_list(_as_list(name, part)).cases
    limit = given.get("time_limit")
    if isinstance(limit, dict):
        seconds = _number("time_limit", limit.get("seconds"))
        seconds += _number("time_limit", limit.get("nanos")) / 1e9
    else:
        seconds = _number("time_limit", limit)
    memory = int(_number("memory_limit_bytes", given.get("memory_limit_bytes")))
    return Cases(
        cases, None, CODECONTESTS, seconds or None, max(1, memory >> 20) if memory else None
    )


def _number(name: str, value: Any) -> float:
    """The number of a field; 0 for one that is not given."""
    try:
        number = float(0 if value is None else value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0 <= number < math.inf:
        raise RequestRefused(f"{name} is a number, 0 or more, and not {shown(value)}")
    return number


def _scalebox(given: dict[str, Any]) -> Cases:
    cases = given["test_cases"]
    if isinstance(cases, list):
        return _of_list(cases)
    if not isinstance(cases, dict):
        raise RequestRefused(f"test_cases are an object or a list, not {type(cases).__name__}")
    kind, function = cases.get("type"), cases.get("fn_name")
    if kind == "assert":
        return _of_list(_listed(cases, "input"))
    inputs, outputs = _listed(cases, "input"), _listed(cases, "output")
    return _pairs({"inputs": inputs, "outputs": outputs, "fn_name": function})


def _test(given: dict[str, Any]) -> Cases:
    """HumanEval's one function of assertions, BigCodeBench's TestCase, or Sandbox Fusion's list."""
    test = given["test"]
    if not (isinstance(test, str) and given.get("entry_point")):
        return _of_list(_as_list("test", test))
    name = _text(0, "entry_point", given["entry_point"])
    if _CHECK.search(test):
        return Cases([checked_case(0, check=f"{test}\n\ncheck({name})")])
    if found := _TEST_CASES.findall(test):
        return Cases([checked_case(0, check=test + _RUN_ALL.format(", ".join(found)))])
    raise RequestRefused(
        "the test defines neither `check` nor a TestCase: no program could pass it"
    )


def _own(given: dict[str, Any]) -> Cases:
    if not isinstance(given["cases"], list):
        raise RequestRefused(f"cases are a list, not {type(given['cases']).__name__}")
    read = _of_list(given["cases"])
    rule = given.get("compare") or read.compare
    try:
        compare = Compare.model_validate({"rule": rule} if isinstance(rule, str) else rule)
    except ValueError:
        raise RequestRefused(f"compare is a rule of comparison, not {shown(rule)}") from None
    function = given.get("function") or read.function
    return Cases(
        read.cases, function, compare, given.get("run_timeout"), given.get("memory_limit_mb")
    )


_BY_KEY: dict[str, Callable[[dict[str, Any]], Cases]] = {
    "input_output": _nested,
    "inputs": _pairs,
    "outputs": _pairs,
    "assert_case": _asserts,
    "test_list": _mbpp,
    "public_test_cases": _livecodebench,
    "private_test_cases": _livecodebench,
    "public_tests": _codecontests,
    "private_tests": _codecontests,
    "generated_tests": _codecontests,
    "test_cases": _scalebox,
    "test": _test,
    "cases": _own,
}

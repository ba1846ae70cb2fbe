"""Cases that call a function: what is called, and whether what it returned is right.

The program's process gets the calls, and never what is expected. What leaves it is plain JSON
(`jail/inside/values.py`), which is compared here: nothing of the program's own has a say.

A check whose statements are all assertions of such calls is a case of this kind as well:

    assert f(1, [2]) == {"a": 3}     assert f(1)     assert not f(1)     assert f(1) is None

also within HumanEval's `def check(candidate):`. It holds as its assertion says: a list is no tuple.
A row's value holds as JSON means it: a tuple is a list, and a key is text. Assertions of C++,
JavaScript and bash are read by `jail/judge/apart`.
"""

import ast
import asyncio
import builtins
import json
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple, cast

from jail.errors import SandboxUnfit
from jail.inside.values import Other, plain, text_of, thing
from jail.judge.apart import bash, cpp, nodejs
from jail.judge.apart.assertions import apart_of
from jail.judge.arguments import arguments_of
from jail.judge.findings import COMMENT, CaseVerdict
from jail.judge.models import Compare, JudgeRequest
from jail.judge.suite import Case

How = Literal[
    "row", "any", "==", "is", "true", "false", "word",
    "number", "number, or octal",
    "c++", "js", "js loose", "js true", "js false",
]  # fmt: skip
_LARGE = 64 << 10  # bytes; longer ones are read and compared beside the event loop


class Wanted(NamedTuple):
    """The value that a call must return: by which rule it is right, and the accepted answers, as
    JSON."""

    how: How
    answers: tuple[bytes, ...] = ()


class Calls(NamedTuple):
    """The calls of one case: the JSON of what is called, and what is wanted of each call. In a
    language other than Python, the calls are a text that is put `behind` the program."""

    text: bytes
    wanted: tuple[Wanted, ...]
    behind: str = ""


async def calls_asked(request: JudgeRequest, case: Case) -> Calls | None:
    """Read a case as `calls_of` does, and nobody else waits while much is read."""
    if len(case.check) + len(case.input) > _LARGE:
        return await asyncio.to_thread(calls_of, request, case)
    return calls_of(request, case)


def calls_of(request: JudgeRequest, case: Case) -> Calls | None:
    """None for a case that is judged by what it prints, or by an assertion in its own process.
    Raises `SandboxUnfit` for arguments that no function can be given."""
    if is_whole(case):
        if not request.judges_values:
            return None
        if request.language == "python":
            return calls_in_check(case.check)
        return _calls_behind(request.language, case.check)
    if request.function is None:
        return None
    try:
        lines = arguments_of(case.input)
    except ValueError as wrong:
        raise SandboxUnfit(
            f"a case of the suite has as an argument {wrong}", reason="suite_unfit"
        ) from None
    if not request.judges_values:
        return None
    text = b"[[%s,[%s],{}]]" % (json.dumps(request.function).encode(), b",".join(lines))
    wanted = Wanted("any") if case.expected is None else Wanted("row", case.expected)
    return Calls(text, (wanted,))


def _calls_behind(language: str, check: str) -> Calls | None:
    if (found := apart_of(language, check)) is None:
        return None
    wanted = tuple(Wanted(cast(How, how), (value,)) for how, value in found.held)
    return Calls(b"", wanted, found.behind)


def is_whole(case: Case) -> bool:
    """Whether its assertions are all of it: nothing is read, called or compared besides."""
    return bool(case.check.strip()) and not case.input.strip() and not b"".join(case.expected or ())


async def verdict_of(compare: Compare, calls: Calls, answer: bytes | None) -> CaseVerdict:
    """The verdict on what all calls returned; `answer` is None if the program gave none."""
    if not answer:
        return CaseVerdict("E", "no_answer")
    size = len(answer) + sum(len(text) for wanted in calls.wanted for text in wanted.answers)
    asked = (compare, calls.wanted, answer)
    match await asyncio.to_thread(are_right, *asked) if size > _LARGE else are_right(*asked):
        case None:
            return CaseVerdict("E", "no_answer")
        case True:
            return CaseVerdict("P")
    return CaseVerdict("W", comment=answer[:COMMENT].decode(errors="replace"))


def are_right(compare: Compare, wanted: Sequence[Wanted], answer: bytes) -> bool | None:
    """None if the answer is not the harness's."""
    alone = wanted[0] if len(wanted) == 1 else Wanted("word")
    if answer[1:-1] in alone.answers and alone.how != "word" and b"NaN" not in answer:
        return True
    try:
        found = thing(json.loads(answer))
    except (ValueError, TypeError, RecursionError):
        return None
    if type(found) is not list or len(found) != len(wanted):
        return None
    try:
        return all(_is_right(compare, *each) for each in zip(wanted, found, strict=True))
    except (RecursionError, OverflowError):
        return False


def value_in(text: bytes) -> Any:
    """The value of JSON; text that is none is itself."""
    try:
        return thing(json.loads(text))
    except (ValueError, TypeError, RecursionError):
        return text.decode(errors="replace")


def _is_right(compare: Compare, wanted: Wanted, found: Any) -> bool:
    if wanted.how in ("any", "true", "false"):
        return wanted.how == "any" or bool(found) == (wanted.how == "true")
    if wanted.how in ("js true", "js false"):
        return nodejs.is_true(found) == (wanted.how == "js true")
    answers = map(value_in, wanted.answers)
    match wanted.how:
        case "number" | "number, or octal" as how:
            return bash.number_in(str(found), octal=how != "number") in answers
        case "word":
            return any(str(found).split() == [answer] for answer in answers)
        case "c++":
            return any(cpp.same(found, answer) for answer in answers)
        case "js" | "js loose" as how:
            loose = how == "js loose"
            return any(nodejs.same(found, answer, loose=loose) for answer in answers)
        case "is":
            return any(type(found) is type(answer) and found == answer for answer in answers)
        case "==":
            return any(found == answer for answer in answers)
    return any(_same(compare, found, answer, top=True) for answer in answers)


def _same(compare: Compare, found: Any, wanted: Any, *, top: bool = False) -> bool:
    """Values are the same as JSON means it; `floats` allows numbers to differ, `unordered` the
    order of a list."""
    if isinstance(wanted, bool | str | None):
        return type(found) is type(wanted) and found == wanted
    if isinstance(wanted, int | float):
        return isinstance(found, int | float) and _same_number(compare, found, wanted)
    if isinstance(wanted, list | tuple):
        if not isinstance(found, list | tuple) or len(found) != len(wanted):
            return False
        if top and compare.rule == "unordered":
            found, wanted = (sorted(each, key=_in_order) for each in (found, wanted))
        return all(_same(compare, *each) for each in zip(found, wanted, strict=True))
    if isinstance(wanted, dict):
        if not isinstance(found, dict) or len(found) != len(wanted):
            return False
        found, wanted = _by_text(found), _by_text(wanted)
        return found.keys() == wanted.keys() and all(
            _same(compare, found[key], item) for key, item in wanted.items()
        )
    return not isinstance(found, Other) and type(found) is type(wanted) and found == wanted


def _in_order(value: Any) -> str:
    """A text by which values are sorted: the same for all that are the same as JSON means it."""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_in_order, value))}]"
    if isinstance(value, dict):
        pairs = sorted((key, _in_order(item)) for key, item in _by_text(value).items())
        return f"{{{pairs}}}"
    if isinstance(value, float) and value.is_integer():
        return repr(int(value))
    return repr(value)


def _same_number(compare: Compare, found: float, wanted: float) -> bool:
    if compare.rule != "floats" or found == wanted:
        return found == wanted
    if not (math.isfinite(found) and math.isfinite(wanted)):
        return False
    if isinstance(found, int) and isinstance(wanted, int):
        return False
    return abs(found - wanted) <= max(compare.abs, compare.rel * abs(wanted))


def _by_text(given: dict[Any, Any]) -> dict[Any, Any]:
    """Dicts are compared by keys as JSON has them, where any key is text."""
    return {key if type(key) is str else json.dumps(plain(key)): given[key] for key in given}


@lru_cache(256)
def calls_in_check(check: str) -> Calls | None:
    """None if a statement is of another kind."""
    try:
        statements, names = _asserted(ast.parse(check).body)
        read = [_call_in(each, names) for each in statements if not _says_nothing(each)]
        if not read:
            return None
        calls = [call for *call, _ in read]
        return Calls(_json(calls), tuple(wanted for *_, wanted in read))
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None


def _asserted(body: list[ast.stmt]) -> tuple[list[ast.stmt], dict[str, str]]:
    """The statements, and whom a name in them means: `candidate` is another function's."""
    match [each for each in body if not _is_constant(each)]:
        case [
            ast.FunctionDef(
                name="check",
                args=ast.arguments(
                    posonlyargs=[], args=[ast.arg(arg=given)], vararg=None, kwonlyargs=[],
                    kwarg=None, defaults=[],
                ),
                body=statements,
                decorator_list=[],
            ),
            ast.Expr(ast.Call(func=ast.Name("check"), args=[ast.Name(name)], keywords=[])),
        ]:  # fmt: skip
            return statements, {given: name}
    return body, {}


def _is_constant(statement: ast.stmt) -> bool:
    """HumanEval's METADATA, and a text in front."""
    match statement:
        case ast.Assign(targets=[ast.Name("METADATA")]) | ast.Expr(ast.Constant()):
            return True
    return False


def _says_nothing(statement: ast.stmt) -> bool:
    match statement:
        case ast.Pass() | ast.Expr(ast.Constant()) | ast.Assert(test=ast.Constant(True)):
            return True
    return False


def _call_in(
    statement: ast.stmt, names: dict[str, str]
) -> tuple[str, list[Any], dict[str, Any], Wanted]:
    """Read `assert f(1, x=2) == 3`: the function's name, its arguments, and what they should give.
    Raises ValueError for any other statement."""
    if not isinstance(statement, ast.Assert):
        raise ValueError("no assertion")  # noqa: TRY004 - caught beside the others
    call, wanted = _split(statement.test)
    match call:
        case ast.Call(func=ast.Name(name), args=arguments, keywords=keywords):
            if names:
                name = names.get(name, "")
            if not name or name in vars(builtins) or any(each.arg is None for each in keywords):
                raise ValueError("another function")
            return (
                name,
                [ast.literal_eval(each) for each in arguments],
                {str(each.arg): ast.literal_eval(each.value) for each in keywords},
                wanted,
            )
    raise ValueError("no call")


def _split(test: ast.expr) -> tuple[ast.expr, Wanted]:
    match test:
        case ast.Compare(left=call, ops=[ast.Eq()], comparators=[literal]):
            if not isinstance(call, ast.Call) or _is_empty_set(call):
                call, literal = literal, call
            return call, Wanted("==", (_json(ast.literal_eval(literal)),))
        case ast.Compare(
            left=call, ops=[ast.Is()], comparators=[ast.Constant((None | True | False) as value)]
        ):
            return call, Wanted("is", (_json(value),))
        case ast.UnaryOp(op=ast.Not(), operand=ast.Call() as call):
            return call, Wanted("false")
        case ast.Call() as call:
            return call, Wanted("true")
    raise ValueError("another test")


def _is_empty_set(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id == "set" and not call.args


def _json(value: Any) -> bytes:
    """The JSON of a literal. Raises ValueError for one that has none, as a complex number."""
    made = plain(value)
    text = text_of([made])[1:-1]
    if b"$object" in text:
        raise ValueError("no plain value")
    return text

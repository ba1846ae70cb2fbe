"""What is called, and whether what came back is right: by value, outside."""

import json
from decimal import Decimal
from fractions import Fraction

import numpy
import pytest

from jail.inside.values import plain, text_of
from jail.judge.models import Compare
from jail.judge.values import Wanted, are_right, calls_in_check

ROW = [  # what a row expects, what a program returns, and whether that is right
    ("3", 3, True), ("3", 3.0, True), ("3", "3", False), ("3", True, False), ("1", True, True),
    ("true", True, True), ("true", 1, False), ("true", "true", False), ("false", 0, False),
    ("null", None, True), ("null", 0, False), ("null", "null", False),
    ('"ab"', "ab", True), ('"ab"', "ab\n", False), ("ab", "ab", True), ('""', "\n", False),
    ("[1, 2]", [1, 2], True), ("[1,2]", (1, 2), True), ("[1, 2]", "[1, 2]", False),
    ("[1, 2]", [2, 1], False), ("[1, 2]", {1, 2}, False), ("[]", None, False),
    ('{"a": 1, "b": 2}', {"b": 2, "a": 1}, True), ('{"1": 2}', {1: 2}, True),
    ('{"a": 1}', {"a": "1"}, False), ('{"a": 1}', [["a", 1]], False),
    ("0.5", 0.5, True), ("2.0", 2, True), ("0.5", 0.5000001, False), ("0.5", float("nan"), False),
    ("NaN", float("nan"), False), ("0.5", float("inf"), False), ("3", object(), False),
    ("9007199254740993", 9007199254740992.0, False), ("[[1], [2]]", [(1,), (2,)], True),
    ('{"$set": [1, 2]}', {2, 1}, True), ('{"$set": [1, 2]}', frozenset({2, 1}), True),
    ("3", numpy.int64(3), True), ("3", numpy.int64(4), False), ("0.5", numpy.float32(0.5), True),
    ("[3]", [numpy.uint8(3)], True), ("true", numpy.bool_(True), True), ("3", 3 + 0j, False),
    ('{"1": 2}', {numpy.int64(1): 2}, True), ("0", numpy.datetime64(0, "s"), False),
    ("0.1", Decimal("0.1"), True), (str(3**50), Decimal(3**50), True), ("3", Decimal("3.1"), False),
    ("0", Decimal("nan"), False), ("0.5", Fraction(1, 2), True), ("2", Fraction(4, 2), True),
    ("1", numpy.longdouble(1), False), ("[1]", numpy.array([1]), False),
]  # fmt: skip


def found(*returned: object) -> bytes:
    return text_of([plain(each) for each in returned])


@pytest.mark.parametrize(("expected", "returned", "is_right"), ROW)
def test_a_row_is_right_by_value(expected: str, returned: object, is_right: bool) -> None:
    wanted = [Wanted("row", (expected.encode(),))]

    assert are_right(Compare(), wanted, found(returned)) is is_right


def test_any_of_several_answers_is_right() -> None:
    wanted = [Wanted("row", (b"[3]", b"3"))]

    assert [are_right(Compare(), wanted, found(each)) for each in (3, [3], 4)] == [
        True,
        True,
        False,
    ]


def test_a_tolerance_is_for_floats_and_no_other_value() -> None:
    close = Compare(rule="floats", abs=1e-6, rel=0.0)

    def near(expected: bytes, returned: object) -> bool | None:
        return are_right(close, [Wanted("row", (expected,))], found(returned))

    assert near(b"[0.5, [1.0]]", [0.5000001, [1.0000001]])
    assert near(b"1", 1.0000001)
    assert not near(b"10000000", 10000001)
    assert not near(b"0.5", 0.51)
    assert not near(b"0.5", float("nan"))
    assert not near(b"0.5", 10**400)


def test_a_list_may_be_unordered() -> None:
    wanted = [Wanted("row", (b"[[2, 1], [3]]",))]
    anyhow = Compare(rule="unordered")

    assert are_right(anyhow, wanted, found([[3], [2, 1]]))
    assert not are_right(anyhow, wanted, found([[3], [1, 2]]))
    rows = [Wanted("row", (b'[{"a": 1, "b": 2}, {"a": 0, "b": 9.0}]',))]
    assert are_right(anyhow, rows, found([{"b": 9, "a": 0}, {"b": 2, "a": 1}]))
    assert not are_right(anyhow, rows, found([{"b": 9, "a": 1}, {"b": 2, "a": 0}]))


@pytest.mark.parametrize(
    "answer",
    [b"", b"3", b"[3", b"[3][3]", b"[3,3]", b"{}", b"[" * 10**5, b'[{"$tuple":3}]', b"\xff"],
    ids=range(9),
)
def test_what_no_harness_writes_is_no_answer(answer: bytes) -> None:
    assert are_right(Compare(), [Wanted("row", (b"3",))], answer) is None


@pytest.mark.parametrize("kind", ["set", "dict"])
def test_a_forged_answer_of_keys_with_one_hash_is_no_answer(kind: str) -> None:
    """A set of them would take the judge minutes."""
    alike = [n * (2**61 - 1) for n in range(40_000)]
    forged = [{f"${kind}": alike if kind == "set" else [[each, 0] for each in alike]}]

    assert are_right(Compare(), [Wanted("row", (b"3",))], json.dumps(forged).encode()) is None
    assert are_right(Compare(), [Wanted("==", (b'{"$set":[-1,-2]}',))], found({-1, -2}))


class Liar:
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


def lying(base: type) -> type:
    """A subclass that says something else by each of its methods."""
    said = dict.fromkeys(
        ("__str__", "__repr__", "__iter__", "__index__", "__int__", "__float__", "items", "keys",
         "__getitem__", "__len__", "__format__"), lambda *_: pytest.fail("was asked"),
    )  # fmt: skip
    return type(f"Lying{base.__name__}", (base,), {**said, "__eq__": lambda *_: True,
                                                  "__hash__": base.__hash__})  # fmt: skip


VALUES = [
    (lying(int)(3), b"[3]"), (lying(float)(0.5), b"[0.5]"), (lying(str)("a"), b'["a"]'),
    (lying(list)([1]), b"[[1]]"), (lying(tuple)((1,)), b'[{"$tuple":[1]}]'),
    (lying(dict)(a=1), b'[{"a":1}]'), (lying(dict)({1: 2}), b'[{"$dict":[[1,2]]}]'),
    (lying(set)({1}), b'[{"$set":[1]}]'), (lying(frozenset)({1}), b'[{"$set":[1]}]'),
    (lying(bytes)(b"\1"), b'[{"$bytes":"01"}]'), (Liar(), b'[{"$object":""}]'),
    ({"$set": 1}, b'[{"$dict":[["$set",1]]}]'), ("\ud800", b'["\\ud800"]'),
]  # fmt: skip


@pytest.mark.parametrize("at", range(len(VALUES)))
def test_only_the_builtin_base_of_a_value_is_read(at: int) -> None:
    value, text = VALUES[at]

    assert text_of([plain(value)]) == text


def test_a_value_that_holds_itself_is_too_deep() -> None:
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(ValueError, match="deeper than 200 levels"):
        plain(endless)


HUMANEVAL = """

METADATA = {'author': 'jt', 'dataset': 'test'}


def check(candidate):
    # Check some simple cases
    assert True, "This prints if this assert fails 1 (good for debugging!)"
    assert candidate([1.0, 2.0], 0.3) == True, "a message"
    assert not candidate(-1, step=2)

check(has_close_elements)"""

READ = {  # a check, and its calls
    "assert f(1) == 2": b'[["f",[1],{}]]',
    "assert 2 == f(1), f'{x}'": b'[["f",[1],{}]]',
    "assert f((1, {2: 'a'}), k={3}) is None": b'[["f",[{"$tuple":[1,{"$dict":[[2,"a"]]}]}],'
    b'{"k":{"$set":[3]}}]]',
    "'a text'\nassert f()\nassert not g(-1)": b'[["f",[],{}],["g",[-1],{}]]',
    HUMANEVAL: b'[["has_close_elements",[[1.0,2.0],0.3],{}],'
    b'["has_close_elements",[-1],{"step":2}]]',
    "assert set() == f()": b'[["f",[],{}]]',
    "": None,
    "this is no Python": None,
    "assert f(x) == 1": None,
    "assert f(1) == x": None,
    "assert f(1) < 2": None,
    "assert f(1) == f(2)": None,
    "assert a.f(1) == 2": None,
    "assert f(*[1]) == 2": None,
    "assert f(**{'a': 1}) == 2": None,
    "assert f(1) == 2 == 2": None,
    "assert len([1]) == 1": None,
    "assert f(1) == 2\nprint(1)": None,
    "import math\nassert f(1) == 2": None,
    "assert abs(f(1) - 2) < 1e-6": None,
    "def check(candidate):\n    assert other(1) == 2\ncheck(f)": None,
    "assert f(1) == ...": None,
    "assert f(0, 1j) == 2": None,
    "assert f(x=[...]) == 2": None,
}


@pytest.mark.parametrize("check", READ)
def test_a_check_of_plain_calls_is_read(check: str) -> None:
    calls = calls_in_check(check)

    assert (calls and calls.text) == READ[check]


ASSERTED = [  # as `==` and `is` of Python say it
    ("assert f() == [1, 2]", [1, 2], True), ("assert f() == [1, 2]", (1, 2), False),
    ("assert f() == (1, 2)", (1, 2), True), ("assert f() == True", 1, True),
    ("assert f() is True", 1, False), ("assert f() is True", True, True),
    ("assert f() is None", None, True), ("assert f() is None", 0, False),
    ("assert f() == {1: 2}", {1: 2}, True), ("assert f() == {1: 2}", {"1": 2}, False),
    ("assert f() == {'a', 'b'}", {"b", "a"}, True), ("assert f() == b'a'", b"a", True),
    ("assert f()", [0], True), ("assert f()", [], False), ("assert f()", object(), True),
    ("assert not f()", "", True), ("assert not f()", object(), False),
    ("assert f() == 3", object(), False), ("assert f() == {(1, 2): [3]}", {(1, 2): [3]}, True),
    ("assert f()", numpy.bool_(False), False), ("assert not f()", numpy.int32(0), True),
    ("assert f() == True", numpy.bool_(True), True), ("assert f() == {3}", {numpy.int8(3)}, True),
]  # fmt: skip


@pytest.mark.parametrize(("check", "returned", "holds"), ASSERTED)
def test_an_assertion_holds_as_python_says(check: str, returned: object, holds: bool) -> None:
    calls = calls_in_check(check)
    assert calls is not None

    assert are_right(Compare(), calls.wanted, found(returned)) is holds

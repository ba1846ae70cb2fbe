"""Assertions in C++, JavaScript and bash that hold outside: which are read, and when they do."""

import json

import pytest

from jail.judge.apart.assertions import answer_in, apart_of
from jail.judge.apart.parts import MARK
from jail.judge.models import Compare
from jail.judge.values import Wanted, are_right


def wrapped(language: str, assertion: str) -> str:
    if language == "cpp":
        return f"#include <cassert>\nint main() {{ {assertion} }}"
    return f"const assert = require('assert'); {assertion}" if language == "nodejs" else assertion


HOLDS = [  # an assertion, what the call returned, as JSON, and whether it holds
    ("cpp", "assert(f(1) == 3);", "3", True),
    ("cpp", "assert(f(1) == 3);", "4", False),
    ("cpp", "assert(f(1) == 3);", '"3"', False),
    ("cpp", "assert(3 == f(1));", "3", True),
    ("cpp", "assert((f((1))) == (0x10));", "16", True),
    ("cpp", "assert(f(1) == true);", "1", True),
    ("cpp", "assert(f('a', \"b\\\"c\") == 'c');", "99", True),
    ("cpp", "assert(f(1) == 0.1f);", "0.10000000149011612", True),
    ("cpp", "assert(f(1) == 0.1);", "0.10000000149011612", False),
    ("cpp", "assert(f(1) == -1.5e3);", "-1500", True),
    ("cpp", "assert(f(1) == 1'000'000'000'000LL);", "1000000000000", True),
    ("cpp", 'assert(f(1) == "ab" "c");', '"abc"', True),
    ("cpp", 'assert(f(1) == std::string("a\\n"));', '"a\\u000a"', True),
    ("cpp", 'assert(f(1) == "é");', '"\\u00c3\\u00a9"', True),
    ("cpp", "assert(f({1, 2}) == std::vector<int>{1, 2});", "[1,2]", True),
    ("cpp", "assert(f(1) == (vector<long>({(long)1, (long)2})));", "[1,2]", True),
    ("cpp", "assert(f(1) == (vector<long>({(long)1, (long)2})));", "[2,1]", False),
    ("cpp", "assert(f(1) == (vector<vector<float>>{{1.1}, {}}));", "[[1.10000002384],[]]", False),
    ("cpp", "assert(f(1) == (set<int>{2, 1}));", '{"$bag":[1,2]}', True),
    ("cpp", 'assert(f(1) == (map<string, int>{{"b", 1}, {"a", 2}}));',
     '{"$bag":[["a",2],["b",1]]}', True),
    ("cpp", 'assert(f(1) == make_tuple(1, "a"));', '[1,"a"]', True),
    ("cpp", "assert(f(1) == pair<int, bool>(1, true));", "[1,1]", True),
    ("cpp", "assert(f(1) == std::nullopt);", "null", True),
    ("cpp", "assert(f(1) == std::nullopt);", "0", False),
    ("cpp", "assert(f(1) == 3);", '{"$object":""}', False),
    ("cpp", "assert(f(1) == -1);", '{"$unsigned":[18446744073709551615,-1]}', True),
    ("cpp", "assert(f(1) == -2);", '{"$unsigned":[18446744073709551615,-1]}', False),
    ("cpp", "assert(f(1) == -1.0);", '{"$unsigned":[18446744073709551615,-1]}', False),
    ("cpp", "assert(f(1) == -1);", "255", False),
    ("cpp", "assert(f(1));", '{"$unsigned":[18446744073709551615,-1]}', True),
    ("cpp", "assert(!f(1));", "0", True),
    ("cpp", "assert(f(1));", "0", False),
    ("cpp", "vector<int> a = {1, 2}; auto g = f; assert(g(a) == 2);", "2", True),
    ("nodejs", "assert.strictEqual(f(1), 3)", "3", True),
    ("nodejs", "assert.strictEqual(f(1), 3)", "3.0", True),
    ("nodejs", "assert.strictEqual(3, f(1), 'three')", "3", True),
    ("nodejs", "assert.strictEqual(f(1), 3)", '"3"', False),
    ("nodejs", "assert.strictEqual(f(1), 1)", "true", False),
    ("nodejs", "assert.equal(f(1), 1)", "true", True),
    ("nodejs", "assert.equal(f(1), 3)", '" 3 "', True),
    ("nodejs", "assert.equal(f(1), null)", '{"$undefined":""}', True),
    ("nodejs", "assert.strictEqual(f(1), null)", '{"$undefined":""}', False),
    ("nodejs", "assert.strictEqual(f(1), undefined)", '{"$undefined":""}', True),
    ("nodejs", "assert.equal(f(1), 0)", "null", False),
    ("nodejs", "assert.equal(f(1), 3)", '"x"', False),
    ("nodejs", "assert.equal(f(1), 15511210043330985984000000)", "1.5511210043330986e+25", True),
    ("nodejs", "assert.deepEqual(f(1), [-9007199254740993])", "[-9007199254740992]", True),
    ("nodejs", "assert.strictEqual(f(1), 12345678901234567890)", "12345678901234567000", True),
    ("nodejs", "assert.strictEqual(f(1), 9007199254740993n)", '{"$big":"9007199254740992"}', False),
    ("nodejs", "assert.strictEqual(f(1), NaN)", '{"$number":"NaN"}', True),
    ("nodejs", "assert.strictEqual(f(1), -Infinity)", '{"$number":"-Infinity"}', True),
    ("nodejs", "assert.strictEqual(f(1), -7n)", '{"$big":"-7"}', True),
    ("nodejs", "assert.strictEqual(f(1), [1])", "[1]", True),
    ("nodejs", "assert(f(1) === [1])", "[1]", True),
    ("nodejs", "assert(f(1) === {a: 1})", '{"a":2}', False),
    ("nodejs", "assert.strictEqual(f(1), -0)", "0", True),
    ("nodejs", "assert(f(1) === NaN)", '{"$number":"NaN"}', True),
    ("nodejs", "assert.deepStrictEqual(f([1]), [1, 'a', [true]])", '[1,"a",[true]]', True),
    ("nodejs", "assert.deepStrictEqual(f([1]), ['1'])", "[1]", False),
    ("nodejs", "assert.deepEqual(f([1]), ['1'])", "[1]", True),
    ("nodejs", "assert.deepEqual(f({a: 1}), {b: [], 'c': {}})", '{"c":{},"b":[]}', True),
    ("nodejs", "assert.deepEqual(f({a: 1}), {b: 1})", '{"b":1,"c":2}', False),
    ("nodejs", "assert.deepEqual(f(1), {})", '{"$object":""}', False),
    ("nodejs", "assert.deepEqual(f(1), {a: 1})", '{"$own":{"a":1}}', True),
    ("nodejs", "assert.deepStrictEqual(f(1), {a: 1})", '{"$own":{"a":1}}', False),
    ("nodejs", "assert(f(1) === 'a\\u0062')", '"ab"', True),
    ("nodejs", "assert(f(1))", "[]", True),
    ("nodejs", "assert.ok(!f(1))", '{"$undefined":""}', True),
    ("nodejs", "assert(f(1))", '""', False),
    ("nodejs", "const a = [1]; let g = f; assert.equal(g(a), 2)", "2", True),
    ("nodejs", "console.assert(f(1) === 2)", "2", True),
    ("nodejs", "function test() { assert.equal(f(1), 2); }\ntest();", "2", True),
    ("nodejs", "const test = () => { assert.equal(f(1), 2) }\ntest()", "2", True),
    ("bash", 'test "$(f 1 2)" = 3', '"3"', True),
    ("bash", 'test "$(f 1 2)" = 3', '"3 "', False),
    ("bash", "[ \"$(f 'a b')\" == \"x y\" ]", '"x y"', True),
    ("bash", "[ $(f 'a b') == \"x y\" ]", '"x y"', False),
    ("bash", "test $(f 'a b') = x", '" x "', True),
    ("bash", "[[ $(f 'a b') == x ]]", '" x "', False),
    ("bash", '[[ $(f "a b") = abc ]]', '"abc"', True),
    ("bash", '[ "$(f)" -eq 3 ] || exit 1', '" 3"', True),
    ("bash", '[ "$(f)" -eq 3 ]', '"3x"', False),
    ("bash", '[ "$(f)" -eq 3 ]', '"03"', True),
    ("bash", 'test "$(f)" -eq 010', '"+0010 "', True),
    ("bash", 'test "$(f)" -eq 0', '"-00"', True),
    ("bash", '[[ $(f) -eq 8 ]]', '"010"', True),
    ("bash", '[[ $(f) -eq 010 ]]', '"8"', True),
    ("bash", '[[ $(f) -eq 10 ]]', '"010"', False),
    ("bash", '[[ $(f) -eq 8 ]]', '"08"', False),
    ("bash", '[ "$(f)" -eq 3 ]', '""', False),
    ("bash", '[ "$(f)" -eq 3 ]', f'"{"0" * 5000}3"', True),
    ("bash", '[ "$(f)" -eq 3 ]', f'"{"3" * 5000}"', False),
    ("bash", 'candidate() {\n  f "$@"\n}\nset -e\nrun_test() {\n'
             "  [[ $(candidate 1) = 2 ]]\n}\nrun_test", '"2"', True),
]  # fmt: skip


@pytest.mark.parametrize(("language", "assertion", "returned", "holds"), HOLDS)
def test_an_assertion_holds_as_its_language_says(
    language: str, assertion: str, returned: str, holds: bool
) -> None:
    read = apart_of(language, wrapped(language, assertion))
    assert read is not None
    wanted = [Wanted(each.how, (each.value,)) for each in read.held]  # type: ignore[arg-type]

    assert are_right(Compare(), wanted, f"[{returned}]".encode()) is holds


SHARED = [  # what is no assertion of one call with plain arguments beside a literal
    ("cpp", "assert(abs(f(1.5) - 0.5) < 1e-4);"),
    ("cpp", "assert(f(1) == f(2));"),
    ("cpp", "assert(f(g(1)) == 2);"),
    ("cpp", "assert(f(1) == N);"),
    ("cpp", "int wanted = 3; assert(f(1) == wanted);"),
    ("cpp", "assert(f(1) == (vector<int>(3, 0)));"),
    ("cpp", "assert(f(1) == Point{1, 2});"),
    ("cpp", "assert(f(1) == (size_t)-1);"),
    ("cpp", "assert(f(1) != 2);"),
    ("cpp", "for (int i = 0; i < 3; i++) assert(f(i) == 1);"),
    ("cpp", "Stack s; s.push(1); assert(s.pop() == 1);"),
    ("cpp", "assert(f(1) == 2) } int g() { return 1;"),
    ("nodejs", "assert.strictEqual(f(1), f(2))"),
    ("nodejs", "assert.strictEqual(f(g(1)), 2)"),
    ("nodejs", "assert.strictEqual(new S().f(1), 2)"),
    ("nodejs", "assert.throws(() => f(1))"),
    ("nodejs", "assert.deepEqual([f(1)], [2])"),
    ("nodejs", "assert(f(1) > 2)"),
    ("nodejs", "const wanted = 3; assert.equal(f(1), wanted)"),
    ("nodejs", "assert.equal(f(1), `2`)"),
    ("nodejs", "f(1).then(found => assert.equal(found, 1))"),
    ("nodejs", "function test() { assert.equal(f(1), 2) }"),
    ("bash", 'x=$(f 1); test "$x" = 3'),
    ("bash", 'test "$(f $(g 1))" = 3'),
    ("bash", 'test "$(f 1)" = "$(f 2)"'),
    ("bash", '[[ $(f 1) = a* ]]'),
    ("bash", 'test "$(f 1 | sort)" = 3'),
    ("bash", 'test "$(f 1)" -lt 3'),
    ("bash", "f 1"),
    ("bash", 'test "$(f 1)" = 3; echo done'),
]  # fmt: skip


@pytest.mark.parametrize(("language", "assertion"), SHARED)
def test_what_is_not_plain_shares_the_programs_process(language: str, assertion: str) -> None:
    assert apart_of(language, wrapped(language, assertion)) is None


@pytest.mark.parametrize("language", ["cpp", "nodejs", "bash"])
def test_what_is_expected_is_nowhere_in_what_the_program_gets(language: str) -> None:
    assertions = {
        "cpp": "assert(f(1) == 424242);",
        "nodejs": "assert.equal(f(1), 424242)",
        "bash": 'test "$(f 1)" = 424242',
    }
    read = apart_of(language, wrapped(language, assertions[language]))

    assert read is not None
    assert "f(1)" in read.behind or "f 1" in read.behind
    assert "424242" not in read.behind


def test_an_answer_lies_between_two_marks_and_nowhere_else() -> None:
    mark = MARK.encode()
    assert answer_in("cpp", b"said" + mark + b"[1]" + mark + b"more") == (b"[1]", b"saidmore")
    assert answer_in("cpp", mark + b"[1]")[0] is None
    assert answer_in("cpp", 3 * (mark + b"[1]") + mark)[0] is None
    found, _ = answer_in("bash", mark + b"a\0b \n\0" + mark)
    assert json.loads(found or b"") == ["a", "b \n"]
    assert answer_in("bash", mark + b"a\0b" + mark)[0] is None

"""Assertions of C++, JavaScript and bash: what the calls return is compared outside the jail."""

import pytest

from jail import LocalSandbox, languages

from .judged import judge_row
from .judged import sandbox as sandbox

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHECKS = {
    "cpp": "#include <cassert>\nint main() { assert(f(1, 2) == 3); assert(f(-1, 1) == 0); }",
    "nodejs": "const assert = require('assert');\n"
              "assert.strictEqual(f(1, 2), 3);\nassert.strictEqual(f(-1, 1), 0);",
    "bash": 'test "$(f 1 2)" = 3\ntest "$(f -1 1)" = 0',
}  # fmt: skip
PROGRAMS = {
    ("cpp", "is right"): ("int f(int a, int b) { return a + b; }", "P"),
    ("cpp", "has macros of its own"): (
        "#include <bits/stdc++.h>\n#define int long long\n#define first x\n#define begin y\n"
        "#define for while\nusing namespace std;\nint f(int a, int b) { cout << 1; return a + b; }",
        "P",
    ),
    ("cpp", "has macros by common words"): (
        "#define yes return\n#define no 0\n#define T int\n#define put(x) x\n#define each 1\n"
        "#define text 2\n#define value 3\nT f(T a, T b) { yes put(a + b); }", "P",
    ),
    ("cpp", "switches assertions off"): (
        "#define NDEBUG\n#include <cassert>\n#undef assert\n#define assert(x)\n"
        "int f(int, int) { return 3; }", "W",
    ),
    ("cpp", "is an object of its own"): (
        "struct Yes { bool operator==(int) const { return true; } };\n"
        "Yes f(int, int) { return {}; }", "W",
    ),
    ("cpp", "exits"): ("#include <unistd.h>\nint f(int, int) { _exit(0); }", "E"),
    ("cpp", "exits before main"): (
        "#include <unistd.h>\nstruct S { S() { _exit(0); } } s;\nint f(int, int) { return 3; }",
        "E",
    ),
    ("cpp", "renames main"): (
        "int f(int, int) { return 3; }\nint main() {}\n#define main other", "C",
    ),
    ("cpp", "aborts, and catches that"): (
        "#include <csignal>\n#include <cstdlib>\n#include <unistd.h>\n"
        "int f(int, int) { signal(SIGABRT, [](int) { _exit(0); }); abort(); }", "E",
    ),
    ("cpp", "is not there"): ("int g() { return 1; }", "C"),
    ("nodejs", "is right"): ("'use strict'; const f = (a, b) => { console.log(1); return a + b; }",
                             "P"),
    ("nodejs", "is an object of its own"): (
        "class Yes { constructor() { this.a = 1 } valueOf() { return 3 } }\n"
        "function f() { return new Yes() }", "W",
    ),
    ("nodejs", "replaces assert"): (
        "const kept = require('assert'); kept.strictEqual = () => {}; function f() { return 0 }",
        "W",
    ),
    ("nodejs", "is text"): ("function f(a, b) { return String(a + b) }", "W"),
    ("nodejs", "throws, and catches that"): (
        "process.on('uncaughtException', () => process.exit(0)); function f() { throw 1 }", "E",
    ),
    ("nodejs", "exits"): ("function f() { process.exit(0) }", "E"),
    ("bash", "is right"): ("f() { echo $(($1 + $2)); echo said >&2; }", "P"),
    ("bash", "replaces test"): ("test() { :; }\nf() { echo; }", "W"),
    ("bash", "traps its end"): ("trap 'exit 0' EXIT\nf() { echo 7; }", "W"),
    ("bash", "exits"): ("exit 0", "E"),
    ("bash", "stops at a failure"): ("set -eu\nf() { false || echo $(($1 + $2)); }", "P"),
}  # fmt: skip


@pytest.mark.parametrize(("language", "how"), PROGRAMS)
async def test_a_program_is_right_by_what_its_calls_return(
    sandbox: LocalSandbox, language: str, how: str
) -> None:
    if language not in languages.installed():
        pytest.skip(f"no {language} on this machine")
    code, verdicts = PROGRAMS[language, how]
    result = await judge_row(
        sandbox, code, [CHECKS[language]], language=language, compile_timeout=100.0
    )
    assert result.verdicts == verdicts, result
    assert result.shared == 0


OWN_WAYS = {  # a C++ program, and an assertion that holds
    "#define int long long\nint f(std::vector<int> a) { return a[0]; }":
        "f(std::vector<int>({3})) == 3",
    "std::vector<int> f() { std::ios::sync_with_stdio(false); std::cout << 1; return "
    "std::vector<int>(3000); }": f"f() == (std::vector<int>{{{', '.join('0' * 3000)}}})",
}  # fmt: skip


@pytest.mark.skipif("cpp" not in languages.installed(), reason="no C++ on this machine")
@pytest.mark.parametrize("code", OWN_WAYS)
async def test_a_macro_of_a_keyword_or_a_buffer_of_its_own_costs_a_program_no_verdict(
    sandbox: LocalSandbox, code: str
) -> None:
    code, check = f"#include <iostream>\n#include <vector>\n{code}", OWN_WAYS[code]
    check = f"#include <cassert>\nint main() {{ assert({check}); }}"
    result = await judge_row(sandbox, code, [check], language="cpp", compile_timeout=100.0)

    assert (result.verdicts, result.shared) == ("P", 0), result


RETURNS = {  # what a C++ function returns, and the assertion that holds
    'std::map<std::string, int> f() { return {{"b", 2}, {"a", 1}}; }':
        '(std::map<std::string, int>({{"a", 1}, {"b", 2}}))',
    "std::unordered_set<int> f() { return {3, 1, 2}; }": "(std::unordered_set<int>{1, 2, 3})",
    'std::tuple<int, std::string, double> f() { return {1, "x\\n", 0.1}; }':
        'std::make_tuple(1, "x\\n", 0.1)',
    "std::optional<long> f() { return std::nullopt; }": "std::nullopt",
    "std::optional<long> f() { return 3; }": "3",
    "std::vector<bool> f() { return {true, false}; }": "(std::vector<bool>{true, false})",
    "std::vector<std::pair<int, char>> f() { return {{1, 'a'}}; }":
        "(std::vector<std::pair<int, char>>{{1, 'a'}})",
    'const char *f() { return "abc"; }': 'std::string("abc")',
    "unsigned long f() { return -1; }": "18446744073709551615ull",
    "std::size_t f() { return std::string::npos; }": "-1",
    "unsigned f() { return -3; }": "-3",
    "unsigned f() { return 3000000000; }": "3000000000",
    "int f() { return -1; }": "-1",
    "const unsigned long long &f() { static unsigned long long n = -2; return n; }": "-2",
    "float f() { return 0.1f; }": "0.1f",
    "std::vector<float> f() { return {1.1f}; }": "(std::vector<float>{1.1})",
    'std::deque<std::vector<std::string>> f() { return {{"é"}, {}}; }':
        '(std::deque<std::vector<std::string>>{{"é"}, {}})',
}  # fmt: skip


@pytest.mark.skipif("cpp" not in languages.installed(), reason="no C++ on this machine")
async def test_values_of_the_standard_library_come_back_whole(sandbox: LocalSandbox) -> None:
    code = "#include <bits/stdc++.h>\n" + "\n".join(
        each.replace("f()", f"f{index}()") for index, each in enumerate(RETURNS)
    )
    asserted = " ".join(f"assert(f{at}() == {it});" for at, it in enumerate(RETURNS.values()))
    check = f"#include <cassert>\nint main() {{ {asserted} }}"
    result = await judge_row(sandbox, code, [check], language="cpp", compile_timeout=100.0)
    assert (result.verdicts, result.shared) == ("P", 0), result


HIDDEN = """
import builtins, gc, os, sys
builtins.abs = builtins.len = lambda _: 0
def found():
    gc.unfreeze()
    held, frame = gc.get_objects(), sys._getframe()
    while frame:
        held += [frame, frame.f_locals, frame.f_globals, frame.f_code]
        frame = frame.f_back
    near = {str(one) for each in held for one in gc.get_referents(each)}
    return [one for one in near if chr(66) * 8 in one]
files = [open(name).read() for name in (__file__, sys.argv[0])]
print(found(), [one for one in files if chr(66) * 8 in one])
def f(x): return x
"""


async def test_a_check_is_not_there_while_its_program_runs_and_has_its_own_builtins(
    sandbox: LocalSandbox,
) -> None:
    checks = ["BBBBBBBB = 1\nassert abs(f(2)) == 2", "assert len(str(f(2))) == 1 == BBBBBBBB"]
    result = await judge_row(sandbox, HIDDEN, checks)
    assert (result.verdicts, result.shared) == ("PE", 2), result
    assert result.kept[0].stdout == "[] []\n"


async def test_a_check_sees_what_its_program_has_changed(sandbox: LocalSandbox) -> None:
    code = "count = 0\ndef f():\n    global count\n    count += 1\n    return count"
    check = "import math\ndef twice(): return f() + f()\nassert math.isclose(twice(), 3)\n"
    result = await judge_row(
        sandbox, code, [f"{check}assert count == 2", f"{check}assert count == 1"]
    )
    assert (result.verdicts, result.shared) == ("PE", 2), result


CASES = """
import unittest
class TestCases(unittest.TestCase):
    def test_two(self):
        self.assertEqual(task_func(2), 4)
    def test_three(self):
        self.assertEqual(task_func(3), 9)
"""


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        ("def task_func(n): return n * n", "P"),
        ("def task_func(n): return n + n", "E"),
        ("def task_func(n): return 1 / 0", "E"),
        ("def task_func(n): return n * n\nraise SystemExit", "E"),
    ],
)
async def test_a_test_case_as_bigcodebench_has_it_is_run_whole(
    sandbox: LocalSandbox, code: str, verdict: str
) -> None:
    row = {"test": CASES, "entry_point": "task_func", "task_id": "BigCodeBench/0"}
    result = await judge_row(sandbox, code, row)
    assert result.verdicts == verdict, result.kept

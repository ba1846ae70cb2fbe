"""A program is judged in the embedded sandbox: built once, then every case by itself."""

import asyncio
import base64
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from jail import LocalSandbox
from jail.errors import SandboxBroken, SandboxUnfit
from jail.inside import landlock
from jail.inside.root import HEADERS
from jail.isolation.levels import Level
from jail.jails import Jails
from jail.judge import header
from jail.judge.builds import Build
from jail.judge.models import JudgeCase, JudgeRequest, JudgeResult, Kept
from jail.judge.suite import Case, InlineSuite
from jail.judge.trial import Workshop
from jail.languages import LANGUAGES
from jail.launch import ServerConfig
from jail.limits import CAPS, DEFAULTS
from jail.outcome import Outcome, Step

from .conftest import reachable_python
from .judged import Cases, in_turn, judge
from .judged import sandbox as sandbox

pytestmark = pytest.mark.asyncio(loop_scope="module")

SUM = {
    "python": "print(sum(map(int, input().split())))",
    "bash": "read -r a b c; echo $((a + b + c))",
    "c": '#include <stdio.h>\nint main() { int s = 0, x; while (scanf("%d", &x) == 1) s += x;'
    ' printf("%d\\n", s); }',
    "cpp": "#include <iostream>\nint main() { int s = 0, x; while (std::cin >> x) s += x;"
    ' std::cout << s << "\\n"; }',
    "go": 'package main\nimport "fmt"\nfunc main() { var a, b, c int; fmt.Scan(&a, &b, &c);'
    " fmt.Println(a + b + c) }",
    "java": "import java.util.*;\npublic class Main { public static void main(String[] x) {"
    " Scanner in = new Scanner(System.in); int s = 0; while (in.hasNextInt()) s += in.nextInt();"
    " System.out.println(new Other().same(s)); } }\nclass Other { int same(int s) { return s; } }",
    "nodejs": "let s = 0; for (const x of require('fs').readFileSync(0, 'utf8').split(/\\s+/))"
    " s += Number(x); console.log(s)",
    "typescript": "import * as fs from 'fs';\n"
    "const xs: number[] = fs.readFileSync(0, 'utf8').trim().split(/\\s+/).map(Number);\n"
    "enum Start { At = 0 }\n"
    "console.log(xs.reduce((a: number, b: number): number => a + b, Start.At));",
    "rust": "use std::io::*; fn main() { let mut t = String::new();"
    " stdin().read_to_string(&mut t).unwrap();"
    ' println!("{}", t.split_whitespace().map(|x| x.parse::<i32>().unwrap()).sum::<i32>()); }',
    "perl": "my $s = 0; $s += $_ for split ' ', <STDIN>; print \"$s\\n\"",
}


async def test_a_case_says_whether_all_of_what_it_printed_was_kept() -> None:
    outputs = {"whole": b"12", "by its ends": b"123456", "nothing": b"", "not kept": b"1"}
    kept = [Kept.of(text, b"", 0 if why == "not kept" else 2) for why, text in outputs.items()]
    kept.append(Kept.of(b"1", b"", 2, cut=True))
    result = JudgeResult(verdicts="WWWWW", kept=dict(enumerate(kept)))
    runs = [result.of_case(index).run_result for index in range(len(kept))]
    assert [run.stdout_truncated for run in runs if run] == [False, True, False, True, True]


@pytest.mark.parametrize("language", SUM)
async def test_each_case_has_a_verdict_time_and_memory(
    sandbox: LocalSandbox, language: str
) -> None:
    await sandbox._start()
    if language not in sandbox.judged_languages:
        pytest.skip(f"no {language} on this machine")
    cases = [(f"1 2 {n}\n", f"{3 + n - (n == 2)}\n") for n in range(5)]
    result = await judge(sandbox, SUM[language], cases, language=language, compile_timeout=60.0)
    assert result.verdicts == "PPWPP", result
    assert result.kept[2].stdout == "5\n"
    assert all(memory > 100 for memory in result.memory_kb)
    assert all(wall > 0 for wall in result.wall_ms)
    assert result.isolation == "ns"


@pytest.mark.parametrize("level", ["landlock", "none"])
async def test_the_weaker_levels_judge_as_well(level: Level) -> None:
    if level == "landlock" and landlock.abi() < landlock.LEAST_ABI:
        pytest.skip("no Landlock of ABI 6")
    if (python := reachable_python(ServerConfig.uid if os.getuid() == 0 else None)) is None:
        pytest.skip("an ordinary user can reach no Python here")
    sandbox = LocalSandbox(ServerConfig(level=level, python=python))
    try:
        for language in ("python", "c"):
            cases = [(f"1 2 {n}\n", "5\n") for n in range(4)]
            result = await judge(sandbox, SUM[language], cases, language=language)
            assert result.verdicts == "WWPW", result
            assert result.isolation == level
        assert sandbox._judging.builds.compiled == 1
        for code, verdicts in CHECKED.items():
            await check_assertions(sandbox, code, verdicts)
        talks = {"mode": "interactive", "interactor": {"code": "", "language": "python"}}
        with pytest.raises(SandboxUnfit, match=f"needs the level 'ns', and this is '{level}'"):
            await judge(sandbox, "", [("", None)], **talks)
        checked = {"checker": {"code": CHECKER, "language": "python"}}
        assert (await judge(sandbox, "print(9)", [("", "8\n")], **checked)).verdicts == "P"
    finally:
        await sandbox.close()


@pytest.fixture
def counting(tmp_path: Path) -> ServerConfig:
    """A compiler that gives each program that it makes another name, which that can print."""
    tmp_path.chmod(0o755)
    python = tmp_path / "python3"
    python.symlink_to(os.path.realpath(sys.executable))
    compiler = tmp_path / "gcc"
    number = "$(cat /proc/sys/kernel/random/uuid)"
    compiler.write_text(f'#!/bin/sh\nexec /usr/bin/gcc "-DBUILT=\\"{number}\\"" "$@"\n')
    compiler.chmod(0o755)
    return ServerConfig(python=str(python), expose=(str(tmp_path),))


BUILT = "#include <stdio.h>\nint main() { puts(BUILT); }"


def builds_of(*results: JudgeResult) -> set[str]:
    return {kept.stdout for result in results for kept in result.kept.values()}


async def test_one_compile_serves_all_cases_of_all_who_ask(counting: ServerConfig) -> None:
    sandbox = LocalSandbox(counting)
    cases: Cases = [(f"{n}\n", None) for n in range(50)]
    try:
        first = await judge(sandbox, BUILT, cases, language="c")
        assert first.verdicts == "P" * 50
        assert len(first.kept) == 50
        again = await judge(sandbox, BUILT, cases[:2], language="c")
        assert len(builds_of(first, again)) == 1
        another = await asyncio.gather(
            *(judge(sandbox, BUILT + "\n", cases[:3], language="c") for _ in range(8))
        )
        assert len(builds_of(*another)) == 1
        assert len(builds_of(first, *another)) == 2, "other content, another build"
    finally:
        await sandbox.close()


async def test_one_who_gives_up_takes_the_build_from_nobody(counting: ServerConfig) -> None:
    sandbox = LocalSandbox(counting)
    try:
        await sandbox._start()
        both = [
            asyncio.ensure_future(judge(sandbox, BUILT, [("1\n", None)], language="c"))
            for _ in range(2)
        ]
        while not sandbox._judging.builds.compiled:  # noqa: ASYNC110
            await asyncio.sleep(0)
        both[0].cancel()
        assert (await both[1]).verdicts == "P"
        assert sandbox._judging.builds.compiled == 1
    finally:
        await sandbox.close()


async def test_who_has_less_time_to_compile_takes_none_from_the_others(
    sandbox: LocalSandbox,
) -> None:
    """Each who asks with other limits compiles by these, unless it is made already."""
    code = f"{BOMB}\nint main() {{}}"
    asked = [
        judge(sandbox, code, [("", None)], language="c", compile_timeout=seconds)
        for seconds in (0.3, 120.0)
    ]
    hasty, patient = await asyncio.gather(*asked)
    assert (hasty.verdicts, patient.verdicts) == ("C", "P")
    assert (await asked_again(sandbox, code)).verdicts == "P"


async def asked_again(sandbox: LocalSandbox, code: str) -> JudgeResult:
    return await judge(sandbox, code, [("", None)], language="c", compile_timeout=0.3)


async def test_what_did_not_compile_is_compiled_again(sandbox: LocalSandbox) -> None:
    """The machine may have been short of something."""
    await sandbox._start()
    before = sandbox._judging.builds.compiled
    for _ in range(2):
        assert (await judge(sandbox, "int main( {", [("", None)], language="c")).verdicts == "C"
    assert sandbox._judging.builds.compiled == before + 2


async def test_what_a_compiler_said_counts_as_kept(sandbox: LocalSandbox) -> None:
    said = Step("finished", 0, b"", bytes(100_000), 0.0, 0.0, 0, 0)
    assert Build(LANGUAGES["c"], "main.c", {"main": b"x"}, said).size > 100_000


async def test_builds_are_kept_within_their_size(sandbox: LocalSandbox) -> None:
    small = LocalSandbox(cache_mb=0)
    try:
        for _ in range(2):
            assert (await judge(small, SUM["c"], [("1\n", "1\n")], language="c")).verdicts == "P"
        assert small._judging.builds.compiled == 2
    finally:
        await small.close()


async def test_what_does_not_compile_is_told_once(sandbox: LocalSandbox) -> None:
    result = await judge(sandbox, "int main( {", [("", None)] * 3, language="c")
    assert result.verdicts == "CCC"
    assert result.compile_result is not None
    assert "error" in (result.compile_result.stderr or "")
    bomb = BOMB.replace("1,", "A(A(1,))") + "\nint main() {}"
    result = await judge(sandbox, bomb, [("", None)] * 2, language="c", compile_timeout=0.3)
    assert result.verdicts == "CC"
    assert set(result.reasons.values()) == {"compile_timeout"}


async def test_a_compiler_that_makes_nothing_to_take_along_is_the_programs_failure() -> None:
    """A Java text without a class has the same end, without an error of its compiler."""
    sandbox = LocalSandbox(defaults=replace(DEFAULTS, fetched=1024))
    try:
        result = await judge(sandbox, "int main() {}", [("", None)] * 2, language="c")
    finally:
        await sandbox.close()
    assert (result.verdicts, result.error_kind) == ("CC", "user")
    assert result.compile_result is not None
    assert "made no program; main: " in (result.compile_result.stderr or "")


TEN = " ".join(["__VA_ARGS__"] * 10)
BOMB = f"#define A(...) {TEN}\nint a[] = {{A(A(A(A(A(A(1,))))))}};"  # a second or two


async def test_a_case_with_a_larger_limit_is_held_to_the_cap_as_well(sandbox: LocalSandbox) -> None:
    for limit in ({"memory_limit_mb": 1 << 20}, {"run_timeout": 3600.0, "wall_timeout": 3600.0}):
        small = LocalSandbox(caps=replace(CAPS, wall=100.0))
        with pytest.raises(SandboxUnfit, match="above this sandbox's cap"):
            await judge(small, "", [("", None)] * 2, overrides={1: limit}, wall_timeout=50.0)
        await small.close()


async def test_a_suite_with_assertions_that_nobody_asked_to_run_is_refused(
    sandbox: LocalSandbox,
) -> None:
    request = JudgeRequest(
        code="int main() {}", language="c", suite={"sha256": "0" * 64, "count": 1}
    )
    with pytest.raises(SandboxUnfit, match="has a `check`"):
        await sandbox.judge(request, InlineSuite([Case(check="assert False")]))


async def test_a_row_that_no_function_can_be_called_with_masks_itself_alone(
    sandbox: LocalSandbox,
) -> None:
    cases: Cases = [("hello", "2"), ("1", "2")]
    program = "def f(x): return x + 1"
    result = await judge(sandbox, program, cases, mode="function", function="f")
    assert (result.verdicts, result.fault_of_mask) == ("MP", "data"), result


async def test_assertions_in_a_language_that_is_compiled_are_compiled_in(
    sandbox: LocalSandbox,
) -> None:
    cases = [
        JudgeCase(check="int main() { return f(1) != 2; }"),
        JudgeCase(check="int main() { return f(1) != 3; }"),
        JudgeCase(check="int main() { return g(1); }"),
        JudgeCase(input="4", check='#include <stdio.h>\nint main() { int n; scanf("%d", &n);'
                                   ' printf("%d", f(n)); }', expected="5"),
    ]  # fmt: skip
    request = JudgeRequest(
        code="int f(int x) { return x + 1; }", language="c", mode="check", cases=cases,
        wall_timeout=60.0, compile_timeout=60.0,
    )  # fmt: skip
    result = await sandbox.judge(request, InlineSuite.of(cases))
    assert result.verdicts == "PECP", result
    assert result.reasons == {1: "exit", 2: "compile_error"}
    assert "g" in (result.of_case(2).compile_result.stderr or "")  # type: ignore[union-attr]


async def test_lanes_that_are_cancelled_before_they_begin_are_counted_off(
    sandbox: LocalSandbox,
) -> None:
    cases: Cases = [("", "1")] * 40
    for stop in ("first", "none"):
        await judge(sandbox, "print(2)", cases, stop=stop)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await judge(sandbox, "import time; time.sleep(100)", cases)
    cores = sandbox._judging.cores
    cores.busy += 1
    asyncio.ensure_future(asyncio.sleep(0)).add_done_callback(cores.end_lane)
    while cores.busy:  # noqa: ASYNC110
        await asyncio.sleep(0)


class Counted(InlineSuite):
    """Says which cases were asked for."""

    asked: list[int]

    async def case(self, index: int) -> Case:
        self.asked.append(index)
        return await super().case(index)


@pytest.mark.parametrize(("stop", "verdicts"), [("first", "PWSSSSSSSS"), (2, "PWWSSSSSSS"),
                                                ("none", "PWWWWWWWWP")])  # fmt: skip
async def test_it_stops_at_so_many_failures(
    sandbox: LocalSandbox, stop: str | int, verdicts: str
) -> None:
    cases = [JudgeCase(input=str(n), expected="0" if n in (0, 9) else "1") for n in range(10)]
    request = JudgeRequest(code="input(); print(0)", cases=cases, stop=stop, wall_timeout=60.0)
    suite = Counted.of(cases)
    suite.__class__, suite.asked = Counted, []  # type: ignore[assignment, attr-defined]
    result = await sandbox.judge(request, suite)
    assert result.verdicts == verdicts
    assert len(suite.asked) <= len(verdicts.rstrip("S")) + 2  # type: ignore[attr-defined]


async def test_a_first_failure_is_all_that_is_fetched(sandbox: LocalSandbox) -> None:
    cases = [JudgeCase(input=str(n), expected="1") for n in range(100)]
    request = JudgeRequest(code="print(0)", cases=cases, stop="first", wall_timeout=60.0)
    suite = Counted.of(cases)
    suite.__class__, suite.asked = Counted, []  # type: ignore[assignment, attr-defined]
    assert (await sandbox.judge(request, suite)).verdicts == "W" + "S" * 99
    assert suite.asked == [0]  # type: ignore[attr-defined]


@pytest.mark.parametrize("limit", [1.0, 100.0])
async def test_what_a_slow_program_leaves_to_the_total_time_is_late(
    sandbox: LocalSandbox, limit: float
) -> None:
    code = in_turn("import time; time.sleep(100)", "print(1)")
    cases: Cases = [("1\n", "1\n"), ("0\n", "1\n"), *[("0\n", "1\n")] * 8]
    result = await judge(sandbox, code, cases, total_seconds=4.0, run_timeout=limit)
    assert result.verdicts == "P" + "T" * 9
    assert set(result.reasons.values()) == {"total_seconds"}
    assert {result.fault(at) for at in range(10)} == {"", "program"}
    assert "the program's cases used" in result.evidence[1]


async def test_what_the_total_time_cuts_off_while_we_are_slow_is_skipped(
    sandbox: LocalSandbox,
) -> None:
    class Slow(InlineSuite):
        async def case(self, index: int) -> Case:
            if index:
                await asyncio.Event().wait()
            return await super().case(index)

    cases = [JudgeCase(input="", expected="1")] * 3
    request = JudgeRequest(code="print(1)", cases=cases, total_seconds=1.0)
    result = await sandbox.judge(request, Slow.of(cases))
    assert result.verdicts == "PSS"
    assert [result.fault(at) for at in range(3)] == ["", "system", "system"]


TALKS = {"mode": "interactive", "interactor": {"code": "input()", "language": "python"}}
CUT_OFF = {
    "assertions in C": ("#include <unistd.h>\nint f() { sleep(100); return 1; }",
                        {"language": "c", "mode": "check"}, "int main() { return f(); }"),
    "interactive": ("import time; time.sleep(100)", TALKS, ""),
}  # fmt: skip


@pytest.mark.parametrize("mode", CUT_OFF)
async def test_a_sleeping_program_that_the_total_time_cuts_off_is_late_in_every_mode(
    sandbox: LocalSandbox, mode: str
) -> None:
    code, asked, check = CUT_OFF[mode]
    cases = [JudgeCase(check=check)] * 2
    request = JudgeRequest.read({"code": code, "cases": cases, "total_seconds": 6.0, **asked})
    result = await sandbox.judge(request, InlineSuite.of(cases))
    assert (result.verdicts, result.masked_because) == ("TT", ""), result


async def test_what_slow_compilers_of_a_programs_cases_leave_to_the_total_time_is_late(
    sandbox: LocalSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = Workshop.build

    async def slowly(workshop: Workshop, code: str) -> Build:
        built = await build(workshop, code)
        assert built.compiled is not None
        await asyncio.sleep(0.5)  # as a compiler would
        return replace(built, compiled=replace(built.compiled, cpu=100.0))

    monkeypatch.setattr(Workshop, "build", slowly)
    cases = [JudgeCase(check="int main() { return 1; }")] * 40
    request = JudgeRequest(
        code="", language="c", mode="check", cases=cases, wall_timeout=60.0, total_seconds=4.0
    )
    result = await sandbox.judge(request, InlineSuite.of(cases))
    assert set(result.verdicts) == {"E", "T"}, result
    assert not result.masked_because


async def test_a_program_that_only_sleeps_ends_after_five_cases(sandbox: LocalSandbox) -> None:
    cases: Cases = [("", "1\n")] * 60
    slow = {"run_timeout": 0.2, "wall_timeout": 0.2}
    result = await judge(sandbox, "import time; time.sleep(100)", cases, **slow)
    assert result.verdicts == "T" * 60
    assert result.reasons[59] == "stop_timeouts"


async def test_a_case_may_have_less_memory_than_the_others(sandbox: LocalSandbox) -> None:
    code = "a = bytearray(100 << 20); print(1)"
    cases: Cases = [("", "1\n")] * 3
    result = await judge(sandbox, code, cases, overrides={1: {"memory_limit_mb": 50}})
    assert result.verdicts == "PLP"


MEGABYTE = 1 << 20


async def test_a_case_may_print_all_that_it_is_expected_to(sandbox: LocalSandbox) -> None:
    code = "import sys; sys.stdout.write('a' * int(input()))"
    cases = [JudgeCase(input=str(n), expected="a" * n) for n in (5, 15 * MEGABYTE, 7)]
    request = JudgeRequest(code=code, wall_timeout=60.0, suite={"sha256": "0" * 64, "count": 3})
    assert (await sandbox.judge(request, InlineSuite.of(cases))).verdicts == "PPP"


async def test_a_case_that_expects_more_than_an_operator_allows_is_masked() -> None:
    sandbox = LocalSandbox(caps=replace(CAPS, output=4 * MEGABYTE))
    code = f"import sys; sys.stdout.write('a' * {5 * MEGABYTE})"
    expected = [JudgeCase(expected="a" * n) for n in (5 * MEGABYTE, 1)]
    request = JudgeRequest(code=code, wall_timeout=60.0, suite={"sha256": "0" * 64, "count": 2})
    try:
        result = await sandbox.judge(request, InlineSuite.of(expected))
    finally:
        await sandbox.close()
    assert (result.verdicts, result.reasons) == ("ML", {0: "output_cut", 1: "output_limit"})
    assert "PENSTOCK_SANDBOX_OUTPUT_MB" in result.comments[0]


async def test_a_case_whose_input_cannot_be_had_is_masked(sandbox: LocalSandbox) -> None:
    class Lacking(InlineSuite):
        async def case(self, index: int) -> Case:
            if index == 1:
                raise SandboxBroken("no such blob", reason="suite_gone")
            return await super().case(index)

    cases = [JudgeCase(input="1", expected="1")] * 3
    request = JudgeRequest(code="print(input())", cases=cases, wall_timeout=60.0)
    result = await sandbox.judge(request, Lacking([Case(b"1", (b"1",))] * 3))
    assert result.verdicts == "PMP"
    assert result.reasons == {1: "suite_gone"}


async def test_a_function_is_called_with_json(sandbox: LocalSandbox) -> None:
    code = "class Solution:\n    def add(self, a, b):\n        return [a + b]"
    result = await judge(
        sandbox, code, [("1\n2", "[3]"), ("1\n3", "[5]")], mode="function", function="add"
    )
    assert result.verdicts == "PW", result


GUESSES = (
    "for at in range(3, 64):\n    try: os.write(at, bytes(16) + b'.')\n    except OSError: pass"
)
CHECKED = {  # a program, whose assertions hold or not, and its verdicts
    "def f(): return 1": "PP",
    "def f(): return 2": "WP",
    "import os; os._exit(0)": "EE",
    "raise SystemExit": "EE",
    f"import os\n{GUESSES}\nos._exit(0)": "EE",
    "import os; os.close(2); os.close(1)\ndef f(): return 1": "PP",
}
ASSERTIONS = "assert f() == 1", "assert f() < 3"


async def check_assertions(
    sandbox: LocalSandbox,
    code: str,
    verdicts: str,
    language: str = "python",
    checks: tuple[str, str] = ASSERTIONS,
) -> None:
    cases = [JudgeCase(check=check) for check in checks]
    request = JudgeRequest(
        code=code, cases=cases, mode="check", wall_timeout=60.0, language=language
    )
    result = await sandbox.judge(request, InlineSuite.of(cases))
    assert result.verdicts == verdicts, result
    if "exit" in code.lower() or "__END__" in code:
        assert result.reasons == {0: "ended_early", 1: "ended_early"}


@pytest.mark.parametrize("code", CHECKED)
async def test_assertions_pass_only_if_they_were_reached(sandbox: LocalSandbox, code: str) -> None:
    await check_assertions(sandbox, code, CHECKED[code])


BY_UNITTEST = """
import unittest
class Told(unittest.TestCase):
    def test(self): self.assertEqual(f(), 1)
assert unittest.main(exit=False).result.wasSuccessful()
"""
IN_A_THREAD = """
import threading
said = []
asking = threading.Thread(target=lambda: said.append(f()))
asking.start(), asking.join()
assert said == [1]
"""


@pytest.mark.parametrize(("returned", "verdicts"), [(1, "PP"), (2, "EE")])
async def test_a_check_by_unittest_or_with_a_thread_asserts_what_it_found(
    sandbox: LocalSandbox, returned: int, verdicts: str
) -> None:
    code = f"def f(): return {returned}"
    await check_assertions(sandbox, code, verdicts, checks=(BY_UNITTEST, IN_A_THREAD))


IN_SCRIPTS = {
    "bash": ('[ "$(f)" = 1 ]', '[ "$(f)" -lt 3 ] || exit 1'),
    "nodejs": ("require('assert')(f() === 1)", "require('assert')(f() < 3)"),
    "perl": ("f() == 1 or die", "f() < 3 or die"),
}


@pytest.mark.parametrize(
    ("language", "code", "verdicts"),
    [
        ("bash", "f() { echo 1; }", "PP"),
        ("bash", "f() { echo 2; }", "WP"),
        ("bash", "set -eu; printf() { :; }; f() { echo 1; }", "PP"),
        ("bash", "exit 0", "EE"),
        ("nodejs", "function f() { return 1 }", "PP"),
        ("nodejs", "const f = () => 2", "EP"),
        (
            "nodejs",
            "'use strict'; function process(n) { return n }; let f = () => process(1)",
            "PP",
        ),
        ("nodejs", "process.exit(0)", "EE"),
        ("nodejs", "function f() { process.exit() }", "EE"),
        ("perl", "use strict; $, = $\\ = '-'; sub f { 1 }", "PP"),
        ("perl", "binmode(STDOUT, ':utf8'); sub f { return 2 }", "EP"),
        ("perl", "exit;", "EE"),
        ("perl", "sub f { 2 }\n__END__", "EE"),
    ],
)
async def test_assertions_of_scripts_pass_only_if_they_were_reached(
    sandbox: LocalSandbox, language: str, code: str, verdicts: str
) -> None:
    await sandbox._start()
    if language not in sandbox.judged_languages:
        pytest.skip(f"no {language} on this machine")
    await check_assertions(sandbox, code, verdicts, language, IN_SCRIPTS[language])


@pytest.mark.parametrize("begins", ["public class Main", "class Problem"])
async def test_javas_main_class_has_any_name(sandbox: LocalSandbox, begins: str) -> None:
    await sandbox._start()
    if "java" not in sandbox.judged_languages:
        pytest.skip("no java on this machine")
    code = SUM["java"].replace("public class Main", begins.replace("Main", "Solution"))
    result = await judge(sandbox, code, [("1 2", "3\n")], language="java", compile_timeout=60.0)
    assert result.verdicts == "P", result


async def test_a_java_program_has_the_heap_of_its_cases_own_memory(sandbox: LocalSandbox) -> None:
    await sandbox._start()
    if "java" not in sandbox.judged_languages:
        pytest.skip("no java on this machine")
    code = (
        "public class Main { public static void main(String[] a)"
        " { System.out.println(Runtime.getRuntime().maxMemory() >> 28); } }"
    )
    given = {"language": "java", "overrides": {1: {"memory_limit_mb": 900}}}
    cases: Cases = [("", "0\n"), ("", "3\n"), ("", "0\n")]
    result = await judge(sandbox, code, cases, memory_limit_mb=200, **given)
    assert result.verdicts == "PPP", result


MAIN = "int main() { assert(f() == 1); return 0; }"
IN_TURN = "test $(f 1) = 2; test $(f 2) = 2"
IN_A_FUNCTION = f"each() {{ {IN_TURN}; }}"
OWN_LINENO = "unset LINENO; n=99 LINENO=n; f() { n=0; echo $1; }"


@pytest.mark.parametrize(
    ("language", "code", "checks", "verdicts"),
    [
        ("cpp", "#define NDEBUG\n#include <cassert>\nint f() { return 2; }", (MAIN, MAIN), "WW"),
        ("c", "#define NDEBUG\nint f() { return 1; }", (MAIN, MAIN), "PP"),
        ("bash", "f() { false; echo 1; }", ("test $(f) = 2\ntest $(f) = 1", "f\ntest 1"), "WP"),
        ("bash", "f() { return 3; }", ("f\ntest $? = 3", "f\ntest $? = 2"), "PE"),
        ("bash", "f() { false; echo $1; }", (f"{IN_A_FUNCTION}; each", f"({IN_TURN})"), "EE"),
        ("bash", "f() { false; echo 2; }", (f"{IN_A_FUNCTION}; each", f"({IN_TURN})"), "PP"),
        ("bash", "f() { echo 1; echo 2; }", ("f | while read n; do test $n = 2; done", "f"), "EP"),
        ("bash", OWN_LINENO, (f"f 1; {IN_A_FUNCTION}; each", "f 1; test 1 = 2; true"), "EE"),
    ],
)
async def test_each_assertion_of_a_check_counts(
    sandbox: LocalSandbox, language: str, code: str, checks: tuple[str, str], verdicts: str
) -> None:
    await sandbox._start()
    if language not in sandbox.judged_languages:
        pytest.skip(f"no {language} on this machine")
    await check_assertions(sandbox, code, verdicts, language, checks)


async def test_a_case_that_runs_once_more_counts_once_as_shared(sandbox: LocalSandbox) -> None:
    cases = [JudgeCase(check="assert f() < 3")]
    code = "import os, signal\ndef f(): os.kill(os.getpid(), signal.SIGKILL)"
    request = JudgeRequest(code=code, cases=cases, mode="check", wall_timeout=60.0)
    result = await sandbox.judge(request, InlineSuite.of(cases))
    assert (result.verdicts, result.shared) == ("E", 1), result
    assert "both tries" in result.evidence[0]


async def test_what_a_script_prints_is_compared_without_its_mark(sandbox: LocalSandbox) -> None:
    cases = [JudgeCase(input="3", expected="9", check="echo $((n * n))")]
    request = JudgeRequest(code="read n", cases=cases, mode="check", language="bash", keep="all")
    result = await sandbox.judge(request, InlineSuite.of(cases))
    assert (result.verdicts, result.kept[0].stdout) == ("P", "9\n")


async def test_a_tasks_files_are_there_for_each_case_as_they_were_given(
    sandbox: LocalSandbox,
) -> None:
    code = "print(open('data.txt').read()); open('data.txt', 'a').write('more')"
    data = base64.b64encode(b"some").decode()
    result = await judge(sandbox, code, [("", "some\n")] * 4, files={"data.txt": data})
    assert result.verdicts == "PPPP"


CHECKER = """
import sys
given, printed, expected = (open(name).read() for name in sys.argv[1:])
if printed == "hang":
    while True: pass
if printed == "crash":
    raise SystemExit(3)
if printed == "half":
    print("points 0.5", file=sys.stderr)
    raise SystemExit(7)
if abs(int(printed) - int(expected)) > 1:
    print("far off", file=sys.stderr)
    raise SystemExit(1)
"""


async def test_a_checker_decides(sandbox: LocalSandbox) -> None:
    checker = {"code": CHECKER, "language": "python", "timeout": 1.0}
    cases: Cases = [
        ("7", "8"),
        ("9", "3"),
        ("hang", "3"),
        ("crash", "3"),
        ("half", "1"),
        ("1", "1"),
    ]
    code = "import os\nos.write(1, input().encode())"
    result = await judge(sandbox, code, cases, checker=checker)
    assert result.verdicts == "PWWWWP", result
    assert result.comments[1] == "far off"
    assert "fails on this one: checker_timeout" in result.comments[2]
    assert "fails on this one" in result.comments[3]
    assert result.points == {4: 0.5}


async def test_a_checker_that_does_not_compile_masks_all(sandbox: LocalSandbox) -> None:
    result = await judge(sandbox, "print(1)", [("", "1")] * 2, checker={"code": "int main( {"})
    assert (result.verdicts, result.error_reason) == ("MM", "checker_compile")
    assert "error" in result.message


@pytest.mark.parametrize(
    ("protocol", "code"),
    [
        ("open_r1", "import sys; a = [open(name).read() for name in sys.argv[1:]];"
                    " print(int(a == ['i', 'e', 'p']))"),
        ("scalebox", "a = [open(n + '.txt').read() for n in ('stdin', 'stdout', 'answer')];"
                     " raise SystemExit(a != ['i', 'e', 'p'])"),
    ],
)  # fmt: skip
async def test_other_protocols_of_checkers(sandbox: LocalSandbox, protocol: str, code: str) -> None:
    checker = {"code": code, "language": "python", "protocol": protocol}
    result = await judge(sandbox, "print(end='p')", [("i", "e"), ("j", "e")], checker=checker)
    assert result.verdicts == "PW", result


GUESSER = (
    "low, high = 1, 100\nwhile True:\n    middle = (low + high) // 2\n"
    "    print(middle, flush=True)\n    said = input()\n    if said == 'right': break\n"
    "    if said == 'less': high = middle - 1\n    else: low = middle + 1\n"
)
INTERACTOR = """
import sys
secret = int(open(sys.argv[1]).read())
for turn in range(10):
    said = input()
    if not said.isdigit():
        sys.exit(2)
    guess = int(said)
    print("right" if guess == secret else "less" if guess > secret else "more", flush=True)
    if guess == secret:
        sys.exit(0)
sys.exit(1)
"""


async def test_an_interactor_talks_with_the_program(sandbox: LocalSandbox) -> None:
    given = {"mode": "interactive", "interactor": {"code": INTERACTOR, "language": "python"}}
    cases: Cases = [(str(n), None) for n in (1, 50, 73, 100)]
    assert (await judge(sandbox, GUESSER, cases, **given)).verdicts == "PPPP"
    stubborn = "while True:\n    print(5, flush=True)\n    input()"
    assert (await judge(sandbox, stubborn, cases[1:], **given)).verdicts == "WWW"
    silent = "input()"
    late = await judge(sandbox, silent, cases[:1], **{**given, "wall_timeout": 1.0})
    assert late.verdicts == "T"


async def test_a_header_that_cannot_be_put_away_is_none_and_its_folder_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def made(*_: object, **__: object) -> Outcome:
        return Outcome("finished", "ns", files={"main": b"made"})

    def full(*_: object) -> None:
        raise OSError("no space left")

    jails = Jails()
    monkeypatch.setattr(jails, "exchange", made)
    monkeypatch.setattr(header.Header, "_put", full)
    one = header.Header(str(tmp_path))
    for _ in range(2):
        one.options(LANGUAGES["cpp"], b"#include <bits/stdc++.h>", jails)
    assert one._making is not None
    await asyncio.wait([one._making])
    await one.close()
    assert (one.size, os.path.exists(one.folder)) == (0, False)


PRECOMPILED = "#include <bits/stdc++.h>\nint main() { std::cout << PRECOMPILED + %d; }"


async def test_the_header_of_all_headers_is_precompiled_for_the_second_who_wants_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its folder goes with the sandbox."""
    # Nothing but the made one has it. One header of them all is enough here, and made sooner.
    source = b"#include <iostream>\n#define PRECOMPILED 1\n"
    monkeypatch.setattr(header, "_SOURCE", source)
    sandbox = LocalSandbox()
    try:
        await sandbox._start()
        if not (one := sandbox._judging.builds.header):
            pytest.skip("no C++ on this machine")
        given = {"language": "cpp", "compile_timeout": 60.0}
        without = [await judge(sandbox, PRECOMPILED % n, [("", None)], **given) for n in (1, 2)]
        assert [result.verdicts for result in without] == ["C", "C"]
        assert one._making is not None
        await one._making
        assert (await judge(sandbox, PRECOMPILED % 3, [("", "4")], **given)).verdicts == "P"
        made = f"{HEADERS}/bits/stdc++.h.gch"
        hostile = f"import os\nprint(os.access({made!r}, os.R_OK), os.access({made!r}, os.W_OK))"
        assert (await judge(sandbox, hostile, [("", "True False")])).verdicts == "P"
    finally:
        await sandbox.close()
    assert not os.path.exists(one.folder)


async def test_what_a_program_is_at_its_first_case_it_is_at_all(sandbox: LocalSandbox) -> None:
    """It is parsed once, and every case has a module, a namespace and a trace of its own."""
    code = (
        "import sys, __main__\n"
        "seen = vars(__main__).setdefault('seen', []) + [__name__, __file__, sys.argv]\n"
        "n = int(input())\n"
        "def fail(): raise ValueError(n)\n"
        "print(seen, len(sys.modules))\n"
        "if n > 2: fail()\n"
    )
    cases = [(f"{n}\n", "") for n in range(5)]
    result = await judge(sandbox, code, cases, keep="all")
    assert len({kept.stdout for kept in result.kept.values()}) == 1, result
    assert result.verdicts == "WWWEE"
    for at in (3, 4):
        assert "line 4, in fail\n    def fail(): raise ValueError(n)" in result.kept[at].stderr
        assert result.kept[at].stderr.endswith(f"ValueError: {at}\n")


async def test_a_warning_of_the_parser_is_in_every_case(sandbox: LocalSandbox) -> None:
    code = "print(input() is 'no such text')\n"
    result = await judge(sandbox, code, [(f"{n}\n", "False\n") for n in range(4)], keep="all")
    assert result.verdicts == "PPPP", result
    assert all("SyntaxWarning" in kept.stderr for kept in result.kept.values())

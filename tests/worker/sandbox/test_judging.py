"""A program is judged in the embedded sandbox: built once, then every case by itself."""

import asyncio
import base64
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from worker.errors import SandboxBroken
from worker.judge.models import JudgeCase, JudgeRequest, JudgeResult
from worker.judge.suite import Case, InlineSuite
from worker.sandbox.local import LocalSandbox, ServerConfig
from worker.sandbox.local.inside import confine
from worker.sandbox.local.inside.root import HEADERS
from worker.sandbox.local.isolation.levels import Level
from worker.sandbox.local.judging import header

from .conftest import reachable_python
from .judged import Cases, in_turn, judge

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
    "rust": "use std::io::*; fn main() { let mut t = String::new();"
    " stdin().read_to_string(&mut t).unwrap();"
    ' println!("{}", t.split_whitespace().map(|x| x.parse::<i32>().unwrap()).sum::<i32>()); }',
    "perl": "my $s = 0; $s += $_ for split ' ', <STDIN>; print \"$s\\n\"",
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox() -> AsyncIterator[LocalSandbox]:
    sandbox = LocalSandbox()
    yield sandbox
    await sandbox.close()


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
    if level == "landlock" and confine.abi() < confine.LEAST_ABI:
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
    bomb = "#define A(x) x x x x x x x x x x\nint a[] = {A(A(A(A(A(A(A(A(1,))))))))}; int main() {}"
    result = await judge(sandbox, bomb, [("", None)] * 2, language="c", compile_timeout=0.3)
    assert result.verdicts == "CC"
    assert set(result.reasons.values()) == {"compile_timeout"}


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


async def test_what_the_total_time_cuts_off_is_skipped(sandbox: LocalSandbox) -> None:
    code = in_turn("import time; time.sleep(100)", "print(1)")
    cases: Cases = [("1\n", "1\n"), ("0\n", "1\n"), *[("0\n", "1\n")] * 8]
    result = await judge(sandbox, code, cases, total_seconds=2.0)
    assert result.verdicts == "P" + "S" * 9
    assert set(result.reasons.values()) == {"total_seconds"}


async def test_a_case_may_have_less_memory_than_the_others(sandbox: LocalSandbox) -> None:
    code = "a = bytearray(100 << 20); print(1)"
    cases: Cases = [("", "1\n")] * 3
    result = await judge(sandbox, code, cases, overrides={1: {"memory_limit_mb": 50}})
    assert result.verdicts == "PLP"


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


@pytest.mark.parametrize(
    ("code", "verdict"),
    [("def f(): return 1", "P"), ("def f(): return 2", "E"), ("import os; os._exit(0)", "E"),
     ("raise SystemExit", "E")],
)  # fmt: skip
async def test_assertions_pass_only_if_they_were_reached(
    sandbox: LocalSandbox, code: str, verdict: str
) -> None:
    cases = [JudgeCase(check="assert f() == 1"), JudgeCase(check="assert f() < 3")]
    request = JudgeRequest(code=code, cases=cases, mode="check", wall_timeout=60.0)
    result = await sandbox.judge(request, InlineSuite.of(cases))
    assert result.verdicts[0] == verdict, result
    if "exit" in code.lower():
        assert result.reasons[0] == "ended_early"


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


async def test_a_checker_decides_and_its_own_failure_masks(sandbox: LocalSandbox) -> None:
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
    assert result.verdicts == "PWMMWP", result
    assert result.comments[1] == "far off"
    assert (result.reasons[2], result.reasons[3]) == ("checker_timeout", "checker_error")
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


PRECOMPILED = "#include <bits/stdc++.h>\nint main() { std::cout << PRECOMPILED + %d; }"


async def test_the_header_of_all_headers_is_precompiled_for_the_second_who_wants_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its folder goes with the sandbox."""
    source = header._SOURCE + b"#define PRECOMPILED 1\n"  # nothing but the made one has it
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

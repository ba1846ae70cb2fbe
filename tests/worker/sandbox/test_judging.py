"""A program is judged in the embedded sandbox: built once, then every case by itself."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from worker.sandbox.local import LocalSandbox

from .judged import judge

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

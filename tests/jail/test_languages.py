"""Other languages run in the same jail; one that is not installed says what would help."""

from pathlib import Path
from typing import Any

import pytest

from jail import languages
from jail.isolation import probes, selftest

from .conftest import MB, Run
from .pytests import NO_PYTEST, PYTESTS

in_one_loop = pytest.mark.asyncio(loop_scope="module")

HELLO = {
    "bash": 'read line; echo "$line"; exit 3',
    "nodejs": "const t = require('fs').readFileSync(0, 'utf8'); process.stdout.write(t);"
    " process.exit(3)",
    "c": "#include <stdio.h>\nint main(void) { char s[99]; fgets(s, sizeof s, stdin);"
    " fputs(s, stdout); return 3; }",
    "cpp": "#include <iostream>\n#include <string>\nint main() { std::string s;"
    " std::getline(std::cin, s); std::cout << s << '\\n'; return 3; }",
    "perl": "print <STDIN>; exit 3",
    "java": "public class Main { public static void main(String[] a) throws Exception {"
    " System.in.transferTo(System.out); System.out.flush(); System.exit(3); } }",
    "go": 'package main\nimport ("io"; "os")\n'
    "func main() { io.Copy(os.Stdout, os.Stdin); os.Exit(3) }",
    "rust": "fn main() { let mut s = String::new(); std::io::stdin().read_line(&mut s).unwrap();"
    ' print!("{}", s); std::process::exit(3); }',
    "typescript": "import * as fs from 'fs';\nconst text: string = fs.readFileSync(0, 'utf8');\n"
    "process.stdout.write(text); process.exit(3);",
    "ruby": "print STDIN.read; exit 3",
    "lua": "io.write(io.read('a')); os.exit(3)",
    "php": "<?php echo file_get_contents('php://stdin'); exit(3);",
    "R": "cat(readLines(file('stdin')), sep='\\n'); quit(status=3)",
    "julia": "print(read(stdin, String)); exit(3)",
    "racket": "#lang racket\n(display (port->string (current-input-port)))(exit 3)",
}


@pytest.mark.parametrize("language", sorted(HELLO))
@in_one_loop
async def test_it_reads_its_input_and_ends_with_its_own_code(run: Run, language: str) -> None:
    if language not in languages.installed():
        outcome = await run(HELLO[language], language)
        assert outcome.status == "refused"
        assert "install" in outcome.error
        pytest.skip(f"{language} is not on this machine")
    outcome = await run(
        HELLO[language], language, stdin=b"hello\n", memory=1500 * MB, processes=200, wall=60.0,
        compile_wall=60.0,
    )  # fmt: skip
    assert (outcome.status, outcome.return_code) == ("finished", 3), outcome
    assert outcome.stdout == b"hello\n"


def test_every_language_but_python_and_pytest_is_tried_here() -> None:
    assert set(HELLO) == set(languages.LANGUAGES) - {"python", "pytest"}


@pytest.mark.parametrize("given", ["main.py", "./main.py", "/home/sandbox/main.py"])
@in_one_loop
async def test_a_file_of_the_same_name_does_not_take_the_place_of_the_code(
    run: Run, given: str
) -> None:
    outcome = await run("import main; print('code')", files={given: b"print('file')"})
    assert outcome.stdout == b"file\ncode\n", outcome


@in_one_loop
async def test_nor_does_a_folder(run: Run) -> None:
    outcome = await run("print(open('main.py/a').read())", files={"main.py/a": b"kept"})
    assert outcome.stdout == b"kept\n", outcome


@in_one_loop
async def test_nor_in_other_languages(run: Run) -> None:
    outcome = await run("cat main.sh main_.sh; echo code", "bash",
                        files={"main.sh": b"file\n", "main_.sh": b"other\n"})  # fmt: skip
    assert outcome.stdout == b"file\nother\ncode\n", outcome
    for language in languages.LANGUAGES.values():
        assert languages.script(language, (), "") == language.file
        assert not any(language.file in argument for argument in (*language.run, *language.compile))


def test_a_class_is_in_the_file_of_its_name_whatever_is_given() -> None:
    java = languages.LANGUAGES["java"]
    for code, name in (
        ("", "Main"),
        ("import java.util.*;\npublic final class Solution {}", "Solution"),
        ("class A {}\npublic class B {}", "B"),
        ("class Main {\n  public class Inner {}\n}", "Main"),
        ("// a public class of nobody's\nclass Other {}", "Main"),
        ("import java.util.*; public class Solution {}", "Solution"),
        (
            '@Uses({"a{", "b"})\npublic /* { */ @Deprecated class Solution {}',
            "Solution",
        ),
        ("/* not class Main */ public record Point(int x) { /* { */ }", "Point"),
        ('class A { String s = "public class B {"; public class C {} }', "Main"),
        ('class A { String s = """\n" }\n"""; public class C {} }\npublic class B {}', "B"),
        ("class A { char c = '{'; }\npublic enum Colour { RED }", "Colour"),
        ("@Uses(String.class) public interface Shape {}", "Shape"),
        ("public class Outer { class Main {} }", "Outer"),
        ("class A {} class B { static void main(String[] a) {} }", "B"),
        ("class A { class C { void main() {} } } class B { void /**/ main() { } }", "Main"),
        ('class A { String s = "void main"; } enum B { X; static void main(String[] a) {} }', "B"),
        ("class A { public static void main(String[] a) {} }\npublic class B {}", "B"),
        ("class A { static void main(String[] a) {} }\nclass Main {}", "Main"),
        ("class A { // not main\n}\nclass B { static void main(String[] a) {} }", "B"),
        (f"public class {'é' * 150} {{}}", "Main"),  # no file has such a name
    ):
        assert languages.script(java, ["Main.java"], code) == f"{name}.java", code


@pytest.mark.parametrize("part", ["/*", '"', "public ", "class ", "'\\", '"""', "{"])
def test_a_class_is_looked_for_once_through_the_code(part: str) -> None:
    """A megabyte of what only begins. In steps of its square it would not end in time."""
    languages.script(languages.LANGUAGES["java"], [], part * ((1 << 20) // len(part)))


def needs(language: str) -> None:
    if language not in languages.installed():
        pytest.skip(f"{language} is not on this machine")


JAVA: dict[str, Any] = {"memory": 1500 * MB, "processes": 200, "wall": 60.0, "compile_wall": 60.0}


@in_one_loop
async def test_an_assertion_of_java_that_does_not_hold_fails_the_program(run: Run) -> None:
    needs("java")
    code = "public class Main { public static void main(String[] a) { assert 1 == %s; } }"
    assert (await run(code % 1, "java", **JAVA)).return_code == 0
    failed = await run(code % 2, "java", **JAVA)
    assert failed.return_code == 1
    assert b"java.lang.AssertionError" in failed.stderr


MAKES_A_JAR = """
mkdir -p lib/greeting && cd lib
printf 'package greeting; public class Hello { public static String word = "from a jar"; }' \
    > greeting/Hello.java
javac greeting/Hello.java && jar cf greeting.jar greeting/Hello.class
"""


@in_one_loop
async def test_jars_among_the_files_are_on_javas_class_path(run: Run) -> None:
    needs("java")
    made = await run(MAKES_A_JAR, "bash", fetch=["lib/greeting.jar"], **JAVA)
    jar = made.files["lib/greeting.jar"]
    code = (
        "public class Main { public static void main(String[] a)"
        " { System.out.println(greeting.Hello.word); } }"
    )
    outcome = await run(code, "java", files={"lib/other.jar": jar}, **JAVA)
    assert outcome.stdout == b"from a jar\n", outcome


@pytest.mark.parametrize("opening", ["", "<?php ", "\n<?php\n"])
@in_one_loop
async def test_php_is_run_with_its_opening_tag_and_without(run: Run, opening: str) -> None:
    needs("php")
    outcome = await run(f"{opening}echo 6 * 7;", "php")
    assert outcome.stdout.strip() == b"42"


def test_what_php_prints_around_its_tags_is_left_as_it_is() -> None:
    php = languages.LANGUAGES["php"]
    for page in ("Sum: <?= 6 * 7 ?>", "<html><?php echo 1; ?></html>", "<?PHP echo 1;"):
        assert languages.source(php, page) == page.encode()
    assert languages.source(php, "echo 1;") == b"<?php\necho 1;"
    assert languages.source(languages.LANGUAGES["bash"], "echo 1;") == b"echo 1;"


@in_one_loop
async def test_phps_own_configuration_loads_its_extensions(run: Run) -> None:
    needs("php")
    if not list(Path("/etc/php").glob("*/cli/conf.d/*readline.ini")):
        pytest.skip("php's readline is not on this machine")
    assert (await run("var_dump(extension_loaded('readline'));", "php")).stdout == b"bool(true)\n"


HASHES = """#include <openssl/sha.h>
#include <openssl/ssl.h>
#include <cstdio>
int main() {
    unsigned char sum[32];
    SHA256((const unsigned char *)"abc", 3, sum);
    printf("%02x %d\\n", sum[0], OPENSSL_init_ssl(0, nullptr));
}
"""


@in_one_loop
async def test_cpp_links_with_openssl_where_the_machine_has_it(run: Run) -> None:
    needs("cpp")
    if not (languages._linkable("crypto") and Path("/usr/include/openssl/sha.h").exists()):
        pytest.skip("libssl-dev is not on this machine")
    outcome = await run(HASHES, "cpp", memory=1000 * MB, compile_wall=60.0)
    assert outcome.stdout == b"ba 1\n", outcome


def test_a_library_that_the_machine_lacks_is_not_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cpp = languages.LANGUAGES["cpp"]
    monkeypatch.setattr(languages, "_linkable", lambda name: name == "ssl")
    compiles, _ = languages.steps(cpp, "main.cpp", (), "python", 1, 1, MB)
    assert compiles["argv"][-2:] == ["-Wl,--as-needed", "-lssl"]
    monkeypatch.setattr(languages, "_linkable", lambda _: False)
    compiles, _ = languages.steps(cpp, "main.cpp", (), "python", 1, 1, MB)
    assert compiles["argv"][-2:] == ["-o", "main"]


EXTENDED = {
    "c": "#include <math.h>\n#include <stdio.h>\n#include <string.h>\n#include <sys/types.h>\n"
    'int main() { char *copy = strdup("so??!"); typeof(*copy) end = copy[4]; ssize_t size = 5;\n'
    'printf("%s %c %zd %.2f", copy, end, size, M_PI); }',
    "cpp": "#include <cmath>\n#include <cstdio>\n#include <cstdlib>\n#include <limits>\n"
    "int main() { __int128 least = -5; typeof(least) most = std::numeric_limits<__int128>::max();\n"
    'printf("so??! ! %d %.2f", int(std::abs(least)) * (most > 0), M_PI); }',
}


@pytest.mark.parametrize("language", EXTENDED)
@in_one_loop
async def test_c_and_cpp_have_the_extensions_that_their_compilers_give_by_default(
    run: Run, language: str
) -> None:
    needs(language)
    assert (await run(EXTENDED[language], language)).stdout == b"so??! ! 5 3.14"


OF_CORES = {
    "java": "public class Main { public static void main(String[] a)"
    " { System.out.println(Runtime.getRuntime().availableProcessors()); } }",
    "go": 'package main\nimport ("fmt"; "runtime")\n'
    "func main() { fmt.Println(runtime.GOMAXPROCS(0)) }",
}


@pytest.mark.parametrize("language", OF_CORES)
@in_one_loop
async def test_a_large_machine_gives_a_program_no_more_threads_than_it_may_have(
    run: Run, language: str
) -> None:
    needs(language)
    assert (await run(OF_CORES[language], language, **JAVA)).stdout == b"4\n"


HEAP = (
    "public class Main { public static void main(String[] a)"
    " { System.out.println(Runtime.getRuntime().maxMemory() >> 20); } }"
)


@in_one_loop
async def test_java_collects_its_garbage_before_its_memory_is_full_on_any_machine(run: Run) -> None:
    """Else the memory of the machine decides, of which Java takes a quarter."""
    needs("java")
    for memory in (128, 400):
        outcome = await run(HEAP, "java", **JAVA | {"memory": memory * MB})
        assert memory // 2 - 8 < int(outcome.stdout) < memory - 32, outcome


AT_HOME = {
    "c": "#include <stdio.h>\nint main() {\n#ifndef ONLINE_JUDGE\n"
    'freopen("input.txt", "r", stdin);\n#endif\nint n; scanf("%d", &n); printf("%d\\n", n); }',
    "java": "import java.io.*; import java.util.*; public class Main {"
    " public static void main(String[] a) throws Exception {"
    ' if (System.getProperty("ONLINE_JUDGE") == null)'
    ' System.setIn(new FileInputStream("input.txt"));'
    " System.out.println(new Scanner(System.in).nextInt()); } }",
}
AT_HOME["cpp"] = AT_HOME["c"]


@pytest.mark.parametrize("language", AT_HOME)
@in_one_loop
async def test_a_program_that_reads_a_file_at_home_reads_its_input_here(
    run: Run, language: str
) -> None:
    needs(language)
    outcome = await run(AT_HOME[language], language, stdin=b"7\n", **JAVA)
    assert outcome.stdout == b"7\n", outcome


@in_one_loop
async def test_pytest_passes_and_fails(run: Run) -> None:
    passed = await run("def test_a(): assert 1", "pytest")
    if passed.status == "refused":
        assert "pip install pytest" in passed.error
        pytest.skip("this interpreter has no pytest")
    assert passed.return_code == 0
    failed = await run("def test_a(): assert 1 == 2", "pytest")
    assert failed.return_code == 1
    assert b"assert 1 == 2" in failed.stdout


@in_one_loop
@pytest.mark.parametrize("way", PYTESTS)
async def test_pytest_runs_whichever_way_a_program_begins_it(run: Run, way: str) -> None:
    """It loads each plug-in that the interpreter names, and ours may lie out of its sight."""
    language, code = PYTESTS[way]
    outcome = await run(code, language, files={"test_x.py": b"def test_a(): pass"})
    if NO_PYTEST.search(outcome.stderr):
        pytest.skip("this interpreter has no pytest")
    assert outcome.return_code == 0, outcome
    assert b"1 passed" in outcome.stdout


@in_one_loop
async def test_a_compiler_error_is_the_compilers_and_the_program_is_not_run(run: Run) -> None:
    if "cpp" not in languages.installed():
        pytest.skip("g++ is not on this machine")
    outcome = await run("int main( {", "cpp")
    assert outcome.run is None
    assert outcome.compile is not None
    assert outcome.compile.return_code == 1
    assert b"error" in outcome.compile.stderr


@in_one_loop
async def test_a_compiler_that_does_not_end_is_a_time_limit(run: Run) -> None:
    if "cpp" not in languages.installed():
        pytest.skip("g++ is not on this machine")
    # The compiler computes it, for seconds, before it gives up.
    code = (
        "constexpr long f(long n) { return n < 2 ? n : f(n - 1) + f(n - 2); }\n"
        "static_assert(f(60) > 0);\nint main() {}"
    )
    outcome = await run(code, "cpp", compile_wall=0.5, memory=1000 * MB)
    assert outcome.compile is not None
    assert outcome.run is None
    assert outcome.compile.status == "time_limit"


@in_one_loop
async def test_an_executed_program_is_held_as_the_warm_interpreter_is(run: Run) -> None:
    """The probes, through bash, in an interpreter of their own."""
    with selftest.goals() as goal:
        script = probes.script(probes.PROBES, goal)
        outcome = await run("exec python3 probes.py", "bash", files={"probes.py": script.encode()})
    reached = [
        found.probe for found in selftest.findings(outcome.stdout, "ns") if not found.contained
    ]
    assert outcome.return_code == 0, outcome
    assert reached == []


@in_one_loop
async def test_bash_cannot_leave_children_behind(run: Run) -> None:
    outcome = await run("(setsid sleep 100 &) ; sleep 100 & echo done", "bash")
    assert (outcome.status, outcome.stdout) == ("finished", b"done\n")

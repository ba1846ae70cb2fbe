"""How a program in each language is written down, compiled and run, inside the jail.

Python runs in the warm interpreter. All others are executed in the same jail, if their toolchain is
in /usr or in a folder that the operator exposes.
"""

import glob
import os
import re
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from jail.errors import SandboxError
from jail.limits import MB, Limits

PATH = "/usr/local/bin:/usr/bin:/bin"
# As judges compile: with the compiler's own extensions, and the name by which a program knows that
# it is not at home, where it reads from a file.
_JUDGED = ("-O2", "-pthread", "-DONLINE_JUDGE")
CPP = ("g++", "-std=gnu++17", *_JUDGED)
_LIBRARIES = ("/usr/lib", "/usr/lib64", "/usr/lib/*-linux-gnu*", "/usr/local/lib")
# For each core of a large machine, Java and Go would have threads, and `go build` processes: more
# than a program may have.
_CORES = 4
_JAVA_CORES = f"-XX:ActiveProcessorCount={_CORES}"
# A compiler's life is too short for the second compiler and for threads that collect garbage.
_SHORT_JAVA = ("-J-XX:+UseSerialGC", "-J-XX:TieredStopAtLevel=1", f"-J{_JAVA_CORES}")
# The first is of the main thread, as Codeforces has it; the second of all others, as Java has it.
_JAVA = (
    "-Xss64m", "-XX:ThreadStackSize=1024", _JAVA_CORES, "-DONLINE_JUDGE=true", "-Xmx{heap}m",
    "-Xms{begin}m",
)  # fmt: skip
_BESIDE_HEAP = 64 * MB  # of the memory of a Java program; of little memory, half
# Types are taken out and not checked; a package that was not given is looked for as it runs.
_BUNDLED = ("--bundle", "--packages=external", "--platform=node", "--log-level=warning")
# Sandbox Fusion has this one there always: what MultiPL-E's Java programs use. Debian's is here.
_JARS = ("/usr/share/java/javatuples.jar",)


# Comments and texts, each to its end or the code's, so that nothing is read twice; then what tells
# which types are at the top.
_LOOKED_THROUGH = 1 << 18  # characters; other programs wait meanwhile
_LONGEST_TYPE = 200  # bytes; a longer name is no file's, which its compiler says
_JAVA_WORDS = re.compile(
    r"""//[^\n]*|/\*.*?(?:\*/|\Z)"""
    r"""|\"{3}(?:\\.|[^\\])*?(?:\"{3}|\Z)|"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?"""
    r"""|[{};]|\bpublic\b|(?P<main>\bvoid\s+main\b)"""
    r"""|(?<![.\w$])(?:class|interface|enum|record)\s+(?P<type>[\w$]+)""",
    re.DOTALL,
)


@dataclass(frozen=True)
class Language:
    """A language and its commands. `run` is empty for the warm interpreter; `{python}` stands for
    its executable.

    `{script}` stands for the code's own file: `file`, or one like it where that name is given away.
    `{stem}` for that name without its end. `{classpath}` for the folder and all jars given.
    `{heap}` for the megabytes of its memory that a program's objects may have. They begin with
    `{begin}`, which count as used where no cgroup counts.
    """

    file: str
    run: Sequence[str] = ()
    compile: Sequence[str] = ()
    install: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    module: str = ""  # what it needs of the interpreter
    named_in_code: bool = False  # the code decides its file's name
    libraries: Sequence[str] = ()  # linked with, where the machine has them
    made: Sequence[str] = ()  # what a run needs of what compiling makes, as patterns
    opening: str = ""  # put before code that has no such tag, and would be text without

    @property
    def tools(self) -> list[str]:
        """The programs that it needs of the machine."""
        first = [argv[0] for argv in (self.compile, self.run) if argv]
        return [tool for tool in first if not tool.startswith(("{", "./"))]

    def limits(self, given: Limits) -> Limits:
        """Machine code recurses on the stack of its process: as deep as its memory allows."""
        return replace(given, stack=given.memory) if self.run[:1] == ("./main",) else given


LANGUAGES = {
    "python": Language("main.py"),
    "pytest": Language(
        "test_main.py",
        ("{python}", "-m", "pytest", "-p", "no:cacheprovider", "{script}"),
        env={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        module="pytest",
    ),
    "bash": Language("main.sh", ("bash", "{script}"), install="bash"),
    "cpp": Language(
        "main.cpp",
        ("./main",),
        (*CPP, "{script}", "-o", "main"),
        "g++",
        made=("main",),
        libraries=("crypto", "ssl"),
    ),
    "c": Language(
        "main.c",
        ("./main",),
        ("gcc", "-std=gnu17", *_JUDGED, "{script}", "-o", "main", "-lm"),
        "gcc",
        made=("main",),
    ),
    "nodejs": Language("main.js", ("node", "{script}"), install="nodejs"),
    "typescript": Language(
        "main.ts",
        ("node", "./main.js"),
        ("esbuild", "{script}", *_BUNDLED, "--outfile=main.js"),
        "esbuild nodejs",
        made=("main.js",),
    ),
    "go": Language(
        "main.go",
        ("./main",),
        ("go", "build", "-o", "main", "{script}"),
        "golang",
        env={"GOMAXPROCS": str(_CORES)},
        made=("main",),
    ),
    "java": Language(
        "Main.java",
        ("java", "-XX:+UseSerialGC", *_JAVA, "-cp", "{classpath}", "-ea", "{stem}"),
        ("javac", *_SHORT_JAVA, "-cp", "{classpath}", "{script}"),
        "default-jdk",
        made=("*.class",),
        named_in_code=True,
    ),
    "rust": Language(
        "main.rs", ("./main",), ("rustc", "{script}", "-o", "main"), "rustc", made=("main",)
    ),
    "perl": Language("main.pl", ("perl", "{script}"), install="perl"),
    "ruby": Language("main.rb", ("ruby", "{script}"), install="ruby"),
    "lua": Language("main.lua", ("lua", "{script}"), install="lua5.4"),
    "php": Language("main.php", ("php", "-f", "{script}"), install="php-cli", opening="<?php\n"),
    "R": Language("main.R", ("Rscript", "{script}"), install="r-base-core"),
    "julia": Language("main.jl", ("julia", "{script}"), install="julia"),
    "racket": Language("main.rkt", ("racket", "{script}"), install="racket"),
}


class LanguageAbsent(SandboxError):
    """A language that this sandbox does not know, or whose toolchain is not installed."""

    reason = "language"


def find(name: str, lacking: Collection[str] = ()) -> Language:
    """The language, if it can run here, in an interpreter that lacks these modules."""
    language = LANGUAGES.get(name)
    if language is None:
        raise LanguageAbsent(
            f"language {name!r} is not one of this sandbox's: {', '.join(sorted(LANGUAGES))}"
        )
    if language.module in lacking:
        raise LanguageAbsent(
            f"language {name!r} needs the module {language.module!r} in the interpreter that "
            f"PENSTOCK_SANDBOX_PYTHON names; install it there: pip install {language.module}"
        )
    for tool in language.tools:
        if shutil.which(tool, path=PATH) is None:
            raise LanguageAbsent(
                f"language {name!r} needs {tool!r} in {PATH}; install it on the sandbox's "
                f"machine, e.g. apt-get install {language.install}"
            )
    return language


def installed(lacking: Collection[str] = ()) -> list[str]:
    """The languages that can run here."""

    def present(language: Language) -> bool:
        if language.module in lacking:
            return False
        return all(shutil.which(tool, path=PATH) for tool in language.tools)

    return [name for name, language in LANGUAGES.items() if present(language)]


def script(language: Language, given: Collection[str], code: str) -> str:
    """The name of the code's file, given the names of the other files."""
    stem, suffix = os.path.splitext(language.file)
    if language.named_in_code:  # a file has the name of its public class
        named = _main_type(code)
        return (named if 0 < len(named.encode()) <= _LONGEST_TYPE else stem) + suffix
    taken = {part for name in given for part in name.split("/")}
    while stem + suffix in taken:
        stem += "_"
    return stem + suffix


def _main_type(code: str) -> str:
    """The public class, interface, enum or record at the top of Java's code, none if one is Main.
    If none is public, the first with a `main`."""
    depth, public, found, top, begins = 0, False, "", "", ""
    for word in _JAVA_WORDS.finditer(code, 0, _LOOKED_THROUGH):
        if word[0] in "{}":
            depth = max(0, depth + (1 if word[0] == "{" else -1))
        elif depth == 1 and word["main"]:
            begins = begins or top
        elif depth == 0 and word["type"] == "Main":
            return ""
        elif depth == 0 and word["type"]:
            top = word["type"]
            found = found or (top if public else "")
        public = depth == 0 and (word[0] == "public" or (public and word[0] not in "{};"))
    return found or begins


def source(language: Language, code: str) -> bytes:
    """The code as its file has it."""
    tagged = not language.opening or "<?=" in code or "<?php" in code.lower()
    return (code if tagged else language.opening + code).encode(errors="surrogatepass")


def steps(
    language: Language,
    script: str,
    given: Collection[str],
    python: str,
    compile_wall: float,
    wall: float,
    memory: int,
    behind: Sequence[str] = (),
) -> list[dict[str, object]]:
    """The jail's steps, in order, given the names of the other files. The program's arguments are
    put `behind` its command."""

    def step(
        command: Sequence[str], seconds: float, behind: Sequence[str] = ()
    ) -> dict[str, object]:
        argv = arguments(command, script, given, python, memory)
        return {
            "argv": argv and [*argv, *behind],
            "script": script,
            "arguments": list(behind),
            "wall": seconds,
        }

    linked = [f"-l{name}" for name in language.libraries if _linkable(name)]
    if linked:
        linked.insert(0, "-Wl,--as-needed")  # a program that uses none of them loads none
    run = step(language.run, wall, behind)
    if not language.compile:
        return [run]
    return [{**step([*language.compile, *linked], compile_wall), "compiles": True}, run]


def arguments(
    command: Sequence[str],
    script: str,
    given: Collection[str],
    python: str,
    memory: int,
    folder: str = "",
) -> list[str]:
    """The command as it is executed, next to the program, or with it in this folder. Java takes the
    memory of its machine for its own unless the command says how much it may have."""
    own = [folder, "."] if folder else ["."]
    classpath = ":".join([*own, *_JARS, *(name for name in given if name.endswith(".jar"))])
    stem = os.path.splitext(script)[0]
    script = f"{folder}/{script}" if folder else script
    heap = max(memory // 2, memory - _BESIDE_HEAP, 2 * MB) // MB
    stands: dict[str, object] = {
        "python": python, "script": script, "classpath": classpath, "stem": stem, "heap": heap,
        "begin": max(1, heap // 4),
    }  # fmt: skip
    filled = [argument.format(**stands) for argument in command]
    if folder:
        filled = [f"{folder}{one[1:]}" if one.startswith("./") else one for one in filled]
    return filled


@cache
def _linkable(library: str) -> bool:
    return any(glob.glob(f"{folder}/lib{library}.so") for folder in _LIBRARIES)

"""What the suite `judge` judges: a program in each language that sums up twenty numbers."""

import itertools
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jail.judge.formats import Cases, read_cases

_CPP = """#include <{header}>
int main() {{ long long n, s = 0; while (std::cin >> n) s += n; std::cout << s << std::endl; }}
"""
_GO = """package main
import ("bufio"; "fmt"; "os")
func main() {
    in := bufio.NewReader(os.Stdin)
    n, s := 0, 0
    for { if _, err := fmt.Fscan(in, &n); err != nil { break }; s += n }
    fmt.Println(s)
}
"""
_JAVA = """import java.util.*;
public class Main {
    public static void main(String[] given) {
        Scanner in = new Scanner(System.in);
        long s = 0;
        while (in.hasNextLong()) s += in.nextLong();
        System.out.println(s);
    }
}
"""
_NODE = """const numbers = require("fs").readFileSync(0, "utf8").trim().split(/\\s+/).map(Number);
console.log(numbers.reduce((sum, one) => sum + one, 0));
"""
_number = itertools.count()


@dataclass(frozen=True)
class Kind:
    """A language, and how a plain subprocess compiles and runs it."""

    language: str
    text: str
    file: str
    run: Sequence[str]
    compiler: Sequence[str] = field(default=())
    comment: str = "//"

    @property
    def here(self) -> bool:
        return shutil.which([*self.compiler, *self.run][0]) is not None

    def new(self) -> str:
        """A program that nobody has compiled before."""
        return f"{self.text}{self.comment} {next(_number)}\n"


_GPP = ("g++", "-std=c++17", "-O2", "-pthread", "main.cpp", "-o", "main")
KINDS = {
    "python": Kind("python", "print(sum(map(int, input().split())))\n", "main.py",
                   [sys.executable, "main.py"], comment="#"),
    "cpp": Kind("cpp", _CPP.format(header="bits/stdc++.h"), "main.cpp", ["./main"], _GPP),
    "cpp iostream": Kind("cpp", _CPP.format(header="iostream"), "main.cpp", ["./main"], _GPP),
    "go": Kind("go", _GO, "main.go", ["./main"], ["go", "build", "-o", "main", "main.go"]),
    "java": Kind("java", _JAVA, "Main.java", ["java", "-XX:+UseSerialGC", "Main"],
                 ["javac", "Main.java"]),
    "node": Kind("nodejs", _NODE, "main.js", ["node", "main.js"]),
}  # fmt: skip


def cases(count: int) -> Cases:
    draw = random.Random(count)
    rows = [[draw.randrange(1000) for _ in range(20)] for _ in range(count)]
    return read_cases(
        {
            "inputs": [" ".join(map(str, row)) + "\n" for row in rows],
            "outputs": [f"{sum(row)}\n" for row in rows],
        }
    )


def plainly(kind: Kind, code: str, some: Cases) -> tuple[float, float]:
    """Subprocesses in line, nothing isolated: the seconds to compile, and to run them all."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, kind.file).write_text(code)
        began = time.perf_counter()
        if kind.compiler:
            subprocess.run(kind.compiler, cwd=folder, check=True)
        compiled = time.perf_counter()
        for case in some.cases:
            ran = subprocess.run(
                kind.run, cwd=folder, input=case.input, capture_output=True, text=True, check=True
            )
            if ran.stdout != case.expected:
                raise RuntimeError(f"{kind.language}: {ran.stdout!r}")
        return compiled - began, time.perf_counter() - compiled

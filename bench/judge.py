"""A program's cases per second when it is judged, beside those who do it today.

Each case: twenty numbers in, their sum out. Every run has a program of its own, so that
nothing is found compiled already.

    judge        `LocalSandbox.judge`: compiled once, each case isolated
    queue        `CodeQueue.judge`, and a worker process with the embedded sandbox
    runs         what `score` did before: a run of the embedded sandbox for each case, 16 at once
    plain        subprocesses in line, compiled once, nothing isolated: the floor
    prime_code   verl's, where `--peer prime_code=FOLDER` names its `utils/reward_score`; Python
                 alone, all cases right
"""

import asyncio
import itertools
import json
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

from bench.peers import FOLDERS, environment
from bench.suite import Ratio, Suite, Target
from ground import EmbeddedServer, bundled_server
from worker import CodeQueue, CodeRequest
from worker.judge.asking import JudgeOptions, request_here
from worker.judge.formats import Cases, read_cases
from worker.judge.models import JudgeResult
from worker.sandbox.local import LocalSandbox

_PYTHON = "print(sum(map(int, input().split())))\n"
_CPP = """#include <bits/stdc++.h>
int main() { long long n, s = 0; while (std::cin >> n) s += n; std::cout << s << std::endl; }
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
# The program, the mark of a comment, its file, and how it is compiled, if it is.
_LANGUAGES: dict[str, tuple[str, str, str, list[str]]] = {
    "python": (_PYTHON, "#", "main.py", []),
    "cpp": (_CPP, "//", "main.cpp", ["g++", "-O2", "-std=c++17", "-o", "main", "main.cpp"]),
    "go": (_GO, "//", "main.go", ["go", "build", "-o", "main", "main.go"]),
}
_COMPILER = {"cpp": "g++", "go": "go"}
_PATIENT: JudgeOptions = {"compile_timeout": 120.0, "run_timeout": 30.0}
_AT_ONCE = 16
_NUMPY = "numpy==2.2.6"  # which its files import
_PRIME = Path(__file__).parent / "judge_contenders" / "prime_code.py"

_number = itertools.count()


def measure(quick: bool) -> Suite:
    """All contenders, over the languages that are here."""
    languages = [name for name in _LANGUAGES if shutil.which(_COMPILER.get(name, "python3"))]
    counts = {name: 50 if name == "python" or not quick else 10 for name in languages}
    cases = {name: _cases(count) for name, count in counts.items()}
    ours = _Ours()
    ways: dict[str, Callable[[str, str, Cases], None]] = {
        "judge": ours.judge,
        "queue": ours.queue,
        "runs": ours.runs,
        "plain": _plain,
    }
    contenders = {name: _run_of(way, cases) for name, way in ways.items()}
    if "prime_code" in FOLDERS:
        python = environment("prime-code", [_NUMPY])
        contenders["prime_code"] = lambda: {"python cases/s": _prime(python, cases["python"])}
    peers = [name for name in contenders if name not in ("judge", "queue")]
    metric = {name: f"{name} cases/s" for name in languages}
    return Suite(
        contenders=contenders,
        rounds=2 if quick else 5,
        conditions={f"{name} cases": count for name, count in counts.items()},
        ratios=[
            *(
                Ratio(metric[name], "judge", peer)
                for name in languages
                for peer in peers
                if peer != "prime_code" or name == "python"
            ),
            *(Ratio(metric[name], "queue", "judge") for name in languages),
        ],
        targets=[
            Target("judge python cases/s vs runs", at_least=5),
            Target("judge python cases/s vs plain", at_least=8),
            *([Target("judge cpp cases/s vs runs", at_least=20)] if "cpp" in languages else []),
            *([Target("judge go cases/s vs runs", at_least=12)] if "go" in languages else []),
            Target("queue python cases/s vs judge", at_least=1 / 1.15),
        ],
        clean_up=ours.stop,
    )


def _cases(count: int) -> Cases:
    draw = random.Random(count)
    rows = [[draw.randrange(1000) for _ in range(20)] for _ in range(count)]
    return read_cases(
        {
            "inputs": [" ".join(map(str, row)) + "\n" for row in rows],
            "outputs": [f"{sum(row)}\n" for row in rows],
        }
    )


def _run_of(
    way: Callable[[str, str, Cases], None], cases: Mapping[str, Cases]
) -> Callable[[], dict[str, float]]:
    def run() -> dict[str, float]:
        found = {}
        for language, some in cases.items():
            text, comment, *_ = _LANGUAGES[language]
            code = f"{text}{comment} {next(_number)}\n"
            began = time.perf_counter()
            way(code, language, some)
            found[f"{language} cases/s"] = len(some.cases) / (time.perf_counter() - began)
        return found

    return run


class _Ours:
    """A sandbox on a loop of its own, and a worker with another one."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._sandbox = LocalSandbox()
        self._folder = tempfile.mkdtemp(prefix="penstock-bench-")
        self._server = EmbeddedServer(self._folder, binary=bundled_server())
        self._queue = CodeQueue(self._server.url, "bench", no_workers_after=60)
        self._worker = subprocess.Popen(
            [sys.executable, "-m", "penstock", "worker", "bench", "--sandbox", "local",
             "--redis-url", self._server.url],
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.judge(_PYTHON, "python", _cases(1))
        self.queue(_PYTHON, "python", _cases(1))

    def judge(self, code: str, language: str, cases: Cases) -> None:
        request, suite = request_here(code, cases, _PATIENT | {"language": language})
        _all_right(self._wait(self._sandbox.judge(request, suite)))

    def queue(self, code: str, language: str, cases: Cases) -> None:
        _all_right(self._queue.sync.judge(code, cases, **(_PATIENT | {"language": language})))

    def runs(self, code: str, language: str, cases: Cases) -> None:
        async def all_of_them() -> None:
            room = asyncio.Semaphore(_AT_ONCE)

            async def one(given: str, expected: object) -> None:
                async with room:
                    result = await self._sandbox.run(
                        CodeRequest(code=code, language=language, stdin=given,
                                    compile_timeout=120, run_timeout=30)
                    )  # fmt: skip
                    if result.stdout != expected:
                        raise RuntimeError(f"{language}: {result.stderr:.200}")

            await asyncio.gather(*(one(case.input, case.expected) for case in cases.cases))

        self._wait(all_of_them())

    def _wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def stop(self) -> None:
        self._wait(self._sandbox.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._worker.terminate()
        self._worker.wait()
        self._server.stop()
        shutil.rmtree(self._folder)


def _all_right(result: JudgeResult) -> None:
    if set(result.verdicts) != {"P"}:
        raise RuntimeError(f"{result.verdicts}: {result.message} {result.compile_result}")


def _plain(code: str, language: str, cases: Cases) -> None:
    _, _, name, compiler = _LANGUAGES[language]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, name).write_text(code)
        if compiler:
            subprocess.run(compiler, cwd=folder, check=True)
        command = ["./main"] if compiler else [sys.executable, name]
        for case in cases.cases:
            ran = subprocess.run(
                command, cwd=folder, input=case.input, capture_output=True, text=True, check=True
            )
            if ran.stdout != case.expected:
                raise RuntimeError(f"{language}: {ran.stdout!r}")


def _prime(python: Path, cases: Cases) -> float:
    given = {
        "code": f"{_PYTHON}# {next(_number)}",
        "inputs": [case.input for case in cases.cases],
        "outputs": [case.expected for case in cases.cases],
    }
    said = subprocess.run(
        [str(python), str(_PRIME), str(FOLDERS["prime_code"])],
        input=json.dumps(given), capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    found = json.loads(said.splitlines()[-1])
    if found["score"] != 1.0:
        raise RuntimeError(f"prime_code: {found}")
    return len(cases.cases) / float(found["seconds"])

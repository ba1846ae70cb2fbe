"""A program is blamed for what it did: not for a busy machine, its neighbours, or its checker."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from jail import LocalSandbox, languages
from jail.errors import SandboxBroken
from jail.judge.builds import Build
from jail.judge.models import JudgeCase, JudgeRequest
from jail.judge.suite import Case, InlineSuite
from jail.judge.trial import Trial
from jail.models import CodeRequest
from jail.outcome import Step

from .judged import Cases, in_turn, judge

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.in_turns("sandbox")]


@pytest_asyncio.fixture(params=["with cgroups", "without"], scope="module", loop_scope="module")
async def sandbox(request: pytest.FixtureRequest) -> AsyncIterator[LocalSandbox]:
    """Judges every case of a program in one jail."""
    sandbox = LocalSandbox()
    sandbox.jails._use_cgroups = request.param == "with cgroups"
    sandbox._judging.cores.most = 1
    yield sandbox
    await sandbox.close()


async def test_a_limit_of_time_is_no_limit_of_the_process_that_forks_the_cases(
    sandbox: LocalSandbox,
) -> None:
    """Of ten thousand cases it needs some seconds itself."""
    code = "print(next(x.split()[3] for x in open('/proc/1/limits') if x.startswith('Max cpu')))"
    result = await judge(sandbox, code, [("", "unlimited\n")], run_timeout=1.0)
    assert result.verdicts == "P", result.kept


async def test_the_time_of_the_process_that_forks_the_cases_is_no_cases(
    sandbox: LocalSandbox,
) -> None:
    """It grows with each fork, and the last of many cases would have the time of all of them."""
    code = in_turn("import time; time.sleep(0.3)", "pass")
    result = await judge(sandbox, code, [("1", None)] * 400 + [("0", None)])
    assert result.verdicts == "P" * 401
    assert result.cpu_ms[-1] < sum(result.cpu_ms) / 10


FAMILY = """
import os, time
for _ in range(2):
    if not os.fork():
        break
held = bytearray(os.urandom(1)) * (90 << 20)
time.sleep(60)
"""


async def test_every_process_of_a_case_counts(sandbox: LocalSandbox) -> None:
    """Whichever number it has, and however its jail was made: those after the first are otherwise.
    All three are above the limit, and no two of them are."""
    for _ in range(3):
        result = await judge(sandbox, FAMILY, [("", None)], memory_limit_mb=240)
        assert (result.verdicts, result.reasons) == ("L", {0: "memory_limit"})


BURN = "import time\nwhile time.process_time() < 0.3: pass\nprint(1)"


async def test_a_long_case_gives_way_and_a_short_one_behind_it_does_not(
    sandbox: LocalSandbox,
) -> None:
    code = in_turn(f"{BURN}\nimport os; print(os.nice(0))", "import os; print(os.nice(0))")
    weights: list[set[str]] = []

    class Looking(InlineSuite):
        async def case(self, index: int) -> Case:
            groups = sandbox.jails._hierarchy._used if sandbox.jails._hierarchy else []
            weights.append({Path(group.weight).read_text() for group in groups})
            return await super().case(index)

    cases = [JudgeCase(input=which) for which in "1011"]
    request = JudgeRequest(code=code, cases=cases, wall_timeout=60.0, keep="all")
    result = await sandbox.judge(request, Looking.of(cases))
    assert result.verdicts == "PPPP"
    assert len({result.kept[index].stdout for index in (0, 2, 3)}) == 1
    assert weights[1] == weights[2] == weights[3]


HIDDEN = """
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for _ in range(8):
    end, begin = os.pipe()
    if os.fork() == 0:
        while time.process_time() < 0.25: pass
        os._exit(0)
    os.close(begin)
    os.read(end, 1)
print(1)
"""


async def test_the_time_of_children_whose_end_is_ignored_counts(sandbox: LocalSandbox) -> None:
    result = await judge(sandbox, HIDDEN, [("", "1\n")], run_timeout=0.5)
    assert (result.verdicts, result.reasons[0]) == ("T", "run_timeout")


UNSEEN = """
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
while True:
    if os.fork() == 0:
        while time.process_time() < 0.002: pass
        os._exit(0)
    try: os.wait()
    except ChildProcessError: pass
"""


async def test_children_that_no_look_finds_end_with_the_time_that_their_cgroup_counts(
    sandbox: LocalSandbox,
) -> None:
    await sandbox.start()
    hierarchy = sandbox.jails._hierarchy
    if not (hierarchy and hierarchy._files.used):
        pytest.skip("nothing counts the time of a program's group")
    result = await judge(sandbox, UNSEEN, [("", None)], run_timeout=0.2, wall_timeout=None)
    assert (result.verdicts, result.reasons[0]) == ("T", "run_timeout")


@pytest.mark.parametrize("made", [b"#!/nowhere/at-all\n", b"no program at all"])
async def test_a_program_that_cannot_be_loaded_is_its_own_fault(
    sandbox: LocalSandbox, monkeypatch: pytest.MonkeyPatch, made: bytes
) -> None:
    """A linker may be asked for a loader that is not there."""
    c = languages.LANGUAGES["c"]
    compiled = Step("finished", 0, b"", b"", 0.0, 0.0, 0, 0)

    async def made_already(*_: object) -> Build:
        return Build(c, "main.c", {"main": made}, compiled)

    monkeypatch.setattr(sandbox._judging.builds, "of", made_already)
    result = await judge(sandbox, "", [("", None)] * 2, language="c")
    assert result.verdicts == "EE", result
    assert result.exits == {0: 127, 1: 127}
    assert "main" in result.kept[0].stderr


async def test_a_case_that_only_waits_for_a_processor_is_not_ended_by_the_clock() -> None:
    """On one core; the clock of each runs out before their shares of it suffice."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    sandbox = LocalSandbox(concurrency=16)
    try:
        await sandbox._start()
        many: Cases = [("", "1\n")]
        judged = [
            judge(sandbox, f"{BURN} # {n}", many, run_timeout=0.6, wall_timeout=None)
            for n in range(12)
        ]
        found = await asyncio.gather(*judged)
    finally:
        os.sched_setaffinity(0, before)
        await sandbox.close()
    assert [result.verdicts for result in found] == ["P"] * 12


async def test_a_compiler_that_only_lacks_a_processor_is_not_ended_by_the_clock(
    sandbox: LocalSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its clock runs out at once, as it would beside fifty other compilers."""
    monkeypatch.setattr("jail.judge.builds._WALL", 0.0005)
    result = await judge(
        sandbox, "int main() { return 0; }", [("", None)], language="c", compile_timeout=20.0
    )
    assert result.verdicts == "P", result.reasons


async def test_a_compiler_that_waits_for_nothing_is_ended_by_the_clock(
    sandbox: LocalSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jail.judge.builds._WALL", 0.01)
    monkeypatch.setitem(
        languages.LANGUAGES,
        "c",
        replace(languages.LANGUAGES["c"], compile=["sleep", "60"]),
    )
    result = await judge(sandbox, "int main() {}", [("", None)], language="c", compile_timeout=20.0)
    assert (result.verdicts, result.reasons[0]) == ("C", "compile_timeout")


async def test_one_that_sleeps_is_ended_by_the_clock_without_a_limit_for_that(
    sandbox: LocalSandbox,
) -> None:
    code = "import time; time.sleep(1000)"
    result = await judge(sandbox, code, [("", None)], run_timeout=0.1, wall_timeout=None)
    assert (result.verdicts, result.reasons[0]) == ("T", "run_timeout")


NAMED = """
import ctypes, signal, time
signal.signal(signal.SIGTERM, lambda *_: (print(1), exit()))
ctypes.CDLL(None).prctl(15, b"NAME", 0, 0, 0)
time.sleep(1000)
"""


async def process_named(name: str, seen: set[str]) -> int:
    """The number of one that was not seen before."""
    async with asyncio.timeout(100):
        while True:
            for found in Path("/proc").glob("[0-9]*/comm"):
                with contextlib.suppress(OSError):
                    if found.read_text().strip() == name and str(found) not in seen:
                        seen.add(str(found))
                        return int(found.parent.name)
            await asyncio.sleep(0.01)


async def test_a_case_that_somebody_outside_kills_is_tried_again(sandbox: LocalSandbox) -> None:
    name, seen = f"k{os.urandom(5).hex()}", set[str]()
    judging = asyncio.ensure_future(judge(sandbox, NAMED.replace("NAME", name), [("", "1\n")]))
    os.kill(await process_named(name, seen), signal.SIGKILL)
    os.kill(await process_named(name, seen), signal.SIGTERM)
    assert (await judging).verdicts == "P"


async def test_a_program_that_kills_itself_is_not_masked(sandbox: LocalSandbox) -> None:
    result = await judge(sandbox, "import os; os.kill(os.getpid(), 9)", [("", None)])
    assert (result.verdicts, result.reasons, result.exits) == ("E", {0: "signal"}, {0: -9})


ALL_OF_IT = "held = bytearray(300 << 20)\nfor at in range(0, len(held), 4096): held[at] = 1"


async def test_a_kill_below_the_programs_own_limit_is_the_machines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A smaller group stands for a container that had less left than the program may have."""
    sandbox = LocalSandbox()
    await sandbox._start()
    hierarchy = sandbox.jails._hierarchy
    try:
        if hierarchy is None or hierarchy.kind != "cgroup-v1":
            pytest.skip("only version 1 counts the shortages of such a group as no other's")
        make = hierarchy.make
        monkeypatch.setattr(hierarchy, "make", lambda one: make(replace(one, memory=64 << 20)))
        with pytest.raises(SandboxBroken, match="ran out of memory"):
            await judge(sandbox, ALL_OF_IT, [("", None)])
        with pytest.raises(SandboxBroken, match="ran out of memory"):
            await sandbox.run(CodeRequest(code=ALL_OF_IT))
    finally:
        await sandbox.close()


async def test_a_case_that_its_own_limit_killed_runs_once(
    sandbox: LocalSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []
    one = Trial._case

    async def counted(trial: Trial, index: int, *given: Any) -> Any:
        begun.append(index)
        return await one(trial, index, *given)

    monkeypatch.setattr(Trial, "_case", counted)
    result = await judge(sandbox, ALL_OF_IT, [("", None)], memory_limit_mb=64)
    assert (result.verdicts, begun) == ("L", [0]), result


DEEP = """
#include <stdio.h>
#include <pthread.h>
static long down(long n) {
    volatile long here[6];
    here[n % 6] = n;
    long below = n ? down(n - 1) : -1;
    return here[n % 6] == n ? below + 1 : -1;
}
static void *begin(void *n) { *(long *)n = down(*(long *)n); return 0; }
int main(void) {
    long n; pthread_t ids[16]; long depths[16];
    scanf("%ld", &n);
    printf("%ld\\n", down(n));
    for (int i = 0; i < 16; i++) {
        depths[i] = 1000;
        if (pthread_create(&ids[i], 0, begin, &depths[i])) { puts("no thread"); return 1; }
    }
    for (int i = 0; i < 16; i++) pthread_join(ids[i], 0);
    return 0;
}
"""


@pytest.mark.skipif("c" not in languages.installed(), reason="no C on this machine")
async def test_a_compiled_program_recurses_as_deep_as_its_memory_allows(
    sandbox: LocalSandbox,
) -> None:
    """It has threads as well: the stack of each is not reserved out of the memory."""
    given = {"language": "c", "compile_timeout": 60.0, "memory_limit_mb": 512}
    cases: Cases = [("1000000", "1000000\n"), ("100000000", None)]
    result = await judge(sandbox, DEEP, cases, **given)
    assert result.verdicts[0] == "P", result.kept
    assert result.verdicts[1] in "LE"
    ran = await sandbox.run(
        CodeRequest(code=DEEP, language="c", stdin="1000000", compile_timeout=60.0)
    )
    assert ran.run_result is not None
    assert ran.run_result.stdout == "1000000\n", ran


JAVA = """
public class Main {
    static int down(int n) { return n == 0 ? 0 : 1 + down(n - 1); }
    public static void main(String[] of) throws Exception {
        System.out.println(down(new java.util.Scanner(System.in).nextInt()));
        Thread[] others = new Thread[32];
        for (int i = 0; i < others.length; i++) (others[i] = new Thread(() -> down(1000))).start();
        for (Thread other : others) other.join();
    }
}
"""


@pytest.mark.skipif("java" not in languages.installed(), reason="no Java on this machine")
async def test_a_java_program_recurses_deep_in_its_main_thread(sandbox: LocalSandbox) -> None:
    result = await judge(
        sandbox, JAVA, [("300000", "300000\n")], language="java", compile_timeout=60.0
    )
    assert result.verdicts == "P", result


EVIDENCE = {  # a program, and what its verdict stands on
    "sleeps": ("import time; time.sleep(100)", "T", "s of it asleep"),
    "spins": ("while True: pass", "T", "s of a processor (limit 0.3)"),
    "takes memory": (ALL_OF_IT, "L", "MB at its peak (limit 64)"),
    "prints": ("while True: print('x' * 9999)", "L", "bytes printed"),
    "kills itself": ("import os; os.kill(os.getpid(), 9)", "E", "SIGKILL in both tries"),
}  # fmt: skip


@pytest.mark.parametrize("how", EVIDENCE)
async def test_a_verdict_says_what_it_stands_on(sandbox: LocalSandbox, how: str) -> None:
    code, letter, evidence = EVIDENCE[how]
    limits = {"run_timeout": 0.3, "wall_timeout": None, "memory_limit_mb": 64}
    result = await judge(sandbox, code, [("", None)] * 2, **limits)
    assert result.verdicts == letter * 2, result
    assert evidence in result.evidence[0]
    assert [*result.evidence] == [0], "of each reason, the first"
    assert result.fault(0) == "program"


async def test_a_program_that_sleeps_is_told_from_one_that_waits_for_a_processor(
    sandbox: LocalSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what its processes do: the time in which they are asleep is the program's own."""
    steps: list[Step] = []
    in_lane = Trial._in_lane

    async def seen(trial: Trial, *given: Any) -> Any:
        said, step = await in_lane(trial, *given)
        steps.append(step)
        return said, step

    monkeypatch.setattr(Trial, "_in_lane", seen)
    for code in ("import time; time.sleep(0.5)", BURN.replace("0.3", "0.5")):
        await judge(sandbox, code, [("", None)])
    asleep, awake = steps
    assert asleep.idle / asleep.duration > awake.idle / awake.duration
    assert awake.cpu > asleep.cpu

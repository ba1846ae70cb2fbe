"""The same abuse at every level: it ends as it must, and nothing of it is left.

`ns` is tried in place. The weaker levels are tried in namespaces that end with the test.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from jail import Outcome
from jail.isolation import probes
from jail.outcome import Program

from .abuses import ABUSES, Abuse
from .conftest import QUICK, STARTS, Run
from .fenced import Fenced, fenced
from .pytests import NO_PYTEST, PYTESTS
from .swaps import SWAPS, never_another

pytestmark = pytest.mark.asyncio(loop_scope="module")

each_swap = pytest.mark.parametrize("swap", SWAPS)
each_abuse = pytest.mark.parametrize("abuse", ABUSES, ids=[abuse.name for abuse in ABUSES])


@pytest_asyncio.fixture(params=STARTS, scope="module", loop_scope="module")
async def landlock(request: pytest.FixtureRequest) -> AsyncIterator[Fenced]:
    async for sandbox in fenced("landlock", request.param):
        yield sandbox


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def unconfined() -> AsyncIterator[Fenced]:
    async for sandbox in fenced("none", "user"):
        yield sandbox


def as_it_must(abuse: Abuse, outcome: Outcome) -> None:
    assert outcome.status == abuse.status, outcome
    if abuse.status == "finished" or abuse.return_code is not None:
        assert outcome.return_code == abuse.return_code, outcome
    if abuse.stdout is not None:
        assert outcome.stdout == abuse.stdout
    assert outcome.run is not None
    assert outcome.run.duration < abuse.longest
    assert outcome.run.memory_peak < 1000 << 20
    assert len(outcome.stdout) <= 4 << 20


@each_abuse
async def test_namespaces_hold_it(run: Run, abuse: Abuse) -> None:
    as_it_must(abuse, await run(abuse.code, **abuse.limits))


@each_abuse
async def test_landlock_holds_it(landlock: Fenced, abuse: Abuse) -> None:
    limits = replace(QUICK, **abuse.limits)
    outcome = await landlock.run(Program(abuse.code, limits=limits))
    as_it_must(abuse, outcome)
    assert outcome.level == "landlock"


async def test_landlock_is_tried_by_every_probe_but_those_of_namespaces(landlock: Fenced) -> None:
    assert landlock.facts == {"level": "landlock", "probes": len(probes.at("landlock"))}
    assert {probe.name for probe in probes.PROBES} - {p.name for p in probes.at("landlock")} == {
        "honour a setuid bit",
        "meet the locks of the machine's files",
    }


async def test_programs_under_landlock_do_not_reach_each_other(landlock: Fenced) -> None:
    """Nor their supervisors, nor the fork server: the attack goes to every process there is."""
    victim = """
import os, time
open("mine", "w").write("mine")
time.sleep(3)
print("alive", open("mine").read())
"""
    attack = """
import os, signal
def all_but_me():
    return (pid for pid in range(1, 20_000) if pid != os.getpid())
for pid in all_but_me():
    for attempt in (
        lambda: os.kill(pid, signal.SIGKILL),
        lambda: signal.pidfd_send_signal(os.pidfd_open(pid), signal.SIGKILL),
        lambda: open(f"/proc/{pid}/mem"),
        lambda: open(f"/proc/{pid}/environ"),
        lambda: os.listdir(f"/proc/{pid}/cwd/"),
        lambda: os.listdir(f"/proc/{pid}/fd"),
    ):
        try: attempt(); print("reached", pid)
        except OSError: pass
try: os.listdir(os.getcwd() + "/../.."); print("reached the others' folders")
except OSError: pass
print("done")
"""
    running = asyncio.ensure_future(landlock.run(Program(victim, limits=QUICK)))
    outcome = await landlock.run(Program(attack, limits=QUICK))
    assert outcome.stdout == b"done\n"
    assert (await running).stdout == b"alive mine\n"


async def test_files_go_in_and_out_under_landlock(landlock: Fenced) -> None:
    outcome = await landlock.run(
        Program(
            "import os; print(open('d/in').read()); os.symlink('/etc/hosts', 'link');"
            "os.symlink('d/in', 'own')",
            files={"d/in": b"given"},
            fetch=["d/in", "own", "link", "/etc/hosts", "../../x", "missing"],
        )
    )
    assert outcome.files == {"d/in": b"given", "own": b"given"}
    assert set(outcome.refused_files) == {"link", "/etc/hosts", "../../x"}
    for name in ("../../x", "/tmp/x", "/etc/x"):
        outcome = await landlock.run(Program("1", files={name: b""}))
        assert outcome.status == "refused", outcome


@each_swap
async def test_a_file_that_is_swapped_under_landlock_is_never_another(
    landlock: Fenced, swap: str
) -> None:
    never_another(await landlock.run(Program(SWAPS[swap], fetch=["x", "d/passwd"], limits=QUICK)))


@each_swap
async def test_a_file_that_is_swapped_without_isolation_is_never_another(
    unconfined: Fenced, swap: str
) -> None:
    """The child that swaps is killed first, for it does not resist; and the name is resolved."""
    never_another(await unconfined.run(Program(SWAPS[swap], fetch=["x", "d/passwd"], limits=QUICK)))


async def test_other_languages_run_under_landlock(landlock: Fenced) -> None:
    outcome = await landlock.run(Program("read line; echo $line; exit 3", "bash", stdin=b"in\n"))
    assert (outcome.stdout, outcome.return_code) == (b"in\n", 3)
    code = '#include <cstdio>\nint main() { puts("compiled"); }'
    outcome = await landlock.run(Program(code, "cpp", limits=replace(QUICK, memory=1 << 30)))
    assert outcome.stdout == b"compiled\n" or "install" in outcome.error, outcome


@pytest.mark.parametrize("way", PYTESTS)
async def test_pytest_runs_under_landlock(landlock: Fenced, way: str) -> None:
    language, code = PYTESTS[way]
    files = {"test_x.py": b"def test_a(): pass"}
    outcome = await landlock.run(Program(code, language, files=files, limits=QUICK))
    if NO_PYTEST.search(outcome.stderr):
        pytest.skip("this interpreter has no pytest")
    assert outcome.return_code == 0, outcome
    assert b"1 passed" in outcome.stdout


async def test_honest_programs_beside_bombs_under_landlock(landlock: Fenced) -> None:
    bombs = ["fork bomb", "memory of a whole tree", "flood of output"]
    hostile = [abuse for abuse in ABUSES for bomb in bombs if bomb in abuse.name]
    outcomes = await asyncio.gather(
        *(landlock.run(Program(a.code, limits=replace(QUICK, **a.limits))) for a in hostile),
        *(landlock.run(Program(f"print({n})", limits=replace(QUICK, wall=60))) for n in range(32)),
    )
    assert [o.status for o in outcomes[:3]] == [abuse.status for abuse in hostile]
    assert [o.stdout for o in outcomes[3:]] == [f"{n}\n".encode() for n in range(32)]


async def test_without_isolation_a_program_runs_and_says_so(unconfined: Fenced) -> None:
    outcome = await unconfined.run(Program("import os; print(os.geteuid() != 0, os.listdir('/'))"))
    assert (outcome.level, outcome.return_code) == ("none", 0)
    assert outcome.stdout.startswith(b"True")


async def test_without_isolation_limits_and_orphans_are_still_seen_to(unconfined: Fenced) -> None:
    wanted = ("time limit", "one large", "whole tree", "flood", "background", "deeper")
    for abuse in ABUSES:
        if any(words in abuse.name for words in wanted):
            outcome = await unconfined.run(
                Program(abuse.code, limits=replace(QUICK, **abuse.limits))
            )
            as_it_must(abuse, outcome)

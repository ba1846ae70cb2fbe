"""A cgroup is used where one can be made, and its absence is said, not hidden."""

import asyncio
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from jail.cgroups import cgroups
from jail.cgroups.cgroups import Hierarchy
from jail.cgroups.marks import Mark
from jail.jails import Jails
from jail.limits import DEFAULTS
from jail.outcome import Program

from .conftest import config_for


@pytest.fixture
def hierarchy() -> Hierarchy:
    found = Hierarchy.find()
    if found is None:
        pytest.skip("no cgroup can be made here")
    return found


def test_groups_come_and_go_with_their_hierarchy(hierarchy: Hierarchy) -> None:
    before = len(os.listdir("/proc/self/fd")) - len(hierarchy.marks)
    group = hierarchy.make(DEFAULTS)
    folders = list(map(Path, group.folders))
    assert all(folder.is_dir() for folder in folders)
    # Beside whoever has it run, where its weight is compared with theirs.
    assert [folder.parent for folder in folders] == parents(hierarchy)
    hierarchy.discard(group)
    hierarchy.close()
    assert not any(folder.exists() for folder in folders)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_group_that_is_still_in_use_is_removed_later(hierarchy: Hierarchy) -> None:
    group = hierarchy.make(DEFAULTS)
    inner = Path(group.folders[0]) / "inner"
    inner.mkdir()
    hierarchy.discard(group)
    assert hierarchy.dying == 1
    inner.rmdir()
    hierarchy.close()
    assert hierarchy.dying == 0


LEAVE_GROUPS = """
import os, signal
from jail.limits import DEFAULTS
from jail.cgroups.cgroups import Hierarchy
hierarchy = Hierarchy.find()
group = hierarchy.make(DEFAULTS)
print(*[mark.folder for mark in hierarchy.marks], *group.folders, sep="\\n", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_is_swept_at_the_next_start_and_what_a_living_one_has_is_not(
    hierarchy: Hierarchy,
) -> None:
    group = hierarchy.make(DEFAULTS)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    killed = [sys.executable, "-c", LEAVE_GROUPS]
    said = subprocess.run(killed, stdout=subprocess.PIPE, env=environment, text=True, check=False)
    left = list(map(Path, said.stdout.splitlines()))
    assert len(left) == 2 * len(hierarchy.marks)
    again = Hierarchy.find()
    assert again is not None
    again.close()
    assert not any(folder.exists() for folder in left)
    lives = [mark.folder for mark in hierarchy.marks] + list(map(Path, group.folders))
    assert all(folder.exists() for folder in lives)
    hierarchy.discard(group)
    hierarchy.close()


def test_a_group_says_nothing_of_who_made_it(hierarchy: Hierarchy) -> None:
    """A program can read its group's name."""
    assert re.fullmatch(r"penstock-[0-9a-f]{16}", hierarchy.marks[0].folder.name)
    hierarchy.close()


def test_closing_a_hierarchy_removes_groups_that_are_still_used(hierarchy: Hierarchy) -> None:
    before = len(os.listdir("/proc/self/fd")) - len(hierarchy.marks)
    group = hierarchy.make(DEFAULTS)
    hierarchy.close()
    hierarchy.discard(group)
    assert not any(Path(folder).exists() for folder in group.folders)
    assert len(os.listdir("/proc/self/fd")) == before


def test_where_a_group_cannot_be_made_there_is_no_hierarchy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An ordinary folder has no `pids.events`: it is tried, and given up without a trace."""
    parent = tmp_path / "group"
    parent.mkdir()
    monkeypatch.setattr(cgroups, "_unified", lambda name: [Mark.make(parent, name)])
    monkeypatch.setattr(cgroups, "_legacy", lambda name: [])
    monkeypatch.setattr(Hierarchy, "_removal_patience", 0)
    assert Hierarchy.find() is None


USUAL = {"cgroup-v1": 1024, "cgroup-v2": 100}
PATIENT = replace(DEFAULTS, wall=120.0)
UNTIL_NICE = """
import os
before = nice = os.getpriority(os.PRIO_PROCESS, 0)
while nice == before: nice = os.getpriority(os.PRIO_PROCESS, 0)
print(nice)
"""
ALREADY_NICER = """
import os, time
os.nice(9)
while time.process_time() < 0.3: pass
print(os.getpriority(os.PRIO_PROCESS, 0))
"""


NICER = 5  # what the programs of an embedded sandbox are, once they compute


@pytest.mark.skipif(os.nice(0) >= NICER, reason="the tests themselves run as nice as that")
async def test_without_a_group_it_gives_way_by_being_nice() -> None:
    async with Jails(config_for("user"), use_cgroups=False) as jails:
        outcome = await jails.run(Program(UNTIL_NICE, limits=PATIENT))
        nicer = await jails.run(Program(ALREADY_NICER, limits=PATIENT))
        usual = await jails.run(Program("print(__import__('os').nice(0))"))
    assert usual.stdout == b"%d\n" % os.nice(0), "as nice as whoever runs the tests"
    assert outcome.stdout == b"%d\n" % NICER, outcome
    assert nicer.stdout == b"%d\n" % (9 + os.nice(0)), nicer


async def test_its_weight_is_then_a_quarter_of_the_usual() -> None:
    async with Jails(config_for("root")) as jails:
        hierarchy = jails._hierarchy
        if hierarchy is None or not hierarchy._files.weight:
            pytest.skip("no cgroup that divides the processor can be made here")
        running = asyncio.ensure_future(jails.run(Program("while True: pass", limits=PATIENT)))
        async with asyncio.timeout(100):
            while set(weights(hierarchy)) != {USUAL[hierarchy.kind] // 4}:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.wait([running])


def weights(hierarchy: Hierarchy) -> list[int]:
    """Of the programs that run now."""
    name = hierarchy._files.weight
    groups = [
        group
        for mark in hierarchy.marks
        for group in mark.folder.parent.glob(f"{mark.folder.name}.*")
    ]
    return [int(file.read_text()) for group in groups if (file := group / name).exists()]


def parents(hierarchy: Hierarchy) -> list[Path]:
    return [mark.folder.parent for mark in hierarchy.marks]


async def test_the_kernels_own_limit_leaves_room_for_forks_that_are_under_way() -> None:
    """It counts them too, and refuses without a word that the group or init could go by."""
    code = "import resource; print(resource.getrlimit(resource.RLIMIT_NPROC)[0])"
    async with Jails(config_for("user")) as jails:
        outcome = await jails.run(Program(code, limits=replace(DEFAULTS, processes=16)))
    assert int(outcome.stdout) > 2 * 16


async def test_without_one_memory_is_held_by_sampling_and_that_is_said() -> None:
    async with Jails(config_for("user"), use_cgroups=False) as jails:
        assert jails.memory_by == "sampling"


HOLD_IN_SOCKETS = """
import socket
pairs = []
for _ in range(240):
    into, out = socket.socket(2, 2), socket.socket(2, 2)
    into.bind(("127.0.0.1", 0))
    into.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    out.connect(into.getsockname())
    for _ in range(10): out.send(bytes(60_000))
    pairs.append((into, out))
held = 0
for into, _ in pairs:
    try:
        while True: held += len(into.recv(1 << 16, socket.MSG_DONTWAIT))
    except BlockingIOError: pass
print(held)
"""


async def test_what_sockets_hold_is_counted() -> None:
    limits = replace(PATIENT, memory=64 << 20)
    async with Jails(config_for("user"), use_cgroups=False) as jails:
        uncounted = await jails.run(Program(HOLD_IN_SOCKETS, limits=limits))
    assert int(uncounted.stdout) > limits.memory, "then it would not tell either"
    async with Jails(config_for("root")) as jails:
        if jails.memory_by == "sampling":
            pytest.skip("no cgroup can be made here")
        counted = await jails.run(Program(HOLD_IN_SOCKETS, limits=limits))
    assert counted.status == "memory_limit" or int(counted.stdout) < limits.memory, counted

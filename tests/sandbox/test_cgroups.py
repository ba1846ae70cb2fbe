"""A cgroup is used where one can be made, and its absence is said, not hidden."""

import asyncio
import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from worker.sandbox.local import DEFAULTS, Jails, Program, cgroups
from worker.sandbox.local.cgroups import Hierarchy
from worker.sandbox.local.inside.evidence import Evidence

from .conftest import config_for
from .fake_cgroups import FakeCgroups


@pytest.fixture
def hierarchy() -> Hierarchy:
    found = Hierarchy.find()
    if found is None:
        pytest.skip("no cgroup can be made here")
    return found


def test_groups_come_and_go_with_their_hierarchy(hierarchy: Hierarchy) -> None:
    before = len(os.listdir("/proc/self/fd"))
    group = hierarchy.make(DEFAULTS)
    folders = list(map(Path, group.folders))
    assert all(folder.is_dir() for folder in folders)
    # Beside whoever has it run, where its weight is compared with theirs.
    assert [folder.parent for folder in folders] == hierarchy._parents
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


def test_what_a_killed_process_left_is_swept_at_the_next_start(hierarchy: Hierarchy) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    left = hierarchy._parents[0] / f"penstock-{dead.pid}-1-7"
    left.mkdir()
    hierarchy.close()
    again = Hierarchy.find()
    assert again is not None
    again.close()
    assert not left.exists()


def test_where_a_group_cannot_be_made_there_is_no_hierarchy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An ordinary folder has no `pids.events`: it is tried, and given up without a trace."""
    parent = tmp_path / "group"
    parent.mkdir()
    monkeypatch.setattr(cgroups, "_unified_parents", lambda: [parent])
    monkeypatch.setattr(cgroups, "_legacy_parents", list)
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


async def test_without_a_group_it_gives_way_by_being_nice() -> None:
    async with Jails(config_for("user"), use_cgroups=False) as jails:
        outcome = await jails.run(Program(UNTIL_NICE, limits=PATIENT))
        nicer = await jails.run(Program(ALREADY_NICER, limits=PATIENT))
        usual = await jails.run(Program("print(__import__('os').nice(0))"))
    assert usual.stdout == b"%d\n" % os.nice(0), "as nice as whoever runs the tests"
    assert outcome.stdout == b"5\n", outcome
    assert nicer.stdout == b"%d\n" % (9 + os.nice(0)), nicer


async def test_its_weight_is_then_a_quarter_of_the_usual() -> None:
    async with Jails(config_for("root")) as jails:
        hierarchy = jails._hierarchy
        if hierarchy is None or not hierarchy._files.weight:
            pytest.skip("no cgroup that divides the processor can be made here")
        running = asyncio.ensure_future(jails.run(Program("while True: pass", limits=PATIENT)))
        async with asyncio.timeout(60):
            while set(weights(hierarchy)) != {USUAL[hierarchy.kind] // 4}:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.wait([running])


def weights(hierarchy: Hierarchy) -> list[int]:
    """Of the programs that run now."""
    name = hierarchy._files.weight
    groups = f"{hierarchy._name}-*"
    files = [file for parent in hierarchy._parents for file in parent.glob(f"{groups}/{name}")]
    return [int(file.read_text()) for file in files]


async def test_the_kernels_own_limit_leaves_room_for_forks_that_are_under_way() -> None:
    """It counts them too, and refuses without a word that the group or init could go by."""
    code = "import resource; print(resource.getrlimit(resource.RLIMIT_NPROC)[0])"
    async with Jails(config_for("user")) as jails:
        outcome = await jails.run(Program(code, limits=replace(DEFAULTS, processes=16)))
    assert int(outcome.stdout) > 2 * 16


async def test_without_one_memory_is_held_by_sampling_and_that_is_said() -> None:
    async with Jails(config_for("user"), use_cgroups=False) as jails:
        assert jails.memory_by == "sampling"


# --- version 2, on a hierarchy that behaves as the kernel's ----------------------------------

Fake = Callable[..., FakeCgroups]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """A function that makes one."""
    return lambda own="/", peak=True: FakeCgroups(tmp_path, own, monkeypatch, peak)


def test_version_2_is_used_at_the_top(fake: Fake) -> None:
    kernel = fake()
    kernel.pass_on("", "cpu")
    hierarchy = Hierarchy.find()
    assert hierarchy is not None
    assert hierarchy.kind == "cgroup-v2"
    group = hierarchy.make(replace(DEFAULTS, memory=64 << 20, processes=9))
    (folder,) = group.folders
    assert Path(folder).parent == kernel.top
    set_there = {
        name: (Path(folder) / name).read_text()
        for name in ("memory.max", "memory.swap.max", "memory.oom.group", "pids.max")
    }
    assert set_there == {
        "memory.max": str(64 << 20), "memory.swap.max": "0", "memory.oom.group": "1",
        "pids.max": "9",
    }  # fmt: skip
    names = [Path(os.readlink(f"/proc/self/fd/{at}")).name for at in group.descriptors]
    assert names == ["memory.events", "pids.events", "memory.peak", "cpu.weight", "cgroup.procs"]
    hierarchy.discard(group)
    hierarchy.close()
    assert kernel.groups() == []


def test_version_2_has_no_weight_where_the_processor_is_not_passed_on(fake: Fake) -> None:
    kernel = fake()
    (kernel.top / "cgroup.controllers").write_text("memory pids")
    hierarchy = Hierarchy.find()
    assert hierarchy is not None
    group = hierarchy.make(DEFAULTS)
    assert os.readlink(f"/proc/self/fd/{group.descriptors[3]}") == os.devnull
    hierarchy.discard(group)
    hierarchy.close()


def test_without_a_peak_what_is_used_now_stands_for_it(fake: Fake) -> None:
    fake(peak=False)
    hierarchy = Hierarchy.find()
    assert hierarchy is not None
    group = hierarchy.make(DEFAULTS)
    assert os.readlink(f"/proc/self/fd/{group.descriptors[2]}").endswith("/memory.current")
    hierarchy.discard(group)
    hierarchy.close()


def test_beside_our_own_group_where_that_one_has_processes(fake: Fake) -> None:
    """As systemd's `DelegateSubgroup=` leaves a service: its processes one group below."""
    kernel = fake("/penstock.service/main")
    kernel.pass_on("", "memory pids")
    (kernel.top / "penstock.service" / "cgroup.controllers").write_text("memory pids")
    hierarchy = Hierarchy.find()
    assert hierarchy is not None
    (parent,) = hierarchy._parents
    assert parent == kernel.top / "penstock.service"
    hierarchy.close()
    assert kernel.groups() == ["penstock.service", "penstock.service/main"]


def test_below_the_top_where_no_group_of_ours_passes_control_on(fake: Fake) -> None:
    kernel = fake("/user.slice/session.scope")
    hierarchy = Hierarchy.find()
    assert hierarchy is not None
    assert hierarchy._parents == [kernel.top]
    hierarchy.close()
    assert kernel.groups() == ["user.slice", "user.slice/session.scope"]


def test_a_hierarchy_without_memory_is_no_use(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = fake()
    (kernel.top / "cgroup.controllers").write_text("hugetlb")
    assert Hierarchy.find() is None
    assert kernel.groups() == []


def test_a_kill_for_memory_and_a_refused_fork_are_read_from_version_2(tmp_path: Path) -> None:
    events, refused, peak, weight = (tmp_path / name for name in ("memory", "pids", "peak", "cpu"))
    events.write_text("low 0\nhigh 0\nmax 7\noom 1\noom_kill 0\noom_group_kill 0\n")
    refused.write_text("max 0\n")
    peak.write_text("4096\n")
    weight.write_text("100\n")
    opened = [os.open(file, os.O_RDWR) for file in (events, refused, peak, weight)]
    evidence = Evidence(*opened)
    assert evidence.passed() is None
    events.write_text("low 0\nhigh 0\nmax 7\noom 1\noom_kill 3\noom_group_kill 1\n")
    assert evidence.passed() == "memory_limit"
    refused.write_text("max 2\n")
    assert evidence.passed() == "process_limit"
    assert evidence.memory_peak() == 4096
    assert evidence.give_way()
    assert weight.read_text().startswith("25")
    for at in opened:
        os.close(at)

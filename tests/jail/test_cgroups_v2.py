"""Version 2 of cgroups, on a hierarchy that behaves as the kernel's."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from jail.cgroups import cgroups
from jail.cgroups.cgroups import Hierarchy
from jail.inside.limits_passed import Evidence, KilledFromOutside, Passed
from jail.limits import DEFAULTS

from .fake_cgroups import FakeCgroups

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
    assert names == [
        "memory.events", "pids.events", "memory.peak", "cpu.weight", "cpu.stat", "cgroup.procs",
    ]  # fmt: skip
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
    assert [mark.folder.parent for mark in hierarchy.marks] == [kernel.top / "penstock.service"]
    hierarchy.close()
    assert kernel.groups() == ["penstock.service", "penstock.service/main"]


def test_below_the_top_where_no_group_of_ours_passes_control_on(fake: Fake) -> None:
    kernel = fake("/user.slice/session.scope")
    hierarchy = Hierarchy.find()
    assert hierarchy is not None
    assert [mark.folder.parent for mark in hierarchy.marks] == [kernel.top]
    hierarchy.close()
    assert kernel.groups() == ["user.slice", "user.slice/session.scope"]


def test_a_hierarchy_without_memory_is_no_use(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = fake()
    (kernel.top / "cgroup.controllers").write_text("hugetlb")
    assert Hierarchy.find() is None
    assert kernel.groups() == []


def test_a_hierarchy_that_is_hidden_by_another_mount_is_no_use(fake: Fake) -> None:
    kernel = fake()
    (kernel.top / "cgroup.controllers").unlink()
    assert Hierarchy.find() is None


def test_a_group_of_ours_outside_what_is_mounted_is_not_looked_for(fake: Fake) -> None:
    """As a container sees it that shares the hierarchy of its host."""
    kernel = fake()
    cgroups._OWN.write_text("0::/../above\n")
    hierarchy = Hierarchy.find()
    assert hierarchy is not None
    assert [mark.folder.parent for mark in hierarchy.marks] == [kernel.top]
    hierarchy.close()
    assert not (kernel.top.parent / "cgroup.subtree_control").exists()


def test_a_kill_from_outside_is_not_laid_to_an_earlier_shortage(tmp_path: Path) -> None:
    """A session's commands run in one group, one after another."""
    memory, refused = tmp_path / "memory", tmp_path / "pids"

    def counted(shortages: int, kills: int, refusals: int = 0) -> None:
        memory.write_text(f"max 7\noom {shortages}\noom_kill {kills}\n")
        refused.write_text(f"max {refusals}\n")

    counted(0, 0)
    opened = [os.open(file, os.O_RDONLY) for file in (memory, refused)]
    passed = Passed(Evidence(*opened, peak=-1, weight=-1, used=-1))
    counted(1, 0)
    assert passed.since() == ""  # another command ended between a shortage and its kill
    counted(1, 2)
    assert passed.since() == "memory_limit"
    counted(1, 3)
    assert passed.since() == ""
    counted(2, 4, refusals=1)
    assert passed.since() == "memory_limit"
    counted(2, 4, refusals=2)
    assert passed.since() == "process_limit"
    assert passed.since() == ""
    for at in opened:
        os.close(at)


def test_a_kill_for_memory_and_a_refused_fork_are_read_from_version_2(tmp_path: Path) -> None:
    names = ("memory", "pids", "peak", "weight", "used")
    events, refused, peak, weight, used = (tmp_path / name for name in names)
    events.write_text("low 0\nhigh 0\nmax 7\noom 1\noom_kill 0\noom_group_kill 0\n")
    refused.write_text("max 0\n")
    peak.write_text("4096\n")
    weight.write_text("100\n")
    used.write_text("usage_usec 1500000\nuser_usec 1000000\n")
    opened = [os.open(file, os.O_RDWR) for file in (events, refused, peak, weight, used)]
    evidence = Evidence(*opened)
    assert evidence.passed() is None
    events.write_text("low 0\nhigh 0\nmax 7\noom 1\noom_kill 3\noom_group_kill 1\n")
    assert evidence.passed() == "memory_limit"
    events.write_text("low 0\nhigh 0\nmax 7\noom 0\noom_kill 3\noom_group_kill 1\n")
    with pytest.raises(KilledFromOutside, match="machine or its container ran out of memory"):
        evidence.passed()
    refused.write_text("max 2\n")
    assert evidence.passed() == "process_limit"
    assert evidence.memory_peak() == 4096
    assert evidence.seconds() == 1.5
    assert evidence.give_way()
    assert weight.read_text().startswith("25")
    for at in opened:
        os.close(at)

"""A cgroup is used where one can be made, and its absence is said, not hidden."""

import os
import subprocess
from pathlib import Path

import pytest

from worker.sandbox.local import DEFAULTS, Jails, cgroups
from worker.sandbox.local.cgroups import Hierarchy

from .conftest import config_for


@pytest.fixture
def hierarchy() -> Hierarchy:
    found = Hierarchy.find()
    if found is None:
        pytest.skip("no cgroup can be made here")
    return found


def test_groups_come_and_go_with_their_hierarchy(hierarchy: Hierarchy) -> None:
    before = len(os.listdir("/proc/self/fd"))
    group = hierarchy.make(DEFAULTS)
    folders = [*group.folders, *hierarchy._parents]
    assert all(folder.is_dir() for folder in folders)
    hierarchy.discard(group)
    hierarchy.close()
    assert not any(folder.exists() for folder in folders)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_group_that_is_still_in_use_is_removed_later(hierarchy: Hierarchy) -> None:
    group = hierarchy.make(DEFAULTS)
    inner = group.folders[0] / "inner"
    inner.mkdir()
    hierarchy.discard(group)
    assert hierarchy.dying == 1
    inner.rmdir()
    hierarchy.close()
    assert hierarchy.dying == 0


def test_what_a_killed_process_left_is_swept_at_the_next_start(hierarchy: Hierarchy) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    left = hierarchy._parents[0].parent / f"penstock-{dead.pid}-1"
    (left / "7").mkdir(parents=True)
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


async def test_without_one_memory_is_held_by_sampling_and_that_is_said() -> None:
    async with Jails(config_for("user"), use_cgroups=False) as jails:
        assert jails.memory_by == "sampling"

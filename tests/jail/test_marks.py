"""Whoever lives keeps the mark of its groups, and whoever is dead does not."""

import fcntl
import os
import time
from pathlib import Path

import pytest

from jail.cgroups import marks
from jail.cgroups.marks import Mark


def made(parent: Path) -> Mark:
    mark = Mark.make(parent, marks.new_name())
    assert mark is not None
    return mark


def test_a_sweep_that_comes_late_takes_no_mark_that_was_made_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its look and its lock another sweep was faster, and the owner made it anew."""
    new, lives, flock = tmp_path / marks.new_name(), [], fcntl.flock

    def late(at: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        new.rmdir()
        (tmp_path / "another").mkdir()  # else its number is given again
        lives.append(Mark.make(tmp_path, new.name))
        flock(at, how)

    new.mkdir()
    monkeypatch.setattr(fcntl, "flock", late)
    marks.sweep(tmp_path)
    (mark,) = lives
    assert new.exists()
    mark.remove()
    assert not new.exists()


def test_a_sweep_that_has_a_new_mark_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = marks.new_name()
    (tmp_path / name).mkdir()
    sweeping = os.open(tmp_path / name, os.O_RDONLY)
    fcntl.flock(sweeping, fcntl.LOCK_EX)
    monkeypatch.setattr(time, "sleep", lambda _: os.close(sweeping))
    mark = Mark.make(tmp_path, name)
    assert mark is not None
    mark.remove()


def test_a_fork_that_outlives_the_owner_does_not_keep_its_mark(tmp_path: Path) -> None:
    mark = made(tmp_path)
    awaited, ends = os.pipe()
    told, is_there = os.pipe()
    forked = os.fork()
    if not forked:
        os.close(ends)
        os.write(is_there, b"!")
        os.read(awaited, 1)
        mark.remove()  # which is not its to do
        os._exit(mark.folder.exists())
    os.read(told, 1)
    marks.sweep(tmp_path)
    assert mark.folder.exists()
    marks._let_go()  # as the owner's end does
    marks.sweep(tmp_path)
    assert not mark.folder.exists()
    again = Mark.make(tmp_path, mark.folder.name)
    for at in (ends, awaited, told, is_there):
        os.close(at)
    assert os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]) == 1
    assert again is not None
    again.remove()

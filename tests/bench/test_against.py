"""One revision beside another: what both do, and what is said if one is not here."""

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest

import ground
from bench import against
from tests.harness.servers import url_of

WORKS = [what for works in against.SUITES.values() for what in works]


def git(folder: Path, *words: str) -> None:
    who = ["-c", "user.name=nobody", "-c", "user.email=nobody@example.invalid"]
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


def test_a_shallow_clone_is_told_how_to_get_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, shallow = tmp_path / "whole", tmp_path / "shallow"
    whole.mkdir()
    git(whole, "init", "--quiet")
    for message in ("first", "second"):
        git(whole, "commit", "--quiet", "--allow-empty", "-m", message)
    git(tmp_path, "clone", "--quiet", "--depth", "1", f"file://{whole}", str(shallow))
    monkeypatch.setattr(against, "ROOT", shallow)
    with pytest.raises(click.ClickException, match="run `git fetch --unshallow`"):
        against.install("cb7597e")


@pytest.mark.parametrize("what", ["permits", "permits_32", "tokens", "line", "groups", "submits"])
def test_the_work_is_done_as_often_as_asked(what: str, real_redis: ground.Client) -> None:
    command = [sys.executable, str(against.WORK), url_of(real_redis), what, "2", "{}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert all(took > 0 for took in json.loads(done.stdout).values())


def test_every_work_has_a_name() -> None:
    assert list(against.FIGURES) == WORKS

"""Commands that look at a fleet, or change it, never do so in a Redis of their own."""

from pathlib import Path

import pytest

import ground
from ground import EmbeddedServer
from limiter import TokenBucket
from tests.penstock.commands import refusal, run

LOOK_OR_CHANGE = [
    ("limits", "ls"),
    ("limits", "set", "code", "--gate-limit", "64"),
    ("limits", "pause", "code"),
    ("queues", "ls"),
    ("queues", "share", "code", "a=2"),
    ("groups", "ls"),
    ("sandbox", "ls"),
    ("sandbox", "reap"),
    ("top", "--once"),
    ("reap",),
    ("monitor",),
]


@pytest.mark.parametrize("words", LOOK_OR_CHANGE, ids=" ".join)
def test_without_a_redis_it_asks_which_one_is_meant(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = refusal(run(*words))
    assert said.startswith("PENSTOCK_REDIS_URL: not set, and no Redis runs for ")
    assert not (tmp_path / ".penstock").exists()


def test_a_misspelt_variable_is_named_and_nothing_is_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("limits", "set", "code", "--gate-limit", "64", PENSTOCK_REDIS_ULR="redis://h:1/0")
    assert result.returncode == 2
    assert "did you mean PENSTOCK_REDIS_URL?" in result.stderr
    assert not (tmp_path / ".penstock").exists()


def test_it_joins_the_server_that_runs_in_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with EmbeddedServer(tmp_path / ".penstock") as server:
        TokenBucket(ground.connect(server.target), "code", limit=2).sync.status()
        assert run("limits", "set", "code", "--gate-limit", "64").returncode == 0
        assert TokenBucket(ground.connect(server.target), "code", limit=2).sync.status().limit == 64

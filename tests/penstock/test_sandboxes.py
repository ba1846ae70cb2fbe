"""`penstock sandbox ls`, `reap` and `kill`: what an operator sees and ends."""

import json
import os
import signal
import subprocess
import sys
from unittest.mock import patch

import pytest
from click.testing import CliRunner

from ground.process import from_thread
from penstock.cli import command
from tests.harness import killing, leash
from tests.harness.servers import until
from tests.worker.lifecycle.conftest import quick
from tests.worker.lifecycle.leases import leases_end
from tests.worker.lifecycle.owner import opens_and_waits
from worker.lifecycle import SandboxLifecycle


@pytest.fixture
def penstock(shared_server, real_redis, monkeypatch):
    monkeypatch.setenv("PENSTOCK_REDIS_URL", shared_server.url)
    monkeypatch.setenv("PENSTOCK_SANDBOX_LEASE", "2")

    def run(*words):
        with patch.dict(os.environ):  # where a command keeps its options
            return CliRunner().invoke(command, ["sandbox", *words])

    return run


def test_nothing_is_registered(penstock):
    assert "no sandbox is registered" in penstock("ls").stderr
    assert penstock("reap").stdout == "no run has registered a sandbox\n"
    for words, said in (("x", "x: not registered"), ("--all", "no sandbox is registered")):
        killed = penstock("kill", words)
        assert (killed.exit_code, killed.stderr) == (1, f"{said}\n")


def test_the_plural_is_the_same_command(penstock):
    shown = CliRunner().invoke(command, ["sandboxes", "ls"])
    assert "no sandbox is registered" in shown.stderr
    assert "\n  sandboxes " not in CliRunner().invoke(command, ["--help"]).stdout


def test_a_sandbox_is_listed_and_killed_whoever_uses_it(penstock, shared_server, cloud):
    settings = quick(sandbox_lease=600.0)  # so that it is told after its block has ended
    life = SandboxLifecycle(shared_server.url, cloud.provider, run="exp7", settings=settings)
    with life.sync.open() as sandbox:
        shown = penstock("ls").stdout.splitlines()
        assert shown[1].split()[:3] == ["exp7", sandbox.name, "READY"]
        assert all(len(line) <= 200 for line in shown)
        (run,) = json.loads(penstock("ls", "--json").stdout)
        assert (run["run"], run["sandboxes"][0]["state"]) == ("exp7", "READY")
        assert penstock("kill").exit_code == 2
        assert penstock("kill", "penstock-absent").exit_code == 1
        ended = penstock("kill", sandbox.name)
        assert (ended.exit_code, ended.stdout) == (0, f"{sandbox.name}: ended\n")
        assert not sandbox.is_alive()
    assert cloud.live == 0
    life.registry.close()


@pytest.fixture
def left(shared_server, real_redis, cloud):
    """Leave sandboxes of a run whose lease is over, as of an owner who is dead."""
    lives = []

    def leave(run, count=1):
        settings = quick(sandbox_lease=600.0)
        life = SandboxLifecycle(shared_server.url, cloud.provider, run=run, settings=settings)
        lives.append(life)
        made = [from_thread(life.start()) for _ in range(count)]
        for sandbox in made:
            life.keeper.drop(sandbox._box)
            real_redis.zadd(life.registry._keys[1], {sandbox.name: 1})
        return [sandbox.name for sandbox in made]

    yield leave
    for life in lives:
        life.registry.close()


def test_what_the_dead_left_is_reaped_and_noted(penstock, left, cloud, real_redis):
    left("exp7", 2)
    (other,) = left("exp8")
    reaped = penstock("reap", "--run", "exp7")
    assert reaped.stdout == "exp7: 2 ended, 0 strays ended, 0 failed\n"
    assert (reaped.exit_code, list(cloud.stats()["names"].values())) == (0, [other])
    listed = json.loads(penstock("ls", "--json", "--run", "exp7").stdout)
    assert [(run["run"], run["sandboxes"]) for run in listed] == [("exp7", [])]
    assert penstock("kill", other, "--run", "exp7").exit_code == 1
    everywhere = penstock("reap").stdout.splitlines()
    assert everywhere == [
        "exp7: 0 ended, 0 strays ended, 0 failed",
        "exp8: 1 ended, 0 strays ended, 0 failed",
    ]
    assert cloud.live == 0
    noted = [change for _, change in real_redis.xrange("penstock:audit")]
    assert sorted((one[b"what"], one[b"target"], one[b"outcome"]) for one in noted) == [
        (b"reap sandboxes", run, b"done") for run in (b"exp7", b"exp7", b"exp8")
    ]


def test_a_name_that_is_not_registered_is_told_beside_those_that_are_killed(
    penstock, left, real_redis
):
    (name,) = left("exp7")
    killed = penstock("kill", name, "penstock-absent")
    assert (killed.exit_code, killed.stdout) == (1, f"{name}: ended\n")
    assert killed.stderr.endswith("penstock-absent: not registered\n")
    ((_, noted),) = real_redis.xrange("penstock:audit")
    assert (noted[b"what"], noted[b"target"]) == (b"end sandbox", f"exp7: {name}".encode())
    assert noted[b"address"].startswith(b"sandbox on ")


def test_strays_are_ended_without_their_grace_if_that_is_said(penstock, left, cloud):
    left("exp7")
    penstock("kill", "--all")
    (run,) = json.loads(penstock("ls", "--json").stdout)
    tags = {"penstock-fleet": run["fleet"], "penstock-run": "exp7"}
    cloud.ask("create", name="penstock-stray", tags=tags, image="", ttl=600)
    assert penstock("reap").stdout == "exp7: 0 ended, 0 strays ended, 0 failed\n"
    assert cloud.live == 1
    assert penstock("reap", "--strays").stdout == "exp7: 0 ended, 1 strays ended, 0 failed\n"
    assert cloud.live == 0


def test_each_of_many_runs_is_reaped_and_noted(penstock, real_redis):
    real_redis.sadd("penstock:sandboxes", *(f"run{n}" for n in range(120)))
    assert len(penstock("reap").stdout.splitlines()) == 120
    assert real_redis.xlen("penstock:audit") == 120


@pytest.mark.parametrize("how", ["reap", "kill"])
def test_one_that_cannot_be_ended_is_shown_until_it_is(penstock, left, cloud, how, real_redis):
    (name,) = left("exp7")
    words = ["reap"] if how == "reap" else ["kill", name]
    cloud.set(terminate=["fail", "fail"])
    failed = penstock(*words)
    assert (failed.exit_code, cloud.live) == (1, 1)
    assert f"{name}: CloudError: 500: cannot terminate" in failed.stderr
    ((_, noted),) = real_redis.xrange("penstock:audit")
    assert noted[b"outcome"].startswith(b"1 not gone yet, tried again: ")
    (run,) = json.loads(penstock("ls", "--json").stdout)
    (box,) = run["sandboxes"]
    assert (run["failing"], run["counters"]["handed_over"]) == (1, 1)
    assert (box["state"], box["tries"]) == ("TERMINATING", 1)
    assert "cannot terminate" in box["error"]
    assert f"{name}: CloudError: 500: cannot terminate" in penstock("ls").stdout
    assert penstock("kill", name).stdout == f"{name}: ended\n"
    assert cloud.live == 0


def test_one_that_nobody_comes_to_end_says_so(penstock, left):
    (name,) = left("exp7")
    trouble = penstock("ls").stdout.splitlines()[-1]
    assert trouble.startswith(f"{name}: its lease ended ")
    assert trouble.endswith(
        "and no reaper that reaches tests.worker.lifecycle.cloud.provider_of_environment has come"
    )


def test_a_reaper_by_itself_ends_what_the_dead_left_until_it_is_told_to_end(
    shared_server, real_redis, cloud
):
    with killing.Child(opens_and_waits, shared_server.url, cloud.address, 600) as owner:
        owner.wait_for("open")
        owner.kill()
    leases_end(shared_server.url)
    given = {"REDIS_URL": shared_server.url, "SANDBOX_LEASE": "1", "REAP_INTERVAL": "0.1"}
    reaper = leash.start(
        [sys.executable, "-m", "penstock", "reap"], stdin=subprocess.DEVNULL,
        env=os.environ | {f"PENSTOCK_{name}": value for name, value in given.items()},
        stderr=subprocess.PIPE,
    )  # fmt: skip
    until(lambda: cloud.live == 0, "its end", within=100)
    reaper.send_signal(signal.SIGTERM)
    _, said = reaper.communicate(timeout=100)
    assert reaper.returncode == 128 + signal.SIGTERM
    first, *others = said.decode().splitlines()
    assert first.startswith("watching the session sandboxes of every run on redis://")
    assert all(" INFO " in line or " WARNING " in line for line in others), "no traceback"

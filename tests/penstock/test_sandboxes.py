"""`penstock sandboxes`: what an operator sees and ends."""

import json

import pytest
from click.testing import CliRunner

from penstock.sandboxes import command
from tests.harness import killing
from tests.lifecycle.conftest import quick
from tests.lifecycle.test_reaper import opens_and_waits
from worker.lifecycle import SandboxLifecycle


@pytest.fixture
def penstock(shared_server, real_redis, monkeypatch):
    monkeypatch.setenv("PENSTOCK_REDIS_URL", shared_server.url)
    monkeypatch.setenv("PENSTOCK_SANDBOX_LEASE", "2")
    return lambda *words: CliRunner().invoke(command, list(words))


def test_nothing_is_registered(penstock):
    assert "no sandbox is registered" in penstock("ls").stderr


def test_a_sandbox_is_listed_and_killed_whoever_uses_it(penstock, shared_server, cloud):
    life = SandboxLifecycle(shared_server.url, cloud.provider, run="exp7", settings=quick())
    with life.sync.open() as sandbox:
        assert sandbox.name in penstock("ls").stdout.replace("\n", "")[:4000]
        (run,) = json.loads(penstock("ls", "--json").stdout)
        assert (run["run"], run["sandboxes"][0]["state"]) == ("exp7", "READY")
        assert penstock("kill").exit_code == 2
        assert penstock("kill", "penstock-absent").exit_code == 1
        ended = penstock("kill", sandbox.name)
        assert (ended.exit_code, ended.stdout) == (0, f"{sandbox.name}: ended\n")
        assert not sandbox.is_alive()
    assert cloud.live == 0
    life.registry.close()


def test_what_the_dead_left_is_reaped_and_trouble_is_shown(penstock, shared_server, cloud):
    with killing.Child(opens_and_waits, shared_server.url, cloud.address, 600) as owner:
        owner.wait_for("open")
        owner.kill()
    cloud.set(down=True)
    (run,) = json.loads(penstock("ls", "--json").stdout)
    name = run["sandboxes"][0]["name"]
    failed = penstock("kill", name)
    assert failed.exit_code == 1
    assert "left to the reaper" in failed.stdout
    assert "503: down" in json.loads(penstock("ls", "--json").stdout)[0]["sandboxes"][0]["error"]
    cloud.set(down=False)
    assert penstock("kill", "--all").exit_code == 0
    assert penstock("reap").exit_code == 0
    assert cloud.live == 0

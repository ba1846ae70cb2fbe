"""What cannot work is refused at once, with what to set."""

import importlib
import math
import socket
import sys

import pytest

from ground import PenstockError, SettingError
from jail.sessions import SessionRefused
from tests.worker.lifecycle.conftest import quick
from worker.lifecycle import LifecycleSettings, SandboxLifecycle
from worker.lifecycle.local import LocalProvider
from worker.lifecycle.local.provider import LocalError
from worker.lifecycle.provider import Kind, Providers, SandboxSpec, provider_named


def broken_account():
    raise KeyError("ACCOUNT")


@pytest.mark.parametrize(
    "name", ["nowhere", "no.such.module.provider", "worker.lifecycle.absent", ""]
)
def test_an_unknown_provider(name):
    with pytest.raises(SettingError, match="local, modal nor the dotted name"):
        provider_named(name)


def test_modal_without_its_package_says_what_to_install(monkeypatch):
    for loaded in [name for name in sys.modules if name.startswith("worker.lifecycle.modal")]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, "modal", None)
    with pytest.raises(
        SettingError, match=r"'modal' cannot be used here: .*'penstock-rl\[modal\]'"
    ):
        provider_named("modal")
    with pytest.raises(ImportError, match=r"pip install 'penstock-rl\[modal\]'"):
        importlib.import_module("worker.lifecycle.modal.deployment")


def test_a_provider_that_cannot_be_made():
    with pytest.raises(SettingError, match="could not be made: KeyError: 'ACCOUNT'"):
        provider_named("tests.worker.lifecycle.test_bad_input.broken_account")


@pytest.mark.parametrize("name", ["this.s", "os.abort"])
async def test_a_provider_that_only_a_record_names_is_not_imported(name, monkeypatch):
    """A reaper reads records, and whoever can write to Redis can write one."""
    with pytest.raises(SettingError, match=f"PENSTOCK_ALLOW: does not name '{name}'"):
        await Providers().named(name)
    assert "this" not in sys.modules
    monkeypatch.setenv("PENSTOCK_ALLOW", "tests.worker.lifecycle.test_bad_input.broken_account")
    with pytest.raises(SettingError, match="could not be made: KeyError"):
        await Providers().named("tests.worker.lifecycle.test_bad_input.broken_account")


@pytest.mark.parametrize("name", ["{folder}", "../mine", "mine/../../mine", "..", ".", ""])
async def test_a_record_that_names_another_folder_ends_and_removes_nothing(tmp_path, name):
    kept = tmp_path / "mine" / "kept"
    kept.parent.mkdir()
    kept.touch()
    provider = LocalProvider(tmp_path / "boxes")
    id = f"{name.format(folder=kept.parent)}@{socket.gethostname()}"
    with pytest.raises(LocalError, match="is not the name of a sandbox here"):
        await provider.terminate(id)
    with pytest.raises(LocalError, match="is not the name of a sandbox here"):
        await provider.find(name.format(folder=kept.parent))
    assert kept.exists()


@pytest.mark.parametrize("ttl", [math.inf, math.nan, -1, 10**400])
def test_a_life_without_end(ttl):
    with pytest.raises(SettingError, match="ttl: must be 0 or more seconds"):
        SandboxSpec(ttl=ttl)


@pytest.mark.parametrize("network", ["pypi.org", 443])
async def test_a_network_that_is_no_list_is_refused_for_good(tmp_path, network):
    provider, spec = LocalProvider(tmp_path), SandboxSpec(options={"network": network})
    with pytest.raises(SessionRefused, match="options: ") as refused:
        await provider.create(spec, name="mine", tags={}, ttl=60)
    assert provider.classify(refused.value).kind is Kind.FATAL


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one(redis, cloud, limit):
    with pytest.raises(PenstockError, match="limit"):
        SandboxLifecycle(redis, cloud.provider, settings=quick(), max_starting=limit)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("PENSTOCK_MAX_STARTING_RUN", "0"),
        ("PENSTOCK_START_ATTEMPTS", "0"),
        ("PENSTOCK_INIT_WALL_BUDGET", "0"),
        ("MODAL_INIT_WALL_BUDGET", "-5"),
        ("PENSTOCK_STARTUP_TIMEOUT", "inf"),
        ("PENSTOCK_SANDBOX_LEASE", "nan"),
    ],
)
def test_a_setting_out_of_range_is_named(monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingError, match=variable):
        LifecycleSettings.load()


def test_without_a_redis_the_message_says_which_variable(monkeypatch, cloud):
    monkeypatch.delenv("PENSTOCK_REDIS_URL", raising=False)
    with pytest.raises(SettingError, match="PENSTOCK_REDIS_URL"):
        SandboxLifecycle.from_settings(cloud.provider)

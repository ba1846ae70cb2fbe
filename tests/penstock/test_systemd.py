"""deploy/systemd: systemd can read the units, and `penstock` their commands and variables."""

import re
import shlex
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import click
import pytest

from ground.settings import variables
from penstock.commands.sandbox import _GRACE
from penstock.variables import settings_models
from tests.architecture.source import ROOT
from tests.penstock.commands import parsed

Unit = dict[str, list[str]]

FILES = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
EVERY_UNIT = pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
# What covers parts of /proc, or forbids namespaces: the level ns could not start.
NOT_FOR_NS = (
    "ProtectKernelTunables", "ProtectKernelLogs", "ProtectControlGroups", "ProtectProc",
    "ProcSubset", "RestrictNamespaces", "SystemCallFilter",
)  # fmt: skip


def read(file: Path) -> Unit:
    found: Unit = defaultdict(list)
    for line in file.read_text().splitlines():
        if line and not line.startswith(("#", "[")):
            key, _, value = line.partition("=")
            found[key].append(value)
    return found


def arguments(unit: Unit) -> list[str]:
    (start,) = unit["ExecStart"]
    program, *words = shlex.split(start)
    assert program == "/opt/penstock/bin/penstock"
    return words


def test_there_is_a_unit_for_each_service() -> None:
    assert [file.name for file in FILES] == [
        "penstock-buffer.service", "penstock-gateway.service", "penstock-monitor.service",
        "penstock-sandbox.service", "penstock-worker@.service",
    ]  # fmt: skip


@EVERY_UNIT
def test_penstock_understands_the_command(file: Path) -> None:
    words = arguments(read(file))
    assert parsed(words).command_path.split()[1:] == words[: 1 if "serve" not in words else 2]
    with pytest.raises(click.NoSuchOption):
        parsed([*words, "--no-such-option"])


@EVERY_UNIT
def test_every_variable_is_a_setting_and_every_secret_a_credential(file: Path) -> None:
    unit = read(file)
    known = {name for model in settings_models() for name in variables(model)}
    loaded = dict(one.split(":") for one in unit["LoadCredential"])
    read_by_us = set()
    for one in unit["Environment"]:
        name, _, value = one.partition("=")
        assert name in known, name
        if re.search("TOKEN|REDIS_URL", name):
            assert name.endswith("_FILE"), f"{name} is a secret in the unit"
            read_by_us.add(value.removeprefix("%d/"))
    assert read_by_us == loaded.keys()
    assert loaded == {key: f"/etc/penstock/secrets/{key}" for key in loaded}
    if "sandbox" in file.name:
        assert set(loaded) == {"sandbox_token", "metrics_token"}
        guide = " ".join((ROOT / "docs/guide/systemd.md").read_text().split())
        assert "install only `sandbox_token` and `metrics_token` there" in guide


@EVERY_UNIT
def test_a_stop_ends_it_as_it_should(file: Path) -> None:
    unit = read(file)
    assert unit["KillMode"] == ["mixed"], "its own processes are ended by it, not by systemd"
    assert unit["SuccessExitStatus"] == ["143"]
    (least,) = unit["TimeoutStopSec"]
    assert int(least) >= (300 if "worker" in file.name else _GRACE + 10)


@EVERY_UNIT
def test_it_is_not_roots_and_gains_nothing(file: Path) -> None:
    unit = read(file)
    assert (unit["DynamicUser"], unit["NoNewPrivileges"]) == (["yes"], ["yes"])
    assert unit["CapabilityBoundingSet"] == [""]
    forbidden = [key for key in NOT_FOR_NS if key in unit]
    if "sandbox" in file.name:
        assert forbidden == []
        assert (unit["Delegate"], unit["DelegateSubgroup"]) == (["yes"], ["main"])
    else:
        assert {"RestrictNamespaces", "SystemCallFilter"} <= set(forbidden)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze")
@EVERY_UNIT
def test_systemd_reads_it_without_a_complaint(file: Path, tmp_path: Path) -> None:
    assert complaints(tmp_path, file, file.read_text()) == []
    wrong = file.read_text().replace("TimeoutStopSec=", "TimeoutStop=")
    assert "TimeoutStop" in complaints(tmp_path, file, wrong)[0]


def complaints(folder: Path, file: Path, text: str) -> list[str]:
    """What it says of this unit, whose program is at hand under another path."""
    program = folder / "penstock"
    if not program.exists():
        program.symlink_to(sys.executable)
    unit = folder / file.name.replace("@", "@1")
    unit.write_text(text.replace("/opt/penstock/bin/penstock", str(program)))
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, check=False
    )
    # systemd before 254 does not know it, and says that it ignores it.
    said = checked.stderr.splitlines()
    return [line for line in said if unit.name in line and "'DelegateSubgroup'" not in line]

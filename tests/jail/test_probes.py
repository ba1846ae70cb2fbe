"""Every probe fails in a jail; each provable one succeeds outside, so that the refusal counts."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from jail.isolation import probes, selftest
from jail.jails import Jails

in_one_loop = pytest.mark.asyncio(loop_scope="module")

HERE = Path(__file__)


@pytest.fixture(scope="module")
def outside() -> dict[str, str | None]:
    """What the probes reach unconfined, in namespaces of their own."""
    with tempfile.TemporaryDirectory() as scratch:
        ground = subprocess.run(
            [sys.executable, HERE.with_name("proving_ground.py"), scratch],
            env={**os.environ, "PYTHONPATH": str(HERE.parents[2])},
            capture_output=True,
            check=True,
            timeout=200,
        )
    return probes.read(ground.stdout)


@pytest.mark.parametrize("name", [probe.name for probe in probes.PROBES if probe.provable])
def test_an_unconfined_process_reaches_its_goal(outside: dict[str, str | None], name: str) -> None:
    assert outside[name] is None


@in_one_loop
async def test_a_program_reaches_none_of_them(sandbox: Jails) -> None:
    with selftest.goals() as goal:
        attack, works = [await sandbox.run(program) for program in selftest.programs(goal, "ns")]
    assert attack.return_code == 0, attack
    assert [
        found.probe for found in selftest.findings(attack.stdout, "ns") if not found.contained
    ] == []
    assert works.return_code == 0, works


def test_each_probe_that_is_not_proven_has_its_reason_in_the_documentation() -> None:
    page = (HERE.parents[2] / "docs/inside/sandbox-security.md").read_text()
    unproven = {probe.name for probe in probes.PROBES if not probe.provable}
    table = page.partition("| Probe | Why")[2].partition("\n\n")[0]
    assert {line.split("`")[1] for line in table.splitlines() if "`" in line} == unproven


def test_a_probe_that_says_nothing_counts_as_reached() -> None:
    assert not any(found.contained for found in selftest.findings(b"", "ns"))

"""A machine that cannot isolate is refused, with the reason; nothing weaker is taken silently."""

import subprocess
import sys
from pathlib import Path

import pytest

from worker.sandbox.local import Jails, SandboxUnavailable, ServerConfig, probes, selftest

in_one_loop = pytest.mark.asyncio(loop_scope="module")

HERE = Path(__file__)


def start_where(restriction: str) -> str:
    ran = subprocess.run(
        [sys.executable, HERE.with_name("restricted.py"), restriction],
        env={"PYTHONPATH": str(HERE.parents[2])},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.parametrize(
    ("restriction", "reason", "remedy"),
    [
        ("no-namespaces", "unshare: No space left on device", "user.max_user_namespaces"),
        ("docker", "unshare: Operation not permitted", "seccomp=unconfined"),
        ("no-mount", "Operation not permitted", "seccomp=unconfined"),
    ],
)
def test_it_does_not_start_and_says_why(restriction: str, reason: str, remedy: str) -> None:
    said = start_where(restriction)
    assert "sandbox level 'ns' is unavailable" in said
    assert reason in said
    assert remedy in said


@in_one_loop
async def test_a_probe_that_gets_through_keeps_it_from_starting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leak = probes.Probe("read its own folder", "os.listdir('/home/sandbox')")
    monkeypatch.setattr(probes, "PROBES", [*probes.PROBES, leak])
    with pytest.raises(SandboxUnavailable, match="could read its own folder"):
        await Jails().start()


@in_one_loop
async def test_an_interpreter_that_is_not_there_is_named() -> None:
    with pytest.raises(SandboxUnavailable, match="/nowhere/python"):
        await Jails(ServerConfig(python="/nowhere/python")).start()


@in_one_loop
async def test_the_self_test_tells_what_it_tried(sandbox: Jails) -> None:
    assert len(sandbox.findings) == len(probes.PROBES)
    assert all(isinstance(found, selftest.Finding) for found in sandbox.findings)

"""`LocalSandbox` stands behind the worker's protocol."""

import asyncio
import base64
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import worker
from ground import SettingError
from jail import LocalSandbox
from jail.launch import ServerConfig
from jail.limits import CAPS
from jail.models import CodeRequest
from jail.settings import SandboxSettings
from tests.harness.remains import until_processes


@pytest.fixture
async def local() -> AsyncIterator[LocalSandbox]:
    sandbox = LocalSandbox()
    yield sandbox
    await sandbox.close()


async def test_it_is_a_sandbox_of_the_worker(local: LocalSandbox) -> None:
    sandbox: worker.Sandbox = local
    assert sandbox.name == "local"
    assert {"python", "bash"} <= sandbox.languages


async def test_a_program_that_succeeds(local: LocalSandbox) -> None:
    request = CodeRequest(
        code="import sys; print(sys.stdin.read()); print(open('d/f').read())",
        stdin="in",
        files={"d/f": base64.b64encode(b"file").decode()},
        fetch_files=["d/f"],
        correlation_id="c1",
    )
    result = await local.run(request)
    assert (result.ok, result.status, result.stdout) == (True, "Success", "in\nfile\n")
    assert result.files == {"d/f": base64.b64encode(b"file").decode()}
    assert (result.isolation, result.correlation_id) == ("ns", "c1")
    assert result.running_seconds > 0


@pytest.mark.parametrize(
    ("code", "kind", "reason", "seconds"),
    [
        ("1 / 0", "user", "exit", 60),
        ("import os; os.kill(os.getpid(), 11)", "user", "signal", 60),
        ("while True: pass", "limit", "run_timeout", 1),
        ("x = bytearray(1500 << 20)", "limit", "memory_limit", 60),
        ("while True: print('x' * 10_000)", "limit", "output_limit", 60),
        ("import os\nwhile True: os.fork()", "limit", "process_limit", 60),
    ],
)
async def test_whose_doing_the_end_was(
    local: LocalSandbox, code: str, kind: str, reason: str, seconds: float
) -> None:
    result = await local.run(CodeRequest(code=code, run_timeout=seconds, memory_limit_mb=1000))
    assert (result.error_kind, result.error_reason, result.status) == (kind, reason, "Failed")


async def test_a_program_whose_fork_server_dies_says_nothing_about_itself(
    local: LocalSandbox,
) -> None:
    await local.run(CodeRequest(code="print(1)"))
    server = await local.jails._live_server()
    name = f"sleeper-{secrets.token_hex(8)}"
    sleeps = CodeRequest(code=f"exec -a {name} sleep 1000", language="bash", run_timeout=600)
    running = asyncio.ensure_future(local.run(sleeps))
    await until_processes(name, count=1)
    os.kill(server.ready["pid"], signal.SIGKILL)
    with pytest.raises(worker.SandboxBroken) as broken:
        await running
    assert (broken.value.reason, broken.value.retryable) == ("jail_lost", True)
    assert (await local.run(CodeRequest(code="print(2)"))).stdout == "2\n"


async def test_what_it_cannot_do_is_a_failure_of_the_sandbox_not_worth_repeating(
    local: LocalSandbox,
) -> None:
    for request in (
        CodeRequest(code="x", language="swift"),
        CodeRequest(code="x", memory_limit_mb=CAPS.memory >> 20 << 1),
        CodeRequest(code="x", files={"a/" + "b" * 1000: ""}),
    ):
        with pytest.raises(worker.SandboxUnfit):
            await local.run(request)


async def test_a_machine_without_isolation_is_unfit() -> None:
    with pytest.raises(worker.SandboxUnfit, match="unavailable"):
        await LocalSandbox(ServerConfig(python="/nowhere")).run(CodeRequest(code="x"))


async def test_preloaded_modules_are_there_at_once() -> None:
    sandbox = LocalSandbox(ServerConfig(preload=("decimal",)))
    try:
        result = await sandbox.run(CodeRequest(code="import sys; print('decimal' in sys.modules)"))
    finally:
        await sandbox.close()
    assert result.stdout == "True\n"


async def test_what_a_preloaded_module_prints_is_no_programs_output() -> None:
    sandbox = LocalSandbox(ServerConfig(preload=("this",)))
    try:
        assert (await sandbox.run(CodeRequest(code="print(1)"))).stdout == "1\n"
    finally:
        await sandbox.close()


async def test_an_interpreter_that_was_found_by_another_folder_runs_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `../.venv/bin/python` names it, in a folder that no jail has."""
    typed = f"{tmp_path}/{os.path.relpath(sys.executable, tmp_path)}"
    monkeypatch.setattr(sys, "executable", typed)
    sandbox = LocalSandbox(ServerConfig(python=typed))
    try:
        assert (await sandbox.run(CodeRequest(code="print(1)"))).stdout == "1\n"
    finally:
        await sandbox.close()


async def test_an_interpreter_may_be_named_as_for_a_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    folder, name = os.path.split(sys.executable)
    monkeypatch.setenv("PATH", folder)
    sandbox = LocalSandbox(ServerConfig(python=name))
    try:
        assert (await sandbox.run(CodeRequest(code="print(1)"))).stdout == "1\n"
    finally:
        await sandbox.close()


@pytest.mark.parametrize(
    ("name", "most"),
    [("memory_mb", 8192), ("processes", 1024), ("disk_mb", 2048), ("output_mb", 64)],
)
def test_a_setting_gives_programs_no_more_than_the_sandbox_ever_does(name: str, most: int) -> None:
    given = SandboxSettings.load(**{f"sandbox_{name}": most})
    assert given.limits().within(CAPS)
    with pytest.raises(SettingError, match=f"PENSTOCK_SANDBOX_{name.upper()}: must be less"):
        SandboxSettings.load(**{f"sandbox_{name}": most + 1})


@pytest.mark.parametrize("name", ["no_such_module", ".relative"])
async def test_a_module_to_preload_that_cannot_be_imported_is_named(name: str) -> None:
    sandbox = LocalSandbox(ServerConfig(preload=(name,)))
    with pytest.raises(worker.SandboxUnfit, match=rf"PENSTOCK_SANDBOX_PRELOAD.*{name}"):
        await sandbox.run(CodeRequest(code="x"))

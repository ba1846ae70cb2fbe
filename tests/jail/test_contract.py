"""Every sandbox that we have keeps the contract that users run on theirs."""

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

import ground
from jail import LocalSandbox
from jail.launch import ServerConfig
from jail.sessions.shared import SharedSandbox
from jail.settings import SandboxSettings
from tests.harness.remains import processes_in
from tests.harness.servers import free_port
from tests.jail.fusion.plain_fusion import PlainFusion
from tests.worker.lifecycle.conftest import quick
from worker import Sandbox, SandboxFusion
from worker.contract import Check, dead_sandbox_contract, sandbox_contract
from worker.lifecycle import Provider, SandboxLifecycle, SandboxRef, SandboxSpec
from worker.lifecycle.code import SessionSandbox
from worker.lifecycle.local import LocalProvider

Make = Callable[[], Sandbox]


@pytest.fixture(scope="module")
def plain_fusion() -> Iterator[str]:
    with PlainFusion() as fusion:
        yield fusion.url


@pytest.mark.parametrize("check", sandbox_contract(), ids=str)
def test_the_embedded_sandbox(check: Check[Sandbox]) -> None:
    check.run(LocalSandbox)


@pytest.fixture(scope="module")
def machine() -> Iterator[None]:
    """A machine whose hub is these tests' own."""
    temporary = tempfile.mkdtemp(prefix="ps-")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", temporary)
        yield
    for hub in processes_in(Path(temporary) / f"penstock-sandboxes-{os.getuid()}"):
        os.kill(hub, signal.SIGKILL)
    shutil.rmtree(temporary)


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("check", sandbox_contract(), ids=str)
def test_the_embedded_sandbox_of_a_machine(check: Check[Sandbox]) -> None:
    check.run(SharedSandbox)


@pytest.mark.parametrize("check", sandbox_contract(), ids=str)
def test_our_server_behind_the_client_of_sandbox_fusion(check: Check[Sandbox], url: str) -> None:
    check.run(lambda: SandboxFusion(url))


@pytest.mark.parametrize("check", sandbox_contract(), ids=str)
def test_a_sandbox_fusion_that_isolates_nothing(check: Check[Sandbox], plain_fusion: str) -> None:
    check.run(lambda: SandboxFusion(plain_fusion))


IN_SESSIONS = {
    "memory_has_a_limit": "memory_mb of its sandbox is the limit, for all programs of a session",
}


# Each check starts sandboxes of its own, half a second of a processor each.
QUICK = {
    "a_program_that_succeeds_is_a_success", "a_program_out_of_time_hits_a_limit",
    "memory_has_a_limit", "files_go_in_and_come_back", "a_session_keeps_its_state_to_itself",
}  # fmt: skip


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "check",
    [
        pytest.param(check, marks=[] if check.name in QUICK else [pytest.mark.soak])
        for check in sandbox_contract(IN_SESSIONS)
    ],
    ids=str,
)
def test_programs_in_session_sandboxes(
    check: Check[Sandbox], real_redis: ground.Client, tmp_path: Path
) -> None:
    try:
        check.run(lambda: in_sessions(real_redis, LocalProvider(tmp_path)))
    finally:
        asyncio.run(end_all(LocalProvider(tmp_path)))


async def end_all(provider: Provider) -> None:
    """Sessions outlive their worker: another one may go on with them."""
    for ref in [ref async for ref in provider.list({})]:
        await provider.terminate(ref.id)
    await provider.close()


def in_sessions(redis: ground.Client, provider: Provider) -> SessionSandbox:
    settings = quick(startup_timeout=60.0, session_idle=60.0)
    return SessionSandbox(SandboxLifecycle(redis, provider, run="test", settings=settings))


class NothingStarts(LocalProvider):
    async def create(
        self, spec: SandboxSpec, *, name: str, tags: Mapping[str, str], ttl: float
    ) -> SandboxRef:
        raise OSError("the provider is down")


@pytest.mark.parametrize("check", dead_sandbox_contract(), ids=str)
def test_session_sandboxes_of_a_provider_that_is_down(
    check: Check[Sandbox], redis: ground.Client, tmp_path: Path
) -> None:
    check.run(lambda: in_sessions(redis, NothingStarts(tmp_path)))


DEAD: dict[str, Make] = {
    "local": lambda: LocalSandbox(ServerConfig(python="/nowhere")),
    "shared": lambda: SharedSandbox(SandboxSettings(sandbox_python="/bin/false")),
    "fusion": lambda: SandboxFusion(f"http://127.0.0.1:{free_port()}"),
}


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("make", DEAD.values(), ids=DEAD)
@pytest.mark.parametrize("check", dead_sandbox_contract(), ids=str)
def test_one_whose_back_end_is_dead(check: Check[Sandbox], make: Make) -> None:
    check.run(make)

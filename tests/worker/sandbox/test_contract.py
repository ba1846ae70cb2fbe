"""Every sandbox that we have keeps the contract that users run on theirs."""

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness.remains import processes_in
from tests.harness.servers import free_port
from tests.worker.sandbox.plain_fusion import PlainFusion
from worker import Sandbox, SandboxFusion
from worker.contract import Check, dead_sandbox_contract, sandbox_contract
from worker.sandbox.local import LocalSandbox, ServerConfig
from worker.sandbox.shared import SharedSandbox

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
    """A machine whose shared sandbox is these tests' own; a socket's path must be short."""
    temporary = tempfile.mkdtemp(prefix="ps-")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", temporary)
        yield
    for keeper in processes_in(Path(temporary) / f"penstock-{os.geteuid()}"):
        os.kill(keeper, signal.SIGKILL)
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


DEAD: dict[str, Make] = {
    "local": lambda: LocalSandbox(ServerConfig(python="/nowhere")),
    "fusion": lambda: SandboxFusion(f"http://127.0.0.1:{free_port()}"),
}


@pytest.mark.parametrize("make", DEAD.values(), ids=DEAD)
@pytest.mark.parametrize("check", dead_sandbox_contract(), ids=str)
def test_one_whose_back_end_is_dead(check: Check[Sandbox], make: Make) -> None:
    check.run(make)

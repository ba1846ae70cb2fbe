"""A cloud, and a lifecycle over it with short times."""

import asyncio
import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ground
from jail.inside import landlock
from limiter import StartingGate
from tests.jail.conftest import ORDINARY_USER, reachable_python
from tests.worker.lifecycle.cloud import CloudThread
from worker.lifecycle import LifecycleSettings, SandboxLifecycle
from worker.lifecycle.reaper.reaper import Reaper

# Short is what ends or repeats something. What must not end on a machine that stands still for
# some seconds is long: a start, and the lease of an owner who lives (see `leases.py`).
QUICK: dict[str, Any] = {
    "init_wall_budget": 90.0,
    "startup_timeout": 40.0,
    "attempt_floor": 1.0,
    "start_backoff": 0.0,
    "sandbox_lease": 60.0,
    "sandbox_grace": 0.5,
    "teardown_timeout": 5.0,
    "reap_interval": 0.1,
}


def quick(**more: Any) -> LifecycleSettings:
    return LifecycleSettings.load(**QUICK | more)


def soon(**more: Any) -> LifecycleSettings:
    """Of a reaper that acts soon after its election."""
    return quick(**{"sandbox_lease": 2.0} | more)


@pytest.fixture(autouse=True)
def a_hub_ends_soon_after_its_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_SESSION_HUB_IDLE", "2")


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CloudThread]:
    with CloudThread(tmp_path) as cloud:
        monkeypatch.setenv("TEST_CLOUD", cloud.address)
        monkeypatch.setenv("PENSTOCK_ALLOW", cloud.provider.name)  # by which reapers make it
        yield cloud


@pytest.fixture
def lifecycle(
    redis: ground.Client, cloud: CloudThread
) -> Iterator[Callable[..., SandboxLifecycle]]:
    made: list[SandboxLifecycle] = []

    def make(limit: int = 4, **more: Any) -> SandboxLifecycle:
        life = SandboxLifecycle(
            redis, cloud.provider, run="test", settings=quick(**more), max_starting=limit
        )
        made.append(life)
        return life

    yield make
    for life in made:
        life.registry.close()


@pytest.fixture
def reaper(redis: ground.Client, cloud: CloudThread) -> Callable[..., Reaper]:
    def make(**more: Any) -> Reaper:
        return Reaper(redis, settings=soon(**more))

    return make


def gate_of(life: SandboxLifecycle) -> StartingGate:
    return life.keeper.gates[-1]


async def waiting_at(gate: StartingGate, count: int) -> None:
    """Until so many starts stand in line for a permit."""
    while (await gate.status()).waiting < count:  # noqa: ASYNC110 - it tells nobody
        await asyncio.sleep(0.01)


def at_landlock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Local sandboxes at the level `landlock`, by an interpreter that their user can reach."""
    if landlock.abi() < landlock.LEAST_ABI:
        pytest.skip("this kernel has no Landlock, or one that is too old")
    python = reachable_python(ORDINARY_USER if os.getuid() == 0 else None)
    if python is None:
        pytest.skip("an ordinary user can reach neither a Python 3.11 nor this source folder")
    monkeypatch.setenv("PENSTOCK_SANDBOX_LEVEL", "landlock")
    monkeypatch.setenv("PENSTOCK_SANDBOX_PYTHON", python)


async def until(holds: Callable[[], object]) -> None:
    """Until something is so that tells nobody when it comes to be."""
    async with asyncio.timeout(100):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


# Modal's client closes its connections at the end of the process, if at all.
LEAVES_OPEN = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


@pytest.fixture
def modal_cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Modal's stand-in; skips where the extra is not installed."""
    pytest.importorskip("modal", reason="penstock-rl[modal] is not installed")
    from tests.worker.lifecycle.modal_stand_in import StandIn

    with StandIn() as modal:
        monkeypatch.setenv("MODAL_SERVER_URL", modal.url)
        monkeypatch.setenv("MODAL_TOKEN_ID", "ak-test")
        monkeypatch.setenv("MODAL_TOKEN_SECRET", "as-test")
        monkeypatch.setenv("MODAL_MAX_THROTTLE_WAIT", "1")
        yield modal.cloud
    gc.collect()  # the connections, here, where what is left unclosed is ignored


@pytest.fixture
def modal_provider(modal_cloud: Any) -> Iterator[Any]:
    from worker.lifecycle.modal.provider import ModalProvider

    forget_modals_client()
    yield ModalProvider()
    forget_modals_client()


def forget_modals_client() -> None:
    """Modal's client keeps one connection a process: that to an earlier test's stand-in."""
    from modal.client import _Client

    reset = getattr(_Client, "_set_env_client", None) or _Client.set_env_client  # before 1.6.4
    reset(None)

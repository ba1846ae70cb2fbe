"""uni-agent's class over our lifecycle: what its callers do, and what they find."""

import asyncio
import contextlib
from types import SimpleNamespace

import pytest

from tests.worker.lifecycle.conftest import LEAVES_OPEN, gate_of, quick
from worker.lifecycle import SandboxLifecycle, StartFailed

pytest.importorskip("modal", reason="penstock-rl[modal] is not installed")
pytestmark = LEAVES_OPEN


class ScriptedRuntime:
    def __init__(self, **wanted):
        self.wanted, self.sessions, self.closed = wanted, [], False
        self.silent_for = 1

    async def is_alive(self, *, timeout=None):  # noqa: ASYNC109
        self.silent_for -= 1
        if self.silent_for >= 0:
            raise ConnectionError("nobody listens yet")
        return True

    async def create_session(self, request):
        self.sessions.append(request)

    async def close(self):
        self.closed = True
        raise ConnectionError("the server inside went first")


@pytest.fixture
def deployments(real_redis, modal_provider):
    from worker.lifecycle.modal.deployment import ModalDeployment, SweRexModal

    class Provider(SweRexModal):
        def connect(self, **wanted):
            return ScriptedRuntime(**wanted)

        def session(self):
            return "session"

    life = SandboxLifecycle(real_redis, Provider(), run="test", settings=quick(startup_timeout=30))
    yield lambda **options: ModalDeployment("exp7", lifecycle=life, **options), life
    life.registry.close()


async def test_existing_callers_run_unchanged(deployments, modal_cloud):
    make, life = deployments
    deployment = make(image="python:3.12", startup_timeout=180.0)
    with pytest.raises(RuntimeError, match="not started"):
        _ = deployment.runtime
    await deployment.start()
    await deployment.start()  # a warning, and nothing else
    assert deployment.runtime.sessions == ["session"]
    assert await deployment.is_alive()
    (box,) = modal_cloud.living()
    runtime = deployment.runtime
    await deployment.stop()
    await deployment.stop()
    assert runtime.closed
    assert modal_cloud.living() == []
    assert (await gate_of(life).status()).in_flight == 0
    assert not await deployment.is_alive()
    assert box.name.startswith("penstock-")


async def test_a_stop_that_is_cancelled_while_the_runtime_closes_ends_the_sandbox(
    deployments, modal_cloud, monkeypatch
):
    deployment, closing = deployments[0](), asyncio.Event()
    await deployment.start()

    async def hangs():
        closing.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(deployment.runtime, "close", hangs)
    stop = asyncio.create_task(deployment.stop())
    await closing.wait()
    stop.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stop
    assert modal_cloud.living() == []


async def test_a_runtime_that_refuses_to_be_closed_does_not_keep_the_sandbox(
    deployments, modal_cloud, monkeypatch
):
    deployment = deployments[0]()
    await deployment.start()

    def refuses():
        raise RuntimeError("closed already")

    monkeypatch.setattr(deployment.runtime, "close", refuses)
    await deployment.stop()
    assert modal_cloud.living() == []


class AgentEnv:
    """What stands between uni-agent's loop and a deployment, as far as they meet."""

    def __init__(self, deployment):
        self.deployment = deployment

    async def start(self, max_retries: int = 5):
        await self.deployment.start(max_retries=max_retries)

    async def close(self):
        with contextlib.suppress(Exception):
            await self.deployment.stop()


async def agent_loop(deployment):
    """uni-agent's: a failure becomes a masked sample; the environment is closed either way."""
    from worker.hosts.uni_agent_masked import masked_sample

    env = AgentEnv(deployment)
    try:
        await env.start()
        return await deployment.runtime.is_alive(timeout=5)
    except Exception:  # noqa: BLE001
        return masked_sample("agent_loop_failed")
    finally:
        await env.close()


async def test_five_retries_asked_for_by_upstreams_environment_are_two_attempts(
    deployments, modal_cloud
):
    """Hole A: its number went past the limit, and five sandboxes were made."""
    from grpclib import GRPCError, Status

    make, _ = deployments
    modal_cloud.refuse_creates = [GRPCError(Status.FAILED_PRECONDITION, "no")] * 9
    sample = await agent_loop(make())
    assert (sample.reward_score, sample.extra_fields["traj_masked"]) == (0, 1)
    assert modal_cloud.creates == 2
    with pytest.raises(StartFailed, match="after 1 attempt in"):
        await make().start(max_retries=1)
    assert modal_cloud.creates == 3
    modal_cloud.refuse_creates = []
    assert await agent_loop(make()) is True
    assert modal_cloud.living() == []


def test_it_is_made_from_upstreams_config():
    from worker import ModalDeployment

    config = SimpleNamespace(type="modal", image="img", startup_timeout=180.0, proxy=None)
    deployment = ModalDeployment.from_config(config, run_id="r")
    assert (deployment.run_id, deployment._startup_timeout) == ("r", 180.0)


def test_a_failed_start_is_masked_as_upstream_masks_it():
    from worker.hosts.uni_agent_masked import masked_sample

    sample = masked_sample("agent_loop_failed", max_response=100)
    assert sample.reward_score == 0
    assert sample.response_mask == [0] * 100
    assert len(sample.response_ids) == 100
    assert sample.extra_fields == {"traj_masked": 1, "traj_exit_reason": "agent_loop_failed"}
    assert len(masked_sample("x", max_response=9000).response_mask) == 512

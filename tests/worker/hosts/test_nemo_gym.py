"""NeMo Gym: a provider by its entry point, and a masked verify, by its package or our stand-in."""

from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel

from tests.harness.servers import free_port
from tests.worker.hosts.boxes import Boxes
from tests.worker.hosts.checkouts import checkout, function_of
from tests.worker.hosts.stubbed import host

host("nemo-gym")

from nemo_gym.sandbox import AsyncSandbox  # noqa: E402
from nemo_gym.sandbox.providers.base import (  # noqa: E402
    SandboxCreateError,
    SandboxResources,
    SandboxSpec,
)

from jail.sessions import LocalSessions  # noqa: E402
from worker.hosts.grading import Grade, Grader  # noqa: E402
from worker.hosts.nemo_gym import Maskable, verify_response  # noqa: E402
from worker.lifecycle import SandboxLost  # noqa: E402

CASES = {"inputs": ["3", "4"], "outputs": ["9", "16"]}


class Body(BaseModel):
    response: str = ""


class Answer(Body, Maskable):
    """As a server's own, which has NeMo Gym's `BaseVerifyResponse` in the place of `Body`."""

    reward: float


async def test_a_sandbox_by_the_entry_point_runs_commands_and_ends(
    boxes: Boxes, tmp_path: Path
) -> None:
    (tmp_path / "in").write_bytes(b"6\n")
    spec = SandboxSpec(env={"A": "7"}, resources=SandboxResources(memory_mib=256))
    async with AsyncSandbox({"penstock": {}}) as sandbox:
        await sandbox.start(spec)
        await sandbox.upload(tmp_path / "in", "folder/in")
        ran = await sandbox.exec("echo $(($(cat in) * $A)) | tee out; exit 3", cwd="folder")
        assert (ran.stdout, ran.return_code, ran.error_type) == ("42\n", 3, None)
        await sandbox.download("folder/out", tmp_path / "back" / "out")
        assert (tmp_path / "back" / "out").read_bytes() == b"42\n"
        late = await sandbox.exec("sleep 60", timeout_s=1)
        assert (late.return_code, late.error_type) == (124, "timeout")
        assert (await sandbox.exec("kill -9 $$")).return_code == 137
        assert (await sandbox.status()).value == "running"
    assert await boxes.names() == []


async def test_a_command_for_another_user_is_refused_and_says_what_to_set(boxes: Boxes) -> None:
    """NeMo Gym's own agent asks for root, unless its config names no user."""
    async with AsyncSandbox({"penstock": {}}) as sandbox:
        await sandbox.start(SandboxSpec())
        with pytest.raises(ValueError, match="`user: null`"):
            await sandbox.exec("true", user="root")


async def test_a_dead_sandbox_raises_and_has_stopped(boxes: Boxes) -> None:
    async with AsyncSandbox({"penstock": {}}) as sandbox:
        await sandbox.start(SandboxSpec())
        await boxes.kill()
        with pytest.raises(SandboxLost):
            await sandbox.exec("true")
        assert (await sandbox.status()).value == "stopped"


@pytest.mark.parametrize(
    "asked",
    [
        {"resources": SandboxResources(gpu=1)},
        {"entrypoint": ["/bin/server"]},
        {"provider_options": {"colour": "red"}},
        {"ports": [8000]},
    ],
    ids=str,
)
async def test_what_no_sandbox_has_is_refused(boxes: Boxes, asked: dict[str, Any]) -> None:
    if not {*asked} <= {one.name for one in fields(SandboxSpec)}:
        pytest.skip("this release has no such field")
    with pytest.raises(SandboxCreateError):
        await AsyncSandbox({"penstock": {}}).start(SandboxSpec(**asked))
    assert await boxes.names() == []


async def test_a_sandbox_lives_and_starts_for_as_long_as_its_spec_says(boxes: Boxes) -> None:
    async with AsyncSandbox({"penstock": {}}) as sandbox:
        await sandbox.start(SandboxSpec(ttl_s=300))
        [info] = [info async for info in LocalSessions().list()]
        assert info.ends - info.created <= 301
    with pytest.raises(SandboxCreateError, match="within 1e-09 s"):
        await AsyncSandbox({"penstock": {}}).start(SandboxSpec(ready_timeout_s=1e-9))
    await boxes.ended()


async def verified(code: str, grader: Grader) -> Any:
    return verify_response(Body(response=code), await grader.grade_code(code, CASES), Answer)


async def test_the_reward_is_the_grade_and_a_slow_program_gets_0() -> None:
    here = Grader(on="local", case_timeout=0.3)
    for code, reward in (("print(int(input()) ** 2)", 1.0), ("while True: pass", 0.0)):
        answer = await verified(code, here)
        assert (answer.reward, answer.instance_config["mask_sample"]) == (reward, False)
        assert answer.response == code


async def test_a_dead_queue_is_masked_with_a_reward_of_0() -> None:
    answer = await verified("1", Grader(on=f"redis://127.0.0.1:{free_port()}", patience=0.2))
    assert answer.reward == 0.0
    assert answer.instance_config == {"mask_sample": True, "mask_reason": "QueueUnavailable"}


class Newer(Answer):
    """With the fields that `BaseVerifyResponse` has since 0.7."""

    mask_sample: bool = False
    failure_kind: str | None = None
    failure_reason: str | None = None


def test_a_masked_sample_is_left_out_of_the_scores_of_newer_releases() -> None:
    lost = verify_response(Body(), Grade(None, "jail_lost", "it ended"), Newer)
    assert (lost.reward, lost.mask_sample) == (0.0, True)
    assert (lost.failure_kind, lost.failure_reason) == ("verifier_error", "jail_lost: it ended")
    wrong = verify_response(Body(), Grade(0.0, "wrong"), Newer)
    assert (wrong.mask_sample, wrong.failure_kind, wrong.failure_reason) == (False, None, None)


async def test_nemo_rl_reads_the_mask_in_the_response() -> None:
    file = checkout("NEMO_RL_SOURCE") / "nemo_rl" / "experience" / "rollouts.py"
    torch = SimpleNamespace(tensor=lambda values, dtype: [*values], bool=bool)
    flags = function_of(file, "_extract_mask_sample_flags", {"torch": torch})
    dead = Grader(on=f"redis://127.0.0.1:{free_port()}", patience=0.2)
    answers = [await verified("1", grader) for grader in (Grader(on="local"), dead)]
    assert flags([{"full_result": one.model_dump(mode="json")} for one in answers]) == [False, True]


async def test_a_response_without_the_masks_field_is_refused() -> None:
    with pytest.raises(TypeError, match="must have `Maskable`"):
        verify_response(Body(), await Grader().grade("", CASES), Body)  # type: ignore[type-var]

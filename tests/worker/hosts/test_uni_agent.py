"""uni-agent's provider `penstock`, by uni-agent itself where it is installed, or our stand-in."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.worker.hosts.boxes import Boxes
from tests.worker.hosts.stubbed import host

host("uni-agent")

from uni_agent.sandbox import SandboxConfig, build_sandbox  # noqa: E402
from uni_agent.sandbox.registry import SANDBOX_REGISTRY  # noqa: E402

from worker.hosts.process_lifecycle import lifecycle_here  # noqa: E402
from worker.hosts.uni_agent import PenstockSandbox  # noqa: E402
from worker.lifecycle import SandboxLost, StartRefused  # noqa: E402


def sandbox(**more: Any) -> Any:
    return build_sandbox(SandboxConfig(provider="penstock", **more))


def test_it_is_registered_by_its_name() -> None:
    assert SANDBOX_REGISTRY["penstock"] is PenstockSandbox
    assert PenstockSandbox.provider == "penstock"


async def test_an_episode_runs_commands_passes_files_and_leaves_nothing(
    boxes: Boxes, tmp_path: Path
) -> None:
    (tmp_path / "in").write_bytes(b"6\n")
    kwargs = {"env": {"A": "7"}, "memory_mb": 256}
    async with sandbox(runtime_timeout=600, sandbox_kwargs=kwargs) as box:
        await box.upload(tmp_path / "in", "folder/in")
        ran = await box.exec_shell(
            "echo $(($(cat in) * $A * $B)) | tee out; exit 3", workdir="folder", env={"B": "1"}
        )
        assert (ran.exit_code, ran.stdout, ran.stderr) == (3, "42\n", "")
        await box.download("folder/out", tmp_path / "out")
        assert (tmp_path / "out").read_bytes() == b"42\n"
        late = await box.exec(["sh", "-c", "echo said; sleep 600"], timeout=10)
        assert (late.exit_code, late.stdout) == (-1, "said\n")
        assert (await box.exec(["no-such-program"])).exit_code == 127
        with pytest.raises(FileNotFoundError):
            await box.read_file("absent")
        assert await box.is_alive()
    assert not await box.is_alive()
    assert await boxes.names() == []


async def test_a_sandbox_that_died_is_no_commands_exit_code(boxes: Boxes) -> None:
    async with sandbox().entered() as box:
        await boxes.kill()
        with pytest.raises(SandboxLost):
            await box.exec(["true"])
        assert not await box.is_alive()
    await box.start()  # as a caller that tries once more
    assert (await box.exec(["echo", "well"])).stdout == "well\n"
    await box.stop()
    await box.stop()
    assert await boxes.names() == []


async def test_a_start_that_is_cancelled_leaves_nothing(boxes: Boxes) -> None:
    """uni-agent's own classes leak it: their `__aexit__` never runs."""
    box = sandbox()
    starting = asyncio.create_task(box.__aenter__())
    life = lifecycle_here()
    async with asyncio.timeout(100):
        while not life.registry.look().counters["opened"]:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.002)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    async with asyncio.timeout(100):  # its creation may not have reached the hub by now
        while life.registry.look().count:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert await boxes.names() == []


async def test_what_is_refused_for_good_is_not_tried_again(boxes: Boxes) -> None:
    with pytest.raises(StartRefused, match="no-such-option"):
        async with sandbox(sandbox_kwargs={"options": {"no-such-option": 1}}):
            raise AssertionError("it started")
    assert lifecycle_here().registry.look().counters["opened"] == 1

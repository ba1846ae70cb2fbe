"""A host's process is killed with sandboxes open: a reaper ends them when their lease is over.

One process has those of all hosts, by stand-ins; where a host is installed, its own alone.
"""

import asyncio
from importlib.util import find_spec
from typing import Any

from tests.harness import doomed, killing
from tests.worker.hosts.boxes import Boxes
from tests.worker.hosts.programs import SQUARES
from tests.worker.hosts.stubbed import host, is_installed

kept: list[Any] = []


async def inspect_ai() -> None:
    from worker.hosts.inspect_ai import PenstockSandbox

    kept.append(await PenstockSandbox.sample_init("task", None, {}))


async def nemo_gym() -> None:
    from nemo_gym.sandbox import AsyncSandbox
    from nemo_gym.sandbox.providers.base import SandboxSpec

    kept.append(AsyncSandbox({"penstock": {}}))
    await kept[-1].start(SandboxSpec())


async def openenv() -> None:
    from worker.hosts.openenv import CodeAction, CodeEnvironment

    kept.append(CodeEnvironment(sessions=True))
    await kept[-1].reset_async()
    await kept[-1].step_async(CodeAction(kind="run_code", code="print(1)"))


async def skyrl() -> None:
    from worker.hosts.skyrl import CodeEnv

    row = {"reward_spec": {"ground_truth": SQUARES}, "max_turns": 2}
    kept.append(CodeEnv(extras=row))
    await asyncio.to_thread(kept[-1].step, "<tool><python>print(1)</python></tool>")


async def slime() -> None:
    from worker.hosts.slime import Sandbox

    kept.append(Sandbox())
    await kept[-1].__aenter__()


async def trl() -> None:
    from worker.hosts.trl import CodeEnvironment

    kept.append(CodeEnvironment())
    kept[-1].reset(ground_truth=SQUARES)
    await kept[-1].run_code("print(1)")


async def verifiers() -> None:
    from worker.hosts.verifiers import CodeToolset, CodeToolsetConfig

    kept.append(CodeToolset(CodeToolsetConfig()))
    await kept[-1].setup()
    await kept[-1].run_code("print(1)")


PAGES = {
    "inspect-ai": inspect_ai, "nemo-gym": nemo_gym, "openenv": openenv, "skyrl": skyrl,
    "slime-rewards": slime, "trl": trl, "verifiers": verifiers,
}  # fmt: skip


def pages_here() -> list[str]:
    if installed := [page for page in PAGES if is_installed(page)]:
        return installed
    # Slime's and OpenRLHF's environments have not all that stand-ins need.
    return [page for page in PAGES if page != "openenv" or find_spec("websockets")]


async def opens_and_waits(pages: list[str]) -> None:
    """A process: in the middle of a rollout of each."""
    for page in pages:
        host(page)
        await PAGES[page]()
    doomed.reached("open")
    await asyncio.sleep(600)


async def test_a_killed_process_leaves_no_sandbox_after_its_lease(boxes: Boxes) -> None:
    pages = pages_here()
    with killing.Child(opens_and_waits, pages) as process:
        await asyncio.to_thread(process.wait_for, "open")
        assert len(await boxes.names()) == len(pages)
        process.kill()
    boxes.leases_end()
    await boxes.reaped()

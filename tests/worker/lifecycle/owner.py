"""A process that owns an open sandbox."""

import asyncio

from tests.harness import doomed
from tests.worker.lifecycle.cloud import CloudProvider
from tests.worker.lifecycle.conftest import quick
from worker.lifecycle import SandboxLifecycle, SandboxLost


async def opens_and_waits(url: str, address: str, seconds: float, lease: float = 60.0) -> None:
    """A process: an open sandbox, kept for as long as it lives."""
    life = SandboxLifecycle(
        url, CloudProvider(address), run="test", settings=quick(sandbox_lease=lease)
    )
    try:
        async with life.open() as sandbox:
            doomed.reached("open", box=sandbox.name)
            await asyncio.sleep(seconds)
            alive = await sandbox.is_alive()
    except SandboxLost:
        alive = False
    doomed.reached("done", alive=alive)

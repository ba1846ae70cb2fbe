"""Waiting, in tests, until the running event loop takes the shortcut to a gate."""

import asyncio
from typing import Any

PATIENCE = 100.0


async def on_its_shortcut(gate: Any) -> None:
    async with asyncio.timeout(PATIENCE):
        while not takes_it(gate):
            (await gate.acquire()).release()
            await asyncio.sleep(0.001)


def takes_it(gate: Any) -> bool:
    """Whether the running loop's next acquire goes that way."""
    unit = gate._client.unit
    own = unit.engine.shortcut_of(asyncio.get_running_loop())
    return own is not None and own.open and not unit.pressing

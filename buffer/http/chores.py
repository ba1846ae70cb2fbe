"""How background tasks are ended that otherwise go on for ever, whatever fails in them."""

import asyncio
from collections.abc import Iterable
from typing import Any


async def ended(chores: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel them until they have ended: a cancellation that meets a timeout is lost in it."""
    all_of_them = list(chores)
    pending = set(all_of_them)
    while pending:
        for chore in pending:
            chore.cancel()
        _, pending = await asyncio.wait(pending, timeout=1.0)
    await asyncio.gather(*all_of_them, return_exceptions=True)  # nobody else asks for it

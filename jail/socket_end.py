"""A conversation by a socket ends here, so that the other side reads all that was sent."""

import asyncio
from contextlib import suppress

_PATIENCE = 5.0  # seconds for the other to hang up
_PIECE = 1 << 18


async def part(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Our last word was said. What the other still sends is read until it hangs up: else the
    kernel would tell it of a reset, and nothing of what we said before."""
    writer.write_eof()
    with suppress(TimeoutError):
        async with asyncio.timeout(_PATIENCE):
            while await reader.read(_PIECE):
                pass

"""How a server of asyncio stops accepting, and leaves no connection unclosed."""

import asyncio


async def stop_accepting(server: asyncio.Server) -> None:
    """Close a server. A connection that is being accepted becomes one first.

    Once the server is closed, asyncio can make no transport for what it has accepted, and drops
    the socket without closing it. That fails the test which runs when it is collected.
    """
    loop = asyncio.get_running_loop()
    for door in server.sockets:
        loop.remove_reader(door)
    for _ in range(2):  # the transport is made in one turn of the loop, and reaches us in the next
        await asyncio.sleep(0)
    server.close()

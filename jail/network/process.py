"""The process of the proxies: one for all sessions of a hub, beside it, so that neither waits for
the other. It is given each session's listening socket, and ends with its hub.

It never runs as root: what root has started becomes the sandbox's user, once it has its imports.
"""

import asyncio
import ctypes
import encodings.idna  # noqa: F401 - the resolver imports it, and may not find it later
import json
import os
import resource
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from . import proxy, rules

LONGEST = 1 << 17  # bytes of an order
_LOOK_UPS = 32  # names at once
_MOST_CONNECTIONS = 4096  # of all sessions; each has two descriptors
_SPARE = 256
_NO_NEW_PRIVILEGES = 38


class Process:
    """The process obeys its hub: `{"name", "allow", "deny"}`, with a listening socket where it is a
    new one; `{"name", "over": true}`. Each order is answered by its number."""

    def __init__(self, line: socket.socket, ceiling: str) -> None:
        self._line = line
        self._ceiling = rules.ceiling(ceiling)
        self._proxies: dict[str, proxy.Proxy] = {}
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._room = asyncio.Semaphore(min(_MOST_CONNECTIONS, max(1, (most - _SPARE) // 2)))

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(_LOOK_UPS))
        while order := await self._next():
            text, given = order
            said = json.loads(text)
            await self._obey(said, given)
            await loop.sock_sendall(self._line, json.dumps({"done": said["number"]}).encode())

    async def _next(self) -> tuple[bytes, list[int]] | None:
        ready = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(self._line, ready.set)
        try:
            while True:
                await ready.wait()
                ready.clear()
                try:
                    text, given, _, _ = socket.recv_fds(self._line, LONGEST, 1)
                except BlockingIOError:
                    continue
                except ConnectionError:
                    return None
                return (text, given) if text else None
        finally:
            loop.remove_reader(self._line)

    async def _obey(self, said: dict[str, Any], given: list[int]) -> None:
        name = said["name"]
        if said.get("over"):
            if known := self._proxies.pop(name, None):
                await known.close()
            return
        policy = rules.Policy(rules.rules(said["allow"]), rules.rules(said["deny"]), self._ceiling)
        if known := self._proxies.get(name):
            known.change(policy)
            return
        listener = socket.socket(fileno=given.pop())
        self._proxies[name] = proxy.Proxy(
            listener, policy, self._room, proxy.resolved, proxy.Patience()
        )


def main() -> None:
    """Run the process. Its arguments are the line to its hub, the user to become, and the
    ceiling."""
    at, user, ceiling = sys.argv[1:]
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(int(user), int(user), int(user))
        os.setresuid(int(user), int(user), int(user))
    ctypes.CDLL(None, use_errno=True).prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    line = socket.socket(fileno=int(at))
    line.setblocking(False)
    asyncio.run(_until_over(Process(line, ceiling)))


async def _until_over(process: Process) -> None:
    await process.serve()
    os._exit(0)  # no connection outlives the hub, nor does a look-up

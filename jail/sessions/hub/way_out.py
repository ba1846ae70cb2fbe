"""The hub's end of the process of proxies: started when the first session may reach something."""

import array
import asyncio
import contextlib
import itertools
import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jail import network
from jail.network.rules import BadRule, ceiling, denials, outside, rules
from jail.sessions.errors import SessionRefused, SessionTrouble
from jail.sessions.hub.hub_session import KeptSession

log = logging.getLogger(__name__)

_BOOT = "import sys; sys.path.insert(0, sys.argv.pop(1)); from network.process import main; main()"
_SOURCE = str(Path(network.__file__).parents[1])
_PAUSE = 1.0  # second until another is started where one has ended
_PATIENCE = 60.0
_ANSWER = 1 << 12
_NOT_PROXIED = "localhost,127.0.0.1,::1"


class WayOut:
    """The way out keeps each session's listening socket too, so that a new process can take all
    over."""

    def __init__(self, limits: str, level: str, user: int) -> None:
        self._limits, self._level, self._user = limits, level, user
        self._rules = ceiling(limits)
        self._kept: dict[str, tuple[socket.socket, dict[str, Any]]] = {}
        self._turn = asyncio.Lock()
        self._line: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = itertools.count(1)
        self._watching: asyncio.Task[None] | None = None

    def check(self, wanted: Mapping[str, Any] | None) -> None:
        """Check the network that a session asks for. Raises `SessionRefused` for what this machine
        will never allow."""
        if wanted is None:
            return
        try:
            allow, _ = rules(wanted["allow"]), denials(wanted["deny"])
        except BadRule as problem:
            raise SessionRefused(f"network: {problem}") from None
        if not allow:
            return
        if self._level != "ns":
            what = "has the machine's own network" if self._level == "none" else "has no sockets"
            raise SessionRefused(
                f"network: a session at the level {self._level!r} {what}, so no list can be "
                "held there. It needs the level 'ns'"
            )
        if not self._rules:
            raise SessionRefused("network: PENSTOCK_SESSION_NETWORK allows nothing on this machine")
        if beyond := outside(allow, self._rules):
            raise SessionRefused(
                f"network: {beyond} is not public. Only the operator can open it, by naming it in "
                "PENSTOCK_SESSION_NETWORK"
            )

    async def set(self, kept: KeptSession, wanted: Mapping[str, Any] | None) -> None:
        """Set what this session may reach from now on; it was checked."""
        said = {"name": kept.name, **(wanted or {"allow": [], "deny": []})}
        async with self._turn:
            known = self._kept.get(kept.name)
            if known is None and not said["allow"]:
                return
            listener = known[0] if known else await kept.listen()
            self._kept[kept.name] = listener, said
            if not known:
                kept.proxy = _variables(listener, kept.about["env"])
            if self._line is None:
                await self._start()  # which is given it with all the others
            else:
                await self._order(said, None if known else listener)
            kept.about["network"] = wanted

    async def close(self, name: str) -> None:
        """The way's session has ended."""
        async with self._turn:
            if known := self._kept.pop(name, None):
                if self._line is not None:
                    with contextlib.suppress(SessionTrouble):
                        await self._order({"name": name, "over": True}, None)
                known[0].close()

    async def end(self) -> None:
        if self._watching:
            self._watching.cancel()
            await asyncio.wait([self._watching])
        self._hang_up()
        for listener, _ in self._kept.values():
            listener.close()
        self._kept.clear()

    async def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        with theirs:
            try:
                self._process = await asyncio.to_thread(self._launch, theirs.fileno())
            except OSError as problem:
                ours.close()
                raise SessionTrouble(f"the proxy of this machine cannot start: {problem}") from None
        self._line = ours
        self._watching = asyncio.get_running_loop().create_task(self._watch(self._process))
        for listener, said in self._kept.values():
            await self._order(said, listener)

    def _launch(self, line: int) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(  # noqa: S603
            [sys.executable, "-I", "-X", "utf8", "-c", _BOOT, _SOURCE, str(line), str(self._user),
             self._limits],
            env={"LANG": "C.UTF-8"}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            pass_fds=(line,), cwd="/", start_new_session=True,
        )  # fmt: skip

    async def _watch(self, process: "subprocess.Popen[bytes]") -> None:
        """Wait for the end of the process of proxies, and start another one. What went through it
        is cut."""
        ended = os.pidfd_open(process.pid)
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        try:
            loop.add_reader(ended, over.set)
            await over.wait()
        finally:
            loop.remove_reader(ended)
            os.close(ended)
        log.warning("the process of proxies ended with status %s", process.wait())
        await asyncio.sleep(_PAUSE)
        async with self._turn:
            self._hang_up()
            if self._kept:
                with contextlib.suppress(SessionTrouble):  # the next session tries again
                    await self._start()

    def _hang_up(self) -> None:
        """End the process of proxies at once."""
        if self._line is not None:
            self._line.close()
            self._line = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    async def _order(self, said: dict[str, Any], listener: socket.socket | None) -> None:
        """Send an order to the process of proxies, and wait until it is in force."""
        assert self._line is not None  # noqa: S101 - it was started
        number = next(self._numbers)
        text = json.dumps({**said, "number": number}).encode()
        given = array.array("i", [] if listener is None else [listener.fileno()])
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, given)] if given else []
        try:
            self._line.sendmsg([text], rights, socket.MSG_NOSIGNAL)
            async with asyncio.timeout(_PATIENCE):
                answer = await asyncio.get_running_loop().sock_recv(self._line, _ANSWER)
            if not answer or json.loads(answer) != {"done": number}:
                raise ConnectionError("it has ended")
        except (OSError, TimeoutError) as problem:
            if self._process:  # what it answers late would be read by the next who asks
                self._process.kill()
            raise SessionTrouble(f"the proxy of this machine does not answer: {problem}") from None


def _variables(listener: socket.socket, own: Mapping[str, str]) -> dict[str, str]:
    """Variables as programs look for them; some know only one of the two ways of writing. What the
    session's own environment says stays."""
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    found = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), url) | {
        "NO_PROXY": _NOT_PROXIED
    }
    found |= {name.lower(): value for name, value in found.items()}
    return {name: value for name, value in found.items() if name not in own}

"""The line to a session's init: orders go out, and what it says comes in, which no program can say
in its place."""

import array
import asyncio
import contextlib
import itertools
import json
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jail.inside import wire as jail_wire
from jail.inside.commands import LONGEST
from jail.inside.levels import MOST

_HEARD = 1 << 16


class InitLine:
    """The hub's line to one init. `theirs` is the jail's end. `hears` gets what is no answer, with
    its descriptors; `gone` makes what is raised once the line is closed."""

    def __init__(
        self,
        hears: Callable[[dict[str, Any], list[int]], None],
        gone: Callable[[], Exception],
    ) -> None:
        self._hears, self._gone = hears, gone
        self._loop = asyncio.get_running_loop()
        self._closed = asyncio.Event()
        self._turn = asyncio.Lock()
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)

    def listen(self) -> None:
        """Listen from now on, until the line is closed."""
        self._loop.add_reader(self._ours, self._hear)

    async def ask(self, what: str, given: Sequence[int] = ()) -> dict[str, Any]:
        """Ask the init, and return its answer."""
        number = next(self._numbers)
        answer = self._asked[number] = self._loop.create_future()
        await self.post({what: number}, given)
        try:
            return dict(await answer)
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and not answer.exception():
                _drop(answer.result())
            raise

    async def post(self, order: Mapping[str, Any], given: Sequence[int] = ()) -> None:
        """Send one order, with these descriptors."""
        text = json.dumps(order).encode()
        file = -1
        try:
            if len(text) >= LONGEST:
                file = os.memfd_create("order", os.MFD_CLOEXEC)
                jail_wire.write(file, jail_wire.pack(dict(order)))
                text, given = b'{"in_a_file": true}', [file, *given]
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", given))]
            await self._send(text, rights if given else [])
        finally:
            if file >= 0:
                os.close(file)

    async def _send(self, text: bytes, rights: Any) -> None:
        async with self._turn:
            while not self._closed.is_set():
                try:
                    self._ours.sendmsg([text], rights, socket.MSG_NOSIGNAL)
                except BlockingIOError:
                    await self._writable()
                except OSError:  # in a moment it is known to be over
                    await self._closed.wait()
                else:
                    return
            raise self._gone()

    async def _writable(self) -> None:
        ready = asyncio.Event()
        self._loop.add_writer(self._ours, ready.set)
        over = self._loop.create_task(self._closed.wait())
        room = self._loop.create_task(ready.wait())
        try:
            await asyncio.wait([over, room], return_when=asyncio.FIRST_COMPLETED)
        finally:
            over.cancel()
            room.cancel()
            if not self._closed.is_set():
                self._loop.remove_writer(self._ours)

    def _hear(self) -> None:
        try:
            text, given, _, _ = socket.recv_fds(self._ours, _HEARD, MOST)
        except BlockingIOError:
            return
        except OSError:
            text, given = b"", []
        if not text:
            self._loop.remove_reader(self._ours)  # its end is reported by the fork server
            return
        said = json.loads(text)
        if "asked" in said:
            self._answer(said.pop("asked"), said | ({"given": given} if given else {}))
        else:
            self._hears(said, given)

    def _answer(self, number: int, said: dict[str, Any]) -> None:
        answer = self._asked.pop(number)
        if not answer.done():
            answer.set_result(said)
        else:  # its caller has gone
            _drop(said)

    def hang_up(self) -> None:
        """The line ends, and then its init with all that it has."""
        with contextlib.suppress(OSError):  # it has ended
            self._ours.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """The line's jail has ended."""
        self._loop.remove_reader(self._ours)
        self._ours.close()
        self.theirs.close()
        self._closed.set()
        for answer in self._asked.values():
            refuse(answer, self._gone())


def _drop(said: Mapping[str, Any]) -> None:
    """Close descriptors that nobody takes."""
    for at in said.get("given", ()):
        os.close(at)


def refuse(future: "asyncio.Future[Any]", problem: Exception) -> None:
    """Refuse an ask, if somebody still waits for it."""
    if not future.done():
        future.set_exception(problem)
        future.exception()  # nobody may be waiting any more

"""Sessions by name: opened once however many ask, kept while they are used, bounded in number."""

import asyncio
import time
from dataclasses import dataclass, field

from worker.sandbox.local.errors import SandboxError
from worker.sandbox.local.jails import Jails
from worker.sandbox.local.limits import DEFAULTS, Limits
from worker.sandbox.local.session import Cell, Session


class TooManySessions(SandboxError):
    """Every session is in use; one that idles would have made room."""


@dataclass
class _Kept:
    opened: "asyncio.Future[Session]"
    close: asyncio.Event = field(default_factory=asyncio.Event)
    owner: "asyncio.Task[None] | None" = None
    users: int = 0
    last_used: float = field(default_factory=time.monotonic)


class Sessions:
    """`await sessions.run("trajectory-7", "x = 1")`: state stays until it idles for `idle` s."""

    def __init__(
        self, jails: Jails, *, limits: Limits = DEFAULTS, idle: float = 600.0, most: int = 64
    ) -> None:
        self._jails = jails
        self._limits = limits
        self._idle = idle
        self._most = most
        self._kept: dict[str, _Kept] = {}

    def __len__(self) -> int:
        return len(self._kept)

    async def run(self, name: str, code: str, within: float | None = None) -> Cell:
        """One cell in the named session. Raises `SessionEnded` if it is lost, with its state."""
        kept = self._kept.get(name) or self._open(name)
        kept.users += 1
        try:
            session = await asyncio.shield(kept.opened)
            return await session.run(code, within)
        except BaseException:
            self._forget(name, kept)  # out of step, or cancelled in the middle of a cell
            raise
        finally:
            kept.users -= 1
            kept.last_used = time.monotonic()

    def _open(self, name: str) -> _Kept:
        if len(self._kept) >= self._most:
            self._make_room()
        kept = _Kept(asyncio.get_running_loop().create_future())
        kept.owner = asyncio.ensure_future(self._own(name, kept))
        self._kept[name] = kept
        return kept

    def _make_room(self) -> None:
        idle = [(kept.last_used, name) for name, kept in self._kept.items() if not kept.users]
        if not idle:
            raise TooManySessions(f"all {self._most} sessions are in use; end one, or allow more")
        self.end(min(idle)[1])

    async def _own(self, name: str, kept: _Kept) -> None:
        """Hold the session open until it is ended, or idles too long."""
        try:
            async with self._jails.session(self._limits) as session:
                kept.opened.set_result(session)
                while not kept.close.is_set():
                    rest = kept.last_used + self._idle - time.monotonic()
                    if rest <= 0 and not kept.users:
                        break
                    try:
                        async with asyncio.timeout(max(rest, self._idle / 10)):
                            await kept.close.wait()
                    except TimeoutError:
                        continue
        except Exception as problem:  # noqa: BLE001  the session's waiters raise it
            if not kept.opened.done():
                kept.opened.set_exception(problem)
        finally:
            self._forget(name, kept)

    def _forget(self, name: str, kept: _Kept) -> None:
        if self._kept.get(name) is kept:
            del self._kept[name]
        kept.close.set()

    def end(self, name: str) -> None:
        """Close a session now; harmless when there is none of that name."""
        if kept := self._kept.get(name):
            self._forget(name, kept)

    async def close(self) -> None:
        owners = [kept.owner for kept in self._kept.values() if kept.owner]
        for name in list(self._kept):
            self.end(name)
        if owners:
            await asyncio.wait(owners)

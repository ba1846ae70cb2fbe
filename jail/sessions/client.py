"""`LocalSessions`: the session sandboxes of this machine, by its hub. Keeps `api.Sessions`.

Each call is a connection of its own, and none is kept between two. A call that is cancelled hangs
up, and the hub ends what that call alone had started.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

from jail.images.settings import ImageSettings
from jail.images.store import ImageStore
from jail.sessions import wire
from jail.sessions.api import SessionInfo, SessionRequest
from jail.sessions.call import MISSING, Streams, ask, connect, value
from jail.sessions.errors import SessionGone, SessionTrouble
from jail.sessions.launch import Door, hub_of, hubs, sweep
from jail.sessions.session import LocalSession, session_info
from jail.sessions.settings import LONGEST, SessionSettings
from jail.settings import SandboxSettings

_TRIES = 5  # a hub may end in the moment in which it is asked


class LocalSessions:
    """Made without any effort: the hub is started by the first `open`."""

    def __init__(
        self,
        sandbox: SandboxSettings | None = None,
        sessions: SessionSettings | None = None,
        images: ImageSettings | None = None,
    ) -> None:
        self._sandbox, self._images = (
            sandbox or SandboxSettings.load(),
            images or ImageSettings.load(),
        )
        self._door = Door(self._sandbox, sessions or SessionSettings.load(), self._images)
        self.folder: Path = self._door.folder
        self._tied: dict[str, asyncio.StreamWriter] = {}

    @cached_property
    def images(self) -> ImageStore:
        """The images that sessions may start from."""
        return ImageStore.of(self._images, self._sandbox.sandbox_uid)

    async def open(self, request: SessionRequest) -> LocalSession:
        name = request.name or f"session-{uuid.uuid4().hex[:16]}"
        about = {**asdict(request), "name": name}
        for _ in range(_TRIES):
            try:
                reader, writer = await self._to_hub()
            except MISSING:
                await asyncio.to_thread(self._door.open)
                continue
            try:
                await wire.send_call(writer, {"op": "open", "session": about})
                value(await wire.receive(reader), "session")
                writer.write(wire.KNOWN)
            except (SessionGone, ConnectionError):
                writer.close()  # it ends: the next one is another
                await asyncio.to_thread(sweep, self.folder)
                continue
            except BaseException:
                writer.close()
                raise
            if request.tied:
                self._tied[name] = writer
            else:
                writer.close()
            return LocalSession(self.folder, self._door.socket, name)
        raise SessionTrouble(
            f"the hub of {self.folder} was started {_TRIES} times, and ended: "
            f"{self._door.last_words() or 'it left no message'}"
        )

    async def warm(
        self,
        request: SessionRequest,
        size: int,
        leave: Callable[[], AbstractAsyncContextManager[Any]],
    ) -> None:
        """Keep so many sessions ready, which `open` then only takes over: those of this request's
        image and limits. Until cancelled, or until the hub ends. `leave` is entered around the
        start of each one. Raises what `open` raises."""
        about = {**asdict(request), "name": "", "ttl": LONGEST, "idle": None}
        try:
            reader, writer = await self._to_hub()
        except MISSING:
            await asyncio.to_thread(self._door.open)
            reader, writer = await self._to_hub()
        try:
            await wire.send_call(writer, {"op": "warm", "session": about, "size": size})
            while True:
                value(await wire.receive(reader), "short")
                async with leave():
                    await wire.send_call(writer, {"begin": True})
                    value(await wire.receive(reader), "ready")
        finally:
            writer.close()

    async def get(self, name: str) -> LocalSession:
        session = self.named(name)
        await session.info()
        return session

    def named(self, name: str) -> LocalSession:
        """A session as `get` gives it, but its first call finds out whether it lives."""
        if (hub := hub_of(self.folder, name)) is None:
            raise SessionGone(f"no session {name!r:.100} lives on this machine. Open a new one")
        return LocalSession(self.folder, hub, name)

    async def list(self, tags: Mapping[str, str] | None = None) -> AsyncIterator[SessionInfo]:
        """All of them, or those with these tags. Raises `SessionTrouble` where a hub that lives
        cannot say: it would look as if its sessions were gone."""
        for hub in await asyncio.to_thread(hubs, self.folder):
            try:
                found = await ask(self.folder, hub, "sessions", op="list", tags=dict(tags or {}))
            except SessionGone:
                continue
            for session in found:
                yield session_info(session)

    async def end(self, name: str) -> bool:
        try:
            await self.named(name).ended()
        except SessionGone:
            await asyncio.to_thread(sweep, self.folder)  # its hub may have been killed
            return False
        finally:
            if writer := self._tied.pop(name, None):
                writer.close()
        return True

    async def close(self) -> None:
        for name in list(self._tied):
            await self.end(name)

    async def _to_hub(self) -> Streams:
        return await connect(self.folder, self._door.socket)

"""The hub: the process that keeps all session sandboxes of one user on this machine.

It has one fork server for all of them. It outlives whoever started it, and ends when it has had
no session for a while. If it is killed, its fork server ends, and with that every jail.
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import uvloop

from worker.images import ImageError, ImageSettings
from worker.sandbox.local.errors import SandboxError, SandboxUnavailable
from worker.sandbox.local.jails import Jails
from worker.sandbox.local.limits import Limits
from worker.sandbox.local.settings import SandboxSettings
from worker.sandbox.sessions.errors import (
    ProcessGone,
    SessionExists,
    SessionGone,
    SessionRefused,
    SessionTrouble,
    TooManySessions,
)
from worker.sandbox.sessions.hub.calls import (
    Call,
    check_command,
    check_request,
    check_seconds,
    refused,
    shown,
)
from worker.sandbox.sessions.hub.kept import KeptSession, copied
from worker.sandbox.sessions.hub.pool import Pool, Shelf, kind_of
from worker.sandbox.sessions.hub.starts import Start, Starts
from worker.sandbox.sessions.hub.streams import Streams
from worker.sandbox.sessions.hub.way_out import WayOut
from worker.sandbox.sessions.launch import give_up, hub_of, sweep
from worker.sandbox.sessions.settings import SessionSettings
from worker.sandbox.sessions.wire import Frame, receive_call

log = logging.getLogger(__name__)

_UNFIT = 5.0  # seconds for which a hub that cannot serve says why


class Hub:
    """Serves a listening socket of that name in that folder."""

    def __init__(
        self,
        folder: Path,
        name: str,
        sandbox: SandboxSettings,
        sessions: SessionSettings,
        images: ImageSettings,
    ) -> None:
        self._folder, self._name, self._settings = folder, name, sessions
        self._starts = Starts(sandbox, images)
        self._limits = sessions.limits(sandbox)
        self._jails = Jails(sandbox.config())
        self._way_out = WayOut(sessions.session_network, sandbox.sandbox_level, sandbox.sandbox_uid)
        self._most = sessions.most()
        self._kept: dict[str, KeptSession] = {}
        self._pool = Pool(lambda: self._count() < self._most)
        self._opening: dict[str, asyncio.Task[Any]] = {}
        self._callers: set[asyncio.Task[None]] = set()
        self._closing_up: set[asyncio.Task[None]] = set()
        self._making_room = asyncio.Lock()
        self._stirred = asyncio.Event()
        self._closing = False
        self._unfit: SandboxUnavailable | None = None
        self._calls: dict[str, Callable[[Call], Awaitable[None]]] = {
            "open": self._open, "info": self._info, "list": self._list, "end": self._end,
            "keep": self._keep, "usage": self._usage, "start": self._start, "call": self._start,
            "attach": self._attach, "processes": self._processes, "input": self._input,
            "signal": self._signal, "resize": self._resize, "fork": self._fork,
            "connect": self._connect, "warm": self._warm,
        }  # fmt: skip

    async def serve(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, stop.set)
        self._started = loop.create_task(self._start_jails())
        server = await asyncio.start_unix_server(self._accept, sock=listening, limit=1 << 20)
        over = [loop.create_task(stop.wait()), loop.create_task(self._until_deserted())]
        try:
            await asyncio.wait(over, return_when=asyncio.FIRST_COMPLETED)
            self._closing = True
        finally:
            server.close()
            for task in over:
                task.cancel()
            await self._wind_up()

    async def _start_jails(self) -> None:
        try:
            await self._jails.start()
        except SandboxUnavailable as problem:
            self._unfit = problem
        else:
            marks = json.dumps(self._jails.cgroups)
            (self._folder / f"{self._name}.cgroups").write_text(marks)

    async def _until_deserted(self) -> None:
        await self._started
        idle = self._settings.session_hub_idle
        while True:
            self._stirred.clear()
            try:
                async with asyncio.timeout(min(idle, _UNFIT) if self._unfit else idle):
                    await self._stirred.wait()
            except TimeoutError:
                if not self._kept and not self._opening and not self._callers:
                    return

    async def _wind_up(self) -> None:
        await asyncio.to_thread(give_up, self._folder, self._name)
        await asyncio.gather(*(kept.end("its hub ends") for kept in list(self._kept.values())))
        for caller in self._callers:
            caller.cancel()
        if self._callers:
            await asyncio.wait(self._callers)
        await self._started
        if self._closing_up:
            await asyncio.wait(self._closing_up)
        await self._way_out.end()
        await self._jails.close()

    # Calls.

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        caller = asyncio.current_task()
        assert caller is not None  # noqa: S101 - asyncio runs each caller in a task
        self._callers.add(caller)
        try:
            header, body = await receive_call(reader)
            await self._serve_call(Call(header, body, reader, writer))
        except (ConnectionError, asyncio.CancelledError):
            pass  # the caller has gone, or the hub ends
        finally:
            self._callers.discard(caller)
            self._stirred.set()
            writer.close()

    async def _serve_call(self, call: Call) -> None:
        try:
            await self._started
            if self._unfit:
                raise self._unfit
            if (serve := self._calls.get(call.header.get("op", ""))) is None:
                raise SessionRefused(f"the hub knows no call {call.header.get('op')!r:.100}")
            await serve(call)
        except (SandboxError, ImageError) as refusal:
            await call.answer(**refused(refusal))
        except ConnectionError:
            raise  # the caller has gone
        except OSError as problem:
            await call.answer(errno=problem.errno, why=problem.strerror)
        except (KeyError, TypeError, ValueError) as problem:
            reason = f"the hub cannot read this call: {type(problem).__name__}: {problem}"
            await call.answer(**refused(SessionRefused(reason)))

    async def _open(self, call: Call) -> None:
        kept = await call.while_heard(self._opened(call.header["session"]))
        try:
            await call.hand_over(kept.info())
            if kept.about["tied"]:
                await self._until_either_ends(call, kept)
        except BaseException:
            await kept.end("nobody has come to know of it")
            raise
        if kept.about["tied"]:
            await kept.end("the process that it was tied to has ended")

    async def _until_either_ends(self, call: Call, kept: KeptSession) -> None:
        loop = asyncio.get_running_loop()
        ends = loop.create_task(call.reader.read()), loop.create_task(kept.over.wait())
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in ends:
                task.cancel()

    async def _opened(
        self, about: dict[str, Any], parent: KeptSession | None = None
    ) -> KeptSession:
        """Nobody finds it before it is whole: a fork before it has its parent's files. In a task
        of its own, which is cancelled to end what is being opened."""
        limits = self._limits_of(about)
        self._way_out.check(about["network"])
        name = about["name"] = about["name"] or f"session-{uuid.uuid4().hex[:16]}"
        if self._closing:
            raise SessionGone(f"hub {self._name} ends; ask again")
        if len(self._kept) + len(self._opening) >= self._most:
            raise TooManySessions(
                f"this machine keeps {self._most} sessions, and no more. End some, or raise "
                "PENSTOCK_SESSION_MOST and the limit of open files"
            )
        self._take_name(name)
        self._opening[name] = asyncio.current_task()  # type: ignore[assignment]
        try:
            kept = await self._begun(about, limits, parent.start_from if parent else None)
            await self._finished(kept, parent)
            self._kept[name] = kept
        except BaseException:
            self._give_name_back(name)
            raise
        finally:
            del self._opening[name]
            self._pool.look()
        return kept

    async def _begun(
        self, about: dict[str, Any], limits: Limits, filled: Start | None
    ) -> KeptSession:
        """One that is ready, if there is one; else one of its own. There are never more jails
        than allowed: one that is ready, or is being made, ends before this one begins."""

        def on_end() -> None:
            self._ended(about["name"])

        async with self._starts.of(about["image"], filled) as start:
            kind = kind_of(about, limits)
            while not filled and (kept := self._pool.take(kind)):
                if start is None or start.is_that_of(kept.start_from):
                    kept.hand_over(about, on_end)
                    return kept
                await asyncio.shield(self._later(kept.end("its image's name has moved")))
            async with self._making_room:
                while self._count() > self._most and (spare := await self._pool.next()):
                    await asyncio.shield(self._later(spare.end("another session needs its place")))
            return await KeptSession.open(self._jails, about, limits, start, on_end)

    def _count(self) -> int:
        return len(self._kept) + len(self._opening) + len(self._pool)

    async def _warm(self, call: Call) -> None:
        """Keep sessions of one kind ready while the caller is there. It gives leave for each."""
        about = call.header["session"]
        limits = self._limits_of(about)
        shelf = Shelf(kind_of(about, limits), int(call.header["size"]))

        async def begin(on_end: Callable[[], None]) -> KeptSession:
            async with self._starts.of(about["image"], None) as start:
                return await KeptSession.open(self._jails, dict(about), limits, start, on_end)

        with self._pool.holding(shelf):
            try:
                while True:
                    await call.while_heard(shelf.wanted.wait())
                    await call.answer(short=True)
                    await receive_call(call.reader)
                    await call.while_heard(self._pool.fill(shelf, begin))
                    await call.answer(ready=len(shelf))
            finally:
                await shelf.clear()

    def _limits_of(self, about: dict[str, Any]) -> Limits:
        """Raises `SessionRefused` for what can never be."""
        return check_request(about, self._jails, self._limits)

    def _take_name(self, name: str) -> None:
        for last in (False, True):
            try:
                os.symlink(self._name, self._folder / name)
                return
            except FileExistsError:
                if not last and hub_of(self._folder, name) not in (None, self._name):
                    sweep(self._folder)  # its hub may have been killed
                    continue
                raise SessionExists(f"a session {name!r} lives already; choose a name") from None

    def _give_name_back(self, name: str) -> None:
        (self._folder / name).unlink(missing_ok=True)

    def _ended(self, name: str) -> None:
        self._later(self._way_out.close(name))
        if self._kept.pop(name, None):
            self._give_name_back(name)
        self._pool.look()
        self._stirred.set()

    def _later(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._closing_up.add(task)
        task.add_done_callback(self._closing_up.discard)
        return task

    def _of(self, call: Call) -> KeptSession:
        if (kept := self._kept.get(name := call.header["name"])) is None:
            raise SessionGone(f"no session {name!r:.100} lives on this machine. Open a new one")
        return kept

    async def _info(self, call: Call) -> None:
        await call.answer(session=self._of(call).info())

    async def _list(self, call: Call) -> None:
        wanted = call.header["tags"].items()
        found = [
            kept.info() for kept in self._kept.values() if wanted <= kept.about["tags"].items()
        ]
        await call.answer(sessions=found)

    async def _end(self, call: Call) -> None:
        if opening := self._opening.get(name := call.header["name"]):
            opening.cancel()
            await asyncio.wait([opening])
        if name in self._kept or not opening:
            await self._of(call).end("it was ended by its name")
        await call.answer()

    async def _keep(self, call: Call) -> None:
        kept, ttl, idle = self._of(call), call.header["ttl"], call.header["idle"]
        check_seconds("ttl", ttl)
        check_seconds("idle", idle)
        kept.keep(ttl, idle)
        await call.answer(session=kept.info())

    async def _connect(self, call: Call) -> None:
        kept, wanted = self._of(call), call.header["network"]
        self._way_out.check(wanted)
        await self._way_out.set(kept, wanted)
        await call.answer(session=kept.info())

    async def _finished(self, kept: KeptSession, parent: KeptSession | None) -> None:
        """What a session still lacks that nobody has so far."""
        try:
            if parent:
                await copied(parent, kept)
            if wanted := kept.about["network"]:
                await self._connected(kept, wanted)
            if kept.over.is_set():
                raise SessionTrouble(f"session {kept.name} ended as it was opened: {kept.why}")
        except BaseException:
            await kept.end("it could not be given its files, or its proxy")
            raise

    async def _connected(self, kept: KeptSession, wanted: dict[str, Any]) -> None:
        """Also if it is cancelled: the process of proxies answers for one after the other."""
        setting = asyncio.ensure_future(self._way_out.set(kept, wanted))
        try:
            await asyncio.shield(setting)
        finally:
            await asyncio.wait([setting])

    async def _usage(self, call: Call) -> None:
        await call.answer(usage=await self._of(call).usage())

    async def _start(self, call: Call) -> None:
        kept, asked = self._of(call), call.header["command"]
        check_command(asked)
        with kept.used():
            streams = await kept.start(asked)
            await self._attend(call, kept, streams, kills=not asked.get("kept"))

    async def _attach(self, call: Call) -> None:
        kept = self._of(call)
        with kept.used():
            streams = kept.find(call.header["which"], ended=True)
            await self._attend(call, kept, streams, kills=False)

    async def _attend(self, call: Call, kept: KeptSession, streams: Streams, kills: bool) -> None:
        """Its output goes to the caller, and what the caller says to it, until either has ended."""
        call.say(process=shown(streams))
        if streams.exit is not None:
            call.say(exit=streams.exit)
        streams.listen(call.writer)
        loop = asyncio.get_running_loop()
        heard = loop.create_task(self._pass_on(call, kept, streams))
        closed = loop.create_task(streams.closed.wait())
        try:
            await asyncio.wait([heard, closed], return_when=asyncio.FIRST_COMPLETED)
            await call.writer.drain()
        finally:
            streams.leave(call.writer)
            if kills and streams.exit is None:
                kept.kill(streams, "hung_up")
            over = closed.done() and not heard.done()
            for task in (heard, closed):
                task.cancel()
        if over:
            await asyncio.wait([heard])
            await call.part()

    async def _pass_on(self, call: Call, kept: KeptSession, streams: Streams) -> None:
        if call.body:
            await streams.write(call.body)
        if call.header.get("last"):
            streams.end_input()
        with contextlib.suppress(ConnectionError, ProcessGone, SessionGone):
            while True:
                await self._obey(kept, streams, await receive_call(call.reader))

    async def _obey(self, kept: KeptSession, streams: Streams, frame: Frame) -> None:
        header, body = frame
        if "signal" in header:
            await kept.signal(streams.pid, int(header["signal"]))
        if "resize" in header:
            streams.resize(*header["resize"])
        await streams.write(body)
        if header.get("last"):
            streams.end_input()

    async def _processes(self, call: Call) -> None:
        await call.answer(processes=[shown(streams) for streams in self._of(call).running()])

    async def _input(self, call: Call) -> None:
        kept = self._of(call)
        with kept.used():
            streams = kept.find(call.header["which"])
            await self._obey(kept, streams, (call.header, call.body))
            await call.answer()

    async def _signal(self, call: Call) -> None:
        await self._of(call).signal(call.header["which"], int(call.header["number"]))
        await call.answer()

    async def _resize(self, call: Call) -> None:
        self._of(call).find(call.header["which"]).resize(*call.header["size"])
        await call.answer()

    async def _fork(self, call: Call) -> None:
        """The files of one session into a new one. Both ends of the pipe are theirs: what passes
        through it is not read here."""
        parent = self._of(call)
        with parent.used():
            child = await call.while_heard(self._opened(call.header["session"], parent))
            try:
                await call.hand_over(child.info())
            except BaseException:
                await child.end("nobody has come to know of it")
                raise


def main(folder: str, name: str, listening: str, sandbox: str, sessions: str, images: str) -> None:
    hub_settings = SessionSettings.model_validate_json(sessions)
    sandbox_settings = SandboxSettings.model_validate_json(sandbox)
    image_settings = ImageSettings.model_validate_json(images)

    async def serve() -> None:
        hub = Hub(Path(folder), name, sandbox_settings, hub_settings, image_settings)
        with socket.socket(fileno=int(listening)) as at:
            await hub.serve(at)

    uvloop.run(serve())

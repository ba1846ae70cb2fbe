"""The hub: the process that keeps all sandboxes of one user on this machine.

It has one fork server for all sessions, and for all programs that run once. It outlives the
process that started it, and ends when it has had no session and no caller for a while. If it is
killed, its fork server ends, and with that every jail.
"""

import asyncio
import contextlib
import json
import logging
import signal
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from jail.errors import SandboxError, SandboxFailure, SandboxUnavailable
from jail.images import ImageError
from jail.images.settings import ImageSettings
from jail.sandbox import LocalSandbox
from jail.sessions.errors import ProcessGone, SessionGone, SessionRefused, SessionTrouble
from jail.sessions.hub import programs
from jail.sessions.hub.calls import Call, check_command, check_seconds, refused, shown
from jail.sessions.hub.hub_session import KeptSession
from jail.sessions.hub.sessions import KeptSessions
from jail.sessions.hub.starts import Starts
from jail.sessions.hub.streams import Streams
from jail.sessions.hub.way_out import WayOut
from jail.sessions.launch import BACKLOG, give_up
from jail.sessions.settings import SessionSettings
from jail.sessions.wire import Frame, check_signal, check_size, fields_of_failure, receive_call
from jail.settings import SandboxSettings
from jail.socket_end import part

log = logging.getLogger(__name__)

try:
    from uvloop import run
except ModuleNotFoundError:  # it is faster, and comes with the extra `serve`
    from asyncio import run  # type: ignore[assignment]

_UNFIT = 5.0  # seconds for which a hub that cannot serve says why


class Hub:
    """A hub serves a listening socket of that name in that folder."""

    def __init__(
        self,
        folder: Path,
        name: str,
        sandbox: SandboxSettings,
        sessions: SessionSettings,
        images: ImageSettings,
    ) -> None:
        self._folder, self._name, self._settings = folder, name, sessions
        self._programs = LocalSandbox.from_settings(sandbox)
        self._jails = self._programs.jails
        self._way_out = WayOut(sessions.session_network, sandbox.sandbox_level, sandbox.sandbox_uid)
        self._stirred = asyncio.Event()
        limits = sessions.limits(sandbox)
        files = min(limits.open_files, self._jails.caps.open_files)
        self._sessions = KeptSessions(
            folder, name, self._jails, Starts(sandbox, images), self._way_out,
            replace(limits, open_files=files), sessions.most(), self._stirred,
        )  # fmt: skip
        self._callers: set[asyncio.Task[None]] = set()
        self._unfit: SandboxUnavailable | None = None
        self._calls: dict[str, Callable[[Call], Awaitable[None]]] = {
            "open": self._open, "info": self._info, "list": self._list, "end": self._end,
            "keep": self._keep, "usage": self._usage, "start": self._start, "call": self._start,
            "attach": self._attach, "processes": self._processes, "input": self._input,
            "signal": self._signal, "resize": self._resize, "fork": self._fork,
            "connect": self._connect, "warm": self._warm,
            "run": partial(programs.run, self._programs),
            "judge": partial(programs.judge, self._programs),
        }  # fmt: skip

    async def serve(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, stop.set)
        self._started = loop.create_task(self._start_jails())
        server = await asyncio.start_unix_server(
            self._accept, sock=listening, limit=1 << 20, backlog=BACKLOG
        )
        over = [loop.create_task(stop.wait()), loop.create_task(self._until_deserted())]
        try:
            await asyncio.wait(over, return_when=asyncio.FIRST_COMPLETED)
            self._sessions.admit_no_more()
            # Nobody finds it any more. A caller that came in that moment is still served.
            await asyncio.to_thread(give_up, self._folder, self._name)
            for _ in range(10):  # turns in which who has connected is accepted, and gets its task
                await asyncio.sleep(0)
            while self._callers and not over[0].done():
                await asyncio.wait([over[0], *self._callers], return_when=asyncio.FIRST_COMPLETED)
        finally:
            server.close()
            for task in over:
                task.cancel()
            await self._wind_up()

    async def _start_jails(self) -> None:
        try:
            await self._programs.start()
        except SandboxUnavailable as problem:
            self._unfit = problem
        else:
            marks = json.dumps(self._jails.cgroups)
            (self._folder / f"{self._name}.cgroups").write_text(marks)

    async def _until_deserted(self) -> None:
        """Wait until nobody has used the hub for a while: who comes later asks another. An
        unfit hub waits less: the next one may be fit."""
        await self._started
        idle = self._settings.session_hub_idle
        if self._unfit:
            await asyncio.sleep(min(idle, _UNFIT))
            return
        while True:
            self._stirred.clear()
            try:
                async with asyncio.timeout(idle):
                    await self._stirred.wait()
            except TimeoutError:
                if not self._sessions.any and not self._callers:
                    self._sessions.admit_no_more()  # at once: a session begun now would be lost
                    return

    async def _wind_up(self) -> None:
        await self._sessions.end_all()
        for caller in self._callers:
            caller.cancel()
        if self._callers:
            await asyncio.wait(self._callers)
        await self._started
        await self._sessions.settle()
        await self._way_out.end()
        await self._programs.close()

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
        except SandboxFailure as failure:
            await call.answer(**fields_of_failure(failure))
        except (SandboxError, ImageError) as refusal:
            await call.answer(**refused(refusal))
        except ConnectionError:
            raise  # the caller has gone
        except OSError as problem:
            await call.answer(errno=problem.errno, why=problem.strerror)
        except (AttributeError, KeyError, TypeError, ValueError) as problem:
            reason = f"the hub cannot read this call: {type(problem).__name__}: {problem}"
            await call.answer(**refused(SessionRefused(reason)))
        except Exception as problem:
            log.exception("call %.100r failed", call.header.get("op"))
            reason = f"the hub failed at this call: {type(problem).__name__}: {problem}"
            await call.answer(**refused(SessionTrouble(reason)))

    async def _open(self, call: Call) -> None:
        call.require_room()
        kept = await call.while_heard(self._sessions.open(call.header["session"]))
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

    async def _warm(self, call: Call) -> None:
        """Keep sessions of one kind ready while the caller is there. It gives leave for each."""
        about, size = call.header["session"], int(call.header["size"])
        async with self._sessions.ready(about, size) as (shelf, fill):
            while True:
                await call.while_heard(shelf.wanted.wait())
                await call.answer(short=True)
                await receive_call(call.reader)
                await call.while_heard(fill())
                await call.answer(ready=len(shelf))

    def _of(self, call: Call) -> KeptSession:
        return self._sessions.find(call.header["name"])

    async def _info(self, call: Call) -> None:
        await call.answer(session=self._of(call).info())

    async def _list(self, call: Call) -> None:
        wanted = call.header["tags"].items()
        found = [
            kept.info() for kept in self._sessions.all() if wanted <= kept.about["tags"].items()
        ]
        await call.answer(sessions=found)

    async def _end(self, call: Call) -> None:
        await self._sessions.end(call.header["name"])
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

    async def _usage(self, call: Call) -> None:
        await call.answer(usage=await self._of(call).usage())

    async def _start(self, call: Call) -> None:
        kept, asked = self._of(call), call.header["command"]
        check_command(asked)
        call.require_room()
        with kept.used():
            streams = await kept.start(asked)
            await self._attend(call, kept, streams, kills=not asked.get("kept"))

    async def _attach(self, call: Call) -> None:
        kept = self._of(call)
        call.require_room()
        with kept.used():
            streams = kept.find(call.header["which"], ended=True)
            await self._attend(call, kept, streams, kills=False)

    async def _attend(self, call: Call, kept: KeptSession, streams: Streams, kills: bool) -> None:
        """Pass the command's output to the caller, and what the caller says to the command, until
        either has ended."""
        call.say(process=shown(streams))
        if streams.exit is not None:
            call.say(exit=streams.exit)
        streams.listen(call.writer)
        loop = asyncio.get_running_loop()
        heard = loop.create_task(self._pass_on(call, kept, streams))
        closed = loop.create_task(streams.closed.wait())
        try:
            await asyncio.wait([heard, closed], return_when=asyncio.FIRST_COMPLETED)
            if heard.done():
                heard.result()  # what the caller said may make no sense
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
            await part(call.reader, call.writer)

    async def _pass_on(self, call: Call, kept: KeptSession, streams: Streams) -> None:
        if call.body:
            await streams.write(call.body, call.hung_up)
        if call.header.get("last"):
            streams.end_input()
        with contextlib.suppress(ConnectionError, ProcessGone, SessionGone):
            while True:
                await self._obey(call, kept, streams, await receive_call(call.reader))

    async def _obey(self, call: Call, kept: KeptSession, streams: Streams, frame: Frame) -> None:
        header, body = frame
        if "signal" in header:
            check_signal(header["signal"])
            await kept.signal(streams.pid, header["signal"])
        if "resize" in header:
            check_size(header["resize"])
            streams.resize(*header["resize"])
        await streams.write(body, call.hung_up)
        if header.get("last"):
            streams.end_input()

    async def _processes(self, call: Call) -> None:
        await call.answer(processes=[shown(streams) for streams in self._of(call).running()])

    async def _input(self, call: Call) -> None:
        kept = self._of(call)
        with kept.used():
            streams = kept.find(call.header["which"])
            if call.body:
                streams.require_input()
            await self._obey(call, kept, streams, (call.header, call.body))
            await call.answer()

    async def _signal(self, call: Call) -> None:
        check_signal(number := call.header["number"])
        await self._of(call).signal(call.header["which"], number)
        await call.answer()

    async def _resize(self, call: Call) -> None:
        check_size(size := call.header["size"])
        self._of(call).find(call.header["which"]).resize(*size)
        await call.answer()

    async def _fork(self, call: Call) -> None:
        """Open a new session with the files of another one. Both ends of the pipe belong to the
        sessions: what passes through it is not read here."""
        parent = self._of(call)
        call.require_room()
        with parent.used():
            child = await call.while_heard(self._sessions.open(call.header["session"], parent))
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

    run(serve())

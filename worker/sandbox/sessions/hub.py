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
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from worker.sandbox.local.errors import LimitRefused, SandboxError, SandboxUnavailable
from worker.sandbox.local.jails import Jails
from worker.sandbox.local.limits import CAPS, MB, Limits, room_for_descriptors
from worker.sandbox.local.settings import SandboxSettings
from worker.sandbox.sessions.errors import (
    ProcessGone,
    SessionExists,
    SessionGone,
    SessionRefused,
    TooManySessions,
)
from worker.sandbox.sessions.kept import KeptSession, copied
from worker.sandbox.sessions.launch import give_up, hub_of, sweep, valid
from worker.sandbox.sessions.settings import LONGEST, SessionSettings, with_disk
from worker.sandbox.sessions.streams import Streams
from worker.sandbox.sessions.wire import Frame, packed, receive_call, send

log = logging.getLogger(__name__)

_DESCRIPTORS = 16  # that one session needs here, with a few commands
_MOST_TAGS = 64
_UNFIT = 5.0  # seconds for which a hub that cannot serve says why
_MOST_ARGUMENTS = 2 << 20  # bytes, as the kernel has it


class Hub:
    """Serves a listening socket of that name in that folder."""

    def __init__(
        self, folder: Path, name: str, sandbox: SandboxSettings, sessions: SessionSettings
    ) -> None:
        self._folder, self._name, self._settings = folder, name, sessions
        self._limits = sessions.limits(sandbox)
        self._jails = Jails(sandbox.config())
        self._most = min(sessions.session_most, room_for_descriptors() // _DESCRIPTORS)
        self._kept: dict[str, KeptSession] = {}
        self._opening: set[str] = set()
        self._callers: set[asyncio.Task[None]] = set()
        self._stirred = asyncio.Event()
        self._closing = False
        self._unfit: SandboxUnavailable | None = None
        self._calls: dict[str, Callable[[Call], Awaitable[None]]] = {
            "open": self._open, "info": self._info, "list": self._list, "end": self._end,
            "keep": self._keep, "usage": self._usage, "start": self._start, "call": self._start,
            "attach": self._attach, "processes": self._processes, "input": self._input,
            "signal": self._signal, "resize": self._resize, "fork": self._fork,
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

    async def _serve_call(self, call: "Call") -> None:
        try:
            await self._started
            if self._unfit:
                raise self._unfit
            if (serve := self._calls.get(call.header.get("op", ""))) is None:
                raise SessionRefused(f"the hub knows no call {call.header.get('op')!r:.100}")
            await serve(call)
        except SandboxError as refusal:
            await call.answer(**refused(refusal))
        except ConnectionError:
            raise  # the caller has gone
        except OSError as problem:
            await call.answer(errno=problem.errno, why=problem.strerror)
        except (KeyError, TypeError, ValueError) as problem:
            reason = f"the hub cannot read this call: {type(problem).__name__}: {problem}"
            await call.answer(**refused(SessionRefused(reason)))

    async def _open(self, call: "Call") -> None:
        kept = await self._opened(call.header["session"])
        tied = kept.about["tied"]
        try:
            await call.answer(session=kept.info())
            if tied:
                await self._until_either_ends(call, kept)
        finally:
            if tied:
                await kept.end("the process that it was tied to has ended")

    async def _until_either_ends(self, call: "Call", kept: KeptSession) -> None:
        loop = asyncio.get_running_loop()
        ends = loop.create_task(call.reader.read()), loop.create_task(kept.over.wait())
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in ends:
                task.cancel()

    async def _opened(self, about: dict[str, Any]) -> KeptSession:
        limits = self._limits_of(about)
        name = about["name"] = about["name"] or f"session-{uuid.uuid4().hex[:16]}"
        if self._closing:
            raise SessionGone(f"hub {self._name} ends; ask again")
        if len(self._kept) + len(self._opening) >= self._most:
            raise TooManySessions(
                f"this machine keeps {self._most} sessions, and no more. End some, or raise "
                "PENSTOCK_SESSION_MOST and the limit of open files"
            )
        self._take_name(name)
        self._opening.add(name)
        try:
            kept = await KeptSession.open(self._jails, about, limits, lambda: self._ended(name))
        except BaseException:
            self._give_name_back(name)
            raise
        finally:
            self._opening.discard(name)
        if not kept.over.is_set():
            self._kept[name] = kept
        return kept

    def _limits_of(self, about: dict[str, Any]) -> Limits:
        """Raises `SessionRefused` for what can never be."""
        if about["root"]:
            raise SessionRefused("root: this release opens sessions without an image only")
        if about["name"] and not valid(about["name"]):
            raise SessionRefused(f"name {about['name']!r:.100}: letters, digits, _ . - only")
        if len(about["tags"]) > _MOST_TAGS:
            raise SessionRefused(f"tags: {len(about['tags'])}, above {_MOST_TAGS}")
        for name, seconds in (("ttl", about["ttl"]), ("idle", about["idle"])):
            check_seconds(name, seconds)
        for name in ("memory_mb", "disk_mb", "processes"):
            if (asked := about[name]) is not None and asked < 1:
                raise SessionRefused(f"{name} is {asked!r:.50}; it must be at least 1")
        disk = (about["disk_mb"] or 0) * MB
        limits = with_disk(self._limits, disk) if disk else self._limits
        memory = (about["memory_mb"] or 0) * MB or limits.memory
        processes = about["processes"] or limits.processes
        try:
            limits = replace(limits, memory=memory, processes=processes, cpu=CAPS.cpu, wall=1.0)
            return limits.within(self._jails.caps)
        except LimitRefused as refusal:
            raise SessionRefused(str(refusal)) from None

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
        if self._kept.pop(name, None):
            self._give_name_back(name)
        self._stirred.set()

    def _of(self, call: "Call") -> KeptSession:
        if (kept := self._kept.get(name := call.header["name"])) is None:
            raise SessionGone(f"no session {name!r:.100} lives on this machine. Open a new one")
        return kept

    async def _info(self, call: "Call") -> None:
        await call.answer(session=self._of(call).info())

    async def _list(self, call: "Call") -> None:
        wanted = call.header["tags"].items()
        found = [
            kept.info() for kept in self._kept.values() if wanted <= kept.about["tags"].items()
        ]
        await call.answer(sessions=found)

    async def _end(self, call: "Call") -> None:
        await self._of(call).end("it was ended by its name")
        await call.answer()

    async def _keep(self, call: "Call") -> None:
        kept, ttl, idle = self._of(call), call.header["ttl"], call.header["idle"]
        check_seconds("ttl", ttl)
        check_seconds("idle", idle)
        kept.keep(ttl, idle)
        await call.answer(session=kept.info())

    async def _usage(self, call: "Call") -> None:
        await call.answer(usage=await self._of(call).usage())

    async def _start(self, call: "Call") -> None:
        kept, asked = self._of(call), call.header["command"]
        check_command(asked)
        with kept.used():
            streams = await kept.start(asked)
            await self._attend(call, kept, streams, kills=not asked.get("kept"))

    async def _attach(self, call: "Call") -> None:
        kept = self._of(call)
        with kept.used():
            streams = kept.find(call.header["which"], ended=True)
            await self._attend(call, kept, streams, kills=False)

    async def _attend(self, call: "Call", kept: KeptSession, streams: Streams, kills: bool) -> None:
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
            for task in (heard, closed):
                task.cancel()
            if kills and streams.exit is None:
                kept.kill(streams, "hung_up")

    async def _pass_on(self, call: "Call", kept: KeptSession, streams: Streams) -> None:
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

    async def _processes(self, call: "Call") -> None:
        await call.answer(processes=[shown(streams) for streams in self._of(call).running()])

    async def _input(self, call: "Call") -> None:
        kept = self._of(call)
        with kept.used():
            streams = kept.find(call.header["which"])
            await self._obey(kept, streams, (call.header, call.body))
            await call.answer()

    async def _signal(self, call: "Call") -> None:
        await self._of(call).signal(call.header["which"], int(call.header["number"]))
        await call.answer()

    async def _resize(self, call: "Call") -> None:
        self._of(call).find(call.header["which"]).resize(*call.header["size"])
        await call.answer()

    async def _fork(self, call: "Call") -> None:
        """The files of one session into a new one. Both ends of the pipe are theirs: what passes
        through it is not read here."""
        parent = self._of(call)
        with parent.used():
            child = await self._opened(call.header["session"])
            try:
                await copied(parent, child)
            except BaseException:
                await child.end("its files could not be copied")
                raise
            await call.answer(session=child.info())


class Call:
    """One connection."""

    def __init__(
        self, header: dict[str, Any], body: bytes,
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter,
    ) -> None:  # fmt: skip
        self.header, self.body = header, body
        self.reader, self.writer = reader, writer

    def say(self, **header: Any) -> None:
        self.writer.write(packed(header))

    async def answer(self, **header: Any) -> None:
        await send(self.writer, header)


def refused(problem: SandboxError) -> dict[str, Any]:
    """An error as it crosses the socket."""
    said = {"error": type(problem).__name__, "message": str(problem)}
    if isinstance(problem, SandboxUnavailable):
        said |= {"message": problem.problem, "remedy": problem.remedy}
    return said


def shown(streams: Streams) -> dict[str, Any]:
    return {
        "pid": streams.pid, "tag": streams.about.get("tag", ""), "command": streams.about,
        "started": streams.began, "exit": streams.exit,
    }  # fmt: skip


def check_seconds(name: str, seconds: float | None) -> None:
    if seconds is not None and not 0 < seconds <= LONGEST:
        raise SessionRefused(
            f"{name} is {seconds!r:.50} s; it must be above 0 and at most {LONGEST:g}, 30 days"
        )


def check_command(asked: dict[str, Any]) -> None:
    """Raises `SessionRefused` for what no process can be given."""
    if "call" in asked:
        return
    argv = asked["argv"]
    if not argv or not all(isinstance(word, str) for word in argv):
        raise SessionRefused("argv: a command is a list of at least one word")
    words = [*argv, *asked["env"], *asked["env"].values(), asked["cwd"]]
    if any("\0" in word for word in words):
        raise SessionRefused("argv, env, cwd: no word of a command can have a zero byte in it")
    if bad := [name for name in asked["env"] if not name or "=" in name]:
        raise SessionRefused(f"env: {bad[0]!r:.100} cannot be the name of a variable")
    if sum(map(len, words)) > _MOST_ARGUMENTS:
        raise SessionRefused(f"argv, env: more than {_MOST_ARGUMENTS:,} bytes; send a file")
    if (timeout := asked.get("timeout")) is not None and not timeout > 0:
        raise SessionRefused(f"timeout is {timeout!r:.50}; it must be above 0")
    if (size := asked.get("terminal")) and not all(0 < n < 1 << 16 for n in size):
        raise SessionRefused(f"terminal is {size!r:.50}; columns and rows are 1 to 65535")


def main(folder: str, name: str, listening: str, sandbox: str, sessions: str) -> None:
    hub_settings = SessionSettings.model_validate_json(sessions)
    sandbox_settings = SandboxSettings.model_validate_json(sandbox)

    async def serve() -> None:
        hub = Hub(Path(folder), name, sandbox_settings, hub_settings)
        with socket.socket(fileno=int(listening)) as at:
            await hub.serve(at)

    asyncio.run(serve())

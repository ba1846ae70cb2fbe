"""A session in the hub: its jail, its commands, and its time limits."""

import asyncio
import contextlib
import errno
import itertools
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

from ground.recent import Recent
from jail.inside import wire as jail_wire
from jail.inside.job import COMMANDS
from jail.jails import Jails, header_of
from jail.limits import MB, Limits
from jail.outcome import Outcome
from jail.sessions.errors import (
    ProcessGone,
    SessionGone,
    SessionRefused,
    SessionTrouble,
    TooManySessions,
)
from jail.sessions.hub.line_to_init import InitLine, refuse
from jail.sessions.hub.starts import ImageStart
from jail.sessions.hub.streams import Ends, Streams

MOST_COMMANDS = 256  # of one session at once
MOST_WATCHES = 16  # of one session at once: a user has 128 for all that he watches
_REMEMBERED = 64  # commands that have ended
_READY = 60.0  # seconds for a jail to be there, on a busy machine
_PATIENCE = 1e8  # of the fork server: how long a session lives is decided here
_ENDING = 10.0  # seconds for an init to end by itself
_USER = "sandbox"
_FULL = "its hub has too many files open"  # the kernel drops what it is given then


class KeptSession:
    """Made by `open`; `over` is set when nothing of it lives any more."""

    def __init__(
        self, about: dict[str, Any], level: str, limits: Limits, start: ImageStart | None
    ) -> None:
        self.name: str = about["name"]
        self.about, self.level, self.limits = about, level, limits
        self.start_from = start
        self.over = asyncio.Event()
        self.why = "it ended"
        self._refused = False
        self._loop = asyncio.get_running_loop()
        self.created = time.time()
        self.last_command = ""
        self._given: dict[str, str] = {}  # its environment, if it was ready before that was known
        self.proxy: dict[str, str] = {}  # variables by which its commands find their proxy
        self._used = self._loop.time()
        self._users = 0
        self._ends = self._used + about["ttl"]
        self._idle: float | None = about["idle"]
        self._alarm: asyncio.TimerHandle | None = None
        self._timed_out: asyncio.Task[None] | None = None
        self._numbers = itertools.count(1)
        self._starting: dict[int, tuple[asyncio.Future[Streams], Ends | None, dict[str, Any]]] = {}
        self._running: dict[int, Streams] = {}
        self._ended: Recent[Streams] = Recent(_REMEMBERED)
        self._killing: set[asyncio.Task[None]] = set()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._line = InitLine(self._hear, self.gone)

    @classmethod
    async def open(
        cls,
        jails: Jails,
        about: dict[str, Any],
        limits: Limits,
        start: ImageStart | None,
        on_end: Callable[[], None],
    ) -> Self:
        """Open a session in a new jail. Raises `SessionTrouble` if no jail could be had."""
        kept = cls(about, jails.level, limits, start)
        kept._begin(jails, on_end)
        try:
            async with asyncio.timeout(_READY):
                await kept._ready
        except BaseException as problem:
            await kept.end("it could not be opened")
            if isinstance(problem, TimeoutError):
                raise SessionTrouble(f"no jail was ready within {_READY:g} s") from None
            if isinstance(problem, SessionGone):
                kind = SessionRefused if kept._refused else SessionTrouble
                raise kind(f"no session could be opened: {kept.why}") from None
            raise
        return kept

    def _begin(self, jails: Jails, on_end: Callable[[], None]) -> None:
        start = self.start_from
        header = header_of(self.limits, {}, [], _environment(self.about, self.level, start), [])
        if start:
            header["image"] = start.on_the_wire()
        request = jail_wire.pack(header, [b""])
        self._ending = self._loop.create_task(
            jails.exchange(
                request, self.limits, compiles=False, what=COMMANDS,
                channel=self._line.theirs, patience=_PATIENCE, config=start and start.config,
            )
        )  # fmt: skip
        self._ending.add_done_callback(self._is_over)
        self._on_end = on_end
        self._line.listen()
        self._look_at_the_clock()

    # Its life.

    def _is_over(self, ending: "asyncio.Task[Outcome]") -> None:
        """The session's jail has ended, by the hub's word or without."""
        if ending.cancelled() or ending.exception():
            said = "its fork server does not answer"
        else:
            said = ending.result().error or self.why
            self._refused = ending.result().status == "refused"
        if self._alarm:
            self._alarm.cancel()
        self.why = said
        self._line.close()
        refuse(self._ready, self.gone())
        for future, ends, _ in self._starting.values():
            refuse(future, self.gone())
            if ends:
                ends.close()
        for streams in [*self._running.values(), *self._ended.values()]:
            if streams.exit is None:
                self._conclude(streams, self._exit_of(streams, {"status": 9}, "session_ended"))
            streams.drop()
        self.over.set()
        self._on_end()

    def hand_over(self, about: dict[str, Any], on_end: Callable[[], None]) -> None:
        """The session was ready, and is now the one that was asked for."""
        self.name, self.about, self._given = about["name"], about, dict(about["env"])
        self.created, self._on_end = time.time(), on_end
        self._used = self._loop.time()
        self._ends, self._idle = self._used + about["ttl"], about["idle"]
        self._look_at_the_clock()

    def gone(self) -> SessionGone:
        return SessionGone(f"session {self.name} is gone: {self.why}. Open a new one")

    async def end(self, why: str) -> None:
        """End the session, and wait until all of it is dead."""
        if not self.over.is_set():
            self.why = why
            self._line.hang_up()
            done, _ = await asyncio.wait([self._ending], timeout=_ENDING)
            if not done:
                self._ending.cancel()  # which kills its init
        await self.over.wait()

    @contextmanager
    def used(self) -> Iterator[None]:
        """A call: it does not idle meanwhile."""
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            self._used = self._loop.time()

    def keep(self, ttl: float | None, idle: float | None) -> None:
        """Change its times. Raises `SessionGone` where it ends already, since one has run out."""
        if self._timed_out:
            raise self.gone()
        if ttl is not None:
            self._ends = self._loop.time() + ttl
        if idle is not None:
            self._idle, self._used = idle, self._loop.time()
        self._look_at_the_clock()

    def _look_at_the_clock(self) -> None:
        if self._alarm:
            self._alarm.cancel()
        now = self._loop.time()
        due = self._ends
        if self._idle is not None:
            due = min(due, (now if self._users else self._used) + self._idle)
        if now < due:
            self._alarm = self._loop.call_at(due, self._look_at_the_clock)
            return
        limit = "its time to live" if now >= self._ends else f"{self._idle:g} s without a call"
        self.why = f"{limit} passed"
        self._timed_out = self._loop.create_task(self.end(self.why))

    def info(self) -> dict[str, Any]:
        clock = time.time() - self._loop.time()
        return {
            "name": self.name, "isolation": self.level, "tags": self.about["tags"],
            "created": self.created, "ends": clock + self._ends, "idle": self._idle,
            "image": self.start_from.image.name if self.start_from else "",
            "memory_mb": self.limits.memory // MB, "disk_mb": self.limits.disk // MB,
            "processes": self.limits.processes, "last_used": clock + self._used,
            "last_command": self.last_command, "network": self.about["network"],
        }  # fmt: skip

    # Its commands.

    async def start(self, asked: dict[str, Any], ends: Ends | None = None) -> Streams:
        """A command or a call. Raises `SessionRefused`, or `SessionTrouble` without a process."""
        if not self.start_from and asked.get("user") not in (None, "", _USER):
            raise SessionRefused(
                f"user {asked['user']!r}: this session has one user, {_USER!r}. "
                "Leave `user` empty, or open the session from an image with users of its own"
            )
        if len(self._running) + len(self._starting) >= MOST_COMMANDS:
            raise TooManySessions(
                f"session {self.name} runs {MOST_COMMANDS} commands; wait until one ends"
            )
        if asked.get("call") == "watch" and self._watches() >= MOST_WATCHES:
            raise TooManySessions(
                f"session {self.name} watches {MOST_WATCHES} folders; end one, or watch recursively"
            )
        number = next(self._numbers)
        env = self._given | self.proxy | asked.get("env", {})
        order = {"start": number, "cwd": "", **asked, "env": env}
        if self.start_from and "argv" in asked:
            order["workdir"] = self.start_from.image.config.workdir
        if ends is None and not asked.get("terminal"):
            ends = Ends(asked.get("stdin", False))
        started: asyncio.Future[Streams] = self._loop.create_future()
        self._starting[number] = started, ends, asked
        if "argv" in asked:
            self.last_command = " ".join(asked["argv"])[:200]
        try:
            await self._line.post(order, ends.theirs if ends else ())
        except BaseException:
            if self._starting.pop(number, None) and ends:
                ends.close()
            raise
        if ends:
            ends.handed_over()
        return await started

    def _watches(self) -> int:
        starting = [asked for _, _, asked in self._starting.values()]
        running = [streams.about for streams in self._running.values()]
        return sum(each.get("call") == "watch" for each in (*starting, *running))

    def _hear(self, said: dict[str, Any], given: list[int]) -> None:
        if "started" in said:
            self._has_started(said, given)
        elif "failed" in said:
            future, ends, _ = self._starting.pop(said["failed"])
            if ends:
                ends.close()
            if not future.done():
                future.set_exception(
                    SessionTrouble(f"session {self.name} could start nothing: {said['why']}")
                )
        elif "ended" in said:
            streams = self._running[said["ended"]]
            self._conclude(streams, self._exit_of(streams, said, ""))
        elif not self._ready.done():
            self._ready.set_result(None)

    def _has_started(self, said: dict[str, Any], given: list[int]) -> None:
        future, ends, asked = self._starting.pop(said["started"])
        streams = self._running[said["pid"]] = Streams(said["pid"], asked)
        if ends:
            streams.take(*ends.taken())
        elif given:
            (terminal,) = given
            os.set_inheritable(terminal, False)
            streams.take({"pty": terminal}, terminal)
        else:
            streams.take({}, None)
            self.kill(streams, "failed")
            refuse(future, SessionTrouble(f"session {self.name} has no terminal: {_FULL}"))
            return
        if timeout := asked.get("timeout"):
            streams.timer = self._loop.call_later(timeout, self.kill, streams, "timeout")
        if future.done():  # its caller has gone
            self.kill(streams, "hung_up")
        else:
            future.set_result(streams)

    def kill(self, streams: Streams, why: str) -> None:
        if streams.exit is None:
            streams.killed_for = streams.killed_for or why
            task = self._loop.create_task(self._signalled(streams.pid, signal.SIGKILL))
            self._killing.add(task)
            task.add_done_callback(self._killing.discard)

    async def _signalled(self, pid: int, number: int) -> None:
        with contextlib.suppress(SessionGone):
            await self._line.post({"signal": pid, "number": number})

    def _exit_of(self, streams: Streams, said: dict[str, Any], why: str) -> dict[str, Any]:
        code = os.waitstatus_to_exitcode(said["status"])
        refused = _complaint(said.get("said", ""))
        reason = why or said.get("limit") or refused.get("why", "")
        if streams.killed_for and code == -signal.SIGKILL:
            reason = streams.killed_for
        return {
            "code": code if code >= 0 else None, "signal": -code if code < 0 else None,
            "why": reason, "message": refused.get("message", ""),
            "seconds": time.time() - streams.began,
        }  # fmt: skip

    def _conclude(self, streams: Streams, end: dict[str, Any]) -> None:
        self._running.pop(streams.pid, None)
        if "argv" in streams.about:
            self._ended.put(streams.pid, streams)
        streams.conclude(end)

    def find(self, which: int | str, *, ended: bool = False) -> Streams:
        """Find a command by its number or tag; the last one that has it. Raises `ProcessGone`."""
        known = [*self._ended.values()] if ended else []
        for streams in reversed([*known, *self._running.values()]):
            if which == streams.pid or (which and which == streams.about.get("tag")):
                return streams
        raise ProcessGone(f"session {self.name} runs no process {which!r}; list those it runs")

    def running(self) -> list[Streams]:
        """The commands; calls on files are not listed."""
        return [streams for streams in self._running.values() if "argv" in streams.about]

    async def signal(self, which: int | str, number: int) -> None:
        await self._line.post({"signal": self.find(which).pid, "number": number})

    async def usage(self) -> dict[str, Any]:
        return await self._line.ask("usage")

    async def listen(self) -> socket.socket:
        """A listening socket of its own network, whose port is that of the proxy from now on."""
        said = await self._line.ask("listen")
        if "why" in said:
            raise SessionTrouble(f"session {self.name} cannot have a proxy: {said['why']}")
        if not (given := said.get("given")):
            raise SessionTrouble(f"session {self.name} cannot have a proxy: {_FULL}")
        (at,) = given
        os.set_inheritable(at, False)
        return socket.socket(fileno=at)

    async def frozen(self) -> list[int] | None:
        """All that it has written, as mounts that never change. None where it must be copied."""
        said = await self._line.ask("freeze")
        if said["refused"]:
            return None
        shared = list(said.get("given", []))
        if len(shared) < said["levels"]:
            for at in shared:
                os.close(at)
            raise SessionTrouble(f"session {self.name} was not forked: {_FULL}")
        return shared

    async def enter(self, shared: Sequence[int] = ()) -> None:
        """Enter its root, with another session's files: those, or what was copied before."""
        if trouble := (await self._line.ask("enter", shared)).get("failed_to"):
            raise SessionTrouble(f"session {self.name} could not be forked: {trouble}")


async def inherited(parent: KeptSession, child: KeptSession) -> None:
    """Give a session the files of another one: shared if nothing runs in the parent, else
    copied."""
    shared = await parent.frozen()
    if shared is None:
        await _copied(parent, child)
    else:
        try:
            await child.enter(shared)
        finally:
            for at in shared:
                os.close(at)


async def _copied(parent: KeptSession, child: KeptSession) -> None:
    """Copy the parent's files to the child; the hub does not read what passes between them."""
    over = child.start_from is not None
    user = "0" if over else ""  # who may read and give away all of it
    with contextlib.ExitStack() as unused:
        unpacking = unused.enter_context(contextlib.closing(Ends(stdin=True)))
        target, unpacking.input = unpacking.input, None
        packing = unused.enter_context(contextlib.closing(Ends(stdin=False, target=target)))
        at_work = [
            await child.start({"call": "unpack", "given": {}, "user": user}, unpacking),
            await parent.start({"call": "pack", "given": {"over": over}, "user": user}, packing),
        ]
    for streams in at_work:
        await streams.ended.wait()
        if streams.exit is None or streams.exit["code"] != 0:
            said = json.loads(streams.words or b"{}")
            raise OSError(said.get("errno", errno.EIO), said.get("why", "the copy was cut"))
    if child.start_from:
        await child.enter()


def _complaint(said: str) -> dict[str, str]:
    """The complaint of a command that did not begin. What cannot be read costs the command its
    reason alone."""
    try:
        return {name: str(text) for name, text in json.loads(said or "{}").items()}
    except (ValueError, AttributeError, RecursionError):
        return {}


def _environment(about: dict[str, Any], level: str, start: ImageStart | None) -> dict[str, str]:
    if start:
        return {**start.env(), **about["env"]}
    known = {"USER": _USER, "LOGNAME": _USER} if level == "ns" else {}
    return {**known, **about["env"]}

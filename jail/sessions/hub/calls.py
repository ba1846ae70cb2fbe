"""A call to the hub: its connection, what may be asked by it, and how it is refused."""

import asyncio
import select
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from jail.errors import LimitRefused, SandboxError, SandboxUnavailable
from jail.images import ImageError
from jail.inside.place import Refused
from jail.inside.program import check_environment
from jail.jails import Jails
from jail.limits import CAPS, MB, Limits
from jail.sessions.errors import SessionRefused, SessionTrouble
from jail.sessions.hub.streams import Streams, require_room
from jail.sessions.launch import valid
from jail.sessions.settings import LONGEST, with_disk
from jail.sessions.wire import PROGRAM, check_size, packed, receive, receive_call, send

_MOST_TAGS = 64
_MOST_ARGUMENTS = 2 << 20  # bytes, as the kernel has it
T = TypeVar("T")


class Call:
    """A call and its connection."""

    def __init__(
        self, header: dict[str, Any], body: bytes,
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter,
    ) -> None:  # fmt: skip
        self.header, self.body = header, body
        self.reader, self.writer = reader, writer

    def require_room(self) -> None:
        """Require room for what is asked for. Raises `TooManySessions`."""
        require_room(self.writer.get_extra_info("socket").fileno())

    def say(self, **header: Any) -> None:
        self.writer.write(packed(header))

    async def answer(self, **header: Any) -> None:
        await send(self.writer, header)

    async def hand_over(self, session: dict[str, Any]) -> None:
        """Answer with the new session, and wait until the caller knows of it. Raises
        `ConnectionError` if the caller has gone before."""
        await self.answer(session=session)
        await receive_call(self.reader)

    async def hung_up(self) -> None:
        """Wait until the caller has hung up. Its connection says so itself only to who reads it."""
        if self.writer.transport.is_closing():
            return
        loop, gone = asyncio.get_running_loop(), asyncio.Event()
        with select.epoll() as watch:
            watch.register(self.writer.get_extra_info("socket"), select.EPOLLRDHUP)
            loop.add_reader(watch, gone.set)
            try:
                await gone.wait()
            finally:
                loop.remove_reader(watch)

    async def program(self) -> dict[str, Any]:
        """Receive the request for a program, or one of its cases."""
        header, _ = await receive(self.reader, PROGRAM)
        return header

    async def while_heard(
        self, work: Coroutine[Any, Any, T], listening: Coroutine[Any, Any, object] | None = None
    ) -> T:
        """Do some work, which is cancelled when the caller hangs up. The caller says nothing
        meanwhile, unless `listening` takes what it says; that ends when the caller does."""
        at_work = asyncio.ensure_future(work)
        gone = asyncio.ensure_future(listening or self.reader.read(1))
        try:
            await asyncio.wait([at_work, gone], return_when=asyncio.FIRST_COMPLETED)
            if not at_work.done():
                raise ConnectionError("the caller has gone")
            if at_work.cancelled():
                raise SessionTrouble("it was ended by its name while it was opened")
            return at_work.result()
        finally:
            for task in (at_work, gone):
                task.cancel()
            await asyncio.wait([at_work, gone])


def refused(problem: SandboxError | ImageError) -> dict[str, Any]:
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


def check_request(about: dict[str, Any], jails: Jails, default: Limits) -> Limits:
    """The limits of a session. Raises `SessionRefused` for one that can never be."""
    if about["image"] and jails.level != "ns":
        raise SessionRefused(
            f"image: a root of its own needs PENSTOCK_SANDBOX_LEVEL=ns; this is "
            f"{jails.level}, which has no mount namespaces"
        )
    if about["name"] and not valid(about["name"]):
        raise SessionRefused(
            f"name {about['name']!r:.100}: letters, digits, _ . - only, in 255 bytes"
        )
    if len(about["tags"]) > _MOST_TAGS:
        raise SessionRefused(f"tags: {len(about['tags'])}, above {_MOST_TAGS}")
    check_variables(about["env"])
    for name, seconds in (("ttl", about["ttl"]), ("idle", about["idle"])):
        check_seconds(name, seconds)
    for name in ("memory_mb", "disk_mb", "processes"):
        if (asked := about[name]) is not None and asked < 1:
            raise SessionRefused(f"{name} is {asked!r:.50}; it must be at least 1")
    disk = (about["disk_mb"] or 0) * MB
    try:
        limits = with_disk(default, disk) if disk else default
        memory = (about["memory_mb"] or 0) * MB or limits.memory
        processes = about["processes"] or limits.processes
        limits = replace(limits, memory=memory, processes=processes, cpu=CAPS.cpu, wall=1.0)
        return limits.within(jails.caps)
    except LimitRefused as refusal:
        raise SessionRefused(str(refusal)) from None


def check_variables(env: dict[str, str]) -> None:
    try:
        check_environment(env)
    except Refused as refusal:
        raise SessionRefused(f"{refusal!s:.200}") from None


def check_seconds(name: str, seconds: float | None) -> None:
    if seconds is not None and not 0 < seconds <= LONGEST:
        raise SessionRefused(
            f"{name} is {seconds!r:.50} s; it must be above 0 and at most {LONGEST:g}, 30 days"
        )


def check_command(asked: dict[str, Any]) -> None:
    """Check a command before it starts. Raises `SessionRefused` for what no process can be
    given."""
    if "call" in asked:
        return
    argv = asked["argv"]
    if not argv or not all(isinstance(word, str) for word in argv):
        raise SessionRefused("argv: a command is a list of at least one word")
    check_variables(asked["env"])
    words = [*argv, *asked["env"], *asked["env"].values(), asked["cwd"]]
    if any("\0" in word for word in words):
        raise SessionRefused("argv, cwd: no word of a command can have a zero byte in it")
    if sum(map(len, words)) > _MOST_ARGUMENTS:
        raise SessionRefused(f"argv, env: more than {_MOST_ARGUMENTS:,} bytes; send a file")
    if (timeout := asked.get("timeout")) is not None and not timeout > 0:
        raise SessionRefused(f"timeout is {timeout!r:.50}; it must be above 0")
    if size := asked.get("terminal"):
        check_size(size)

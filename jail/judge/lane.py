"""A lane runs a built program on one case after another, never two at once.

At the level `ns` a jail stays from case to case, as long as none drives it over a limit: each case
is a fork of a process that none can reach (`inside/template.py`). At the weaker levels, which have
no process that is out of reach, each case has a jail of its own.
"""

import array
import asyncio
import contextlib
import fcntl
import json
import os
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import FileIO

from jail.inside import wire
from jail.inside.job import CASES
from jail.inside.root import HOME, PROGRAM
from jail.jails import Jails, header_of, step_of
from jail.judge.builds import Build
from jail.limits import Limits
from jail.outcome import Outcome, Step
from jail.server import receive

_FRAMING = 1 << 16
MOST_CHECK = 8 << 10  # characters, which go with a case's order
_GRACE = 30.0  # beyond a case's own time, for its jail to report
_SEALS = 1 | 2 | 4 | 8  # no further seal, no shrink, no grow, no write
_MAIN = "main_of_this_case.py"
# Of the standard library, what programs for such tasks import; without effects of their own.
_WARM = frozenset({
    "array", "bisect", "cmath", "collections", "copy", "dataclasses", "datetime", "decimal",
    "enum", "fractions", "functools", "heapq", "io", "itertools", "json", "math", "operator",
    "queue", "random", "re", "statistics", "string", "struct", "typing",
})  # fmt: skip
_IMPORTS = re.compile(r"^[ \t]*(?:from[ \t]+(\w+)|import[ \t]+([\w ,]+))", re.MULTILINE)


class LaneLost(Exception):
    """The jail ended without a word about the case, or refused it; `outcome` says more."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.error)
        self.outcome = outcome


@dataclass(frozen=True)
class Errand:
    """An errand is one case as a lane needs it; `files` are put into its folder beside the task's
    own."""

    cpu: float
    wall: float
    memory: int
    output: int
    patient: bool = False  # by the clock it is ended only if it waits, not for want of a processor
    stdin: bytes = b""
    files: Mapping[str, bytes] = field(default_factory=dict)
    text: str = ""  # a program of its own, in place of the build's: Python's only
    marks: bool = False  # whether it is a script that must come to its end
    calls: bool = False  # and whose functions are called, as its stdin says
    check: str = ""  # code that runs in its namespace once it has run; only where a jail stays
    ends: tuple[FileIO, FileIO] | None = None  # for stdin and stdout; closed here once it has them


class Lane:
    """A lane serves one build; `arguments` are put behind its command, `given` beside it each
    time."""

    def __init__(
        self,
        jails: Jails,
        build: Build,
        limits: Limits,
        given: Mapping[str, bytes],
        arguments: Sequence[str] = (),
        life: float = 3600.0,
    ) -> None:
        self._jails = jails
        self._build = build
        self._limits = limits
        self._given = given
        self._arguments = list(arguments)
        self._life = life
        self._stack = contextlib.AsyncExitStack()
        self._channel: socket.socket | None = None
        self._ending: asyncio.Future[Outcome] | None = None
        self._stays = jails.level == "ns"

    async def run(self, errand: Errand) -> Step:
        """Run one errand, in the lane's jail or in a jail of its own. Raises `LaneLost` if the
        sandbox failed, and not the case."""
        limits = replace(self._limits, memory=errand.memory, output=errand.output)
        if limits != self._limits:
            await self.close()
            self._limits = limits
        files = {**self._given, **errand.files}
        if errand.text:
            files[_MAIN] = errand.text.encode(errors="surrogatepass")
        try:
            if self._stays:
                return await self._in_the_same_jail(errand, files)
            return await self._in_a_jail_of_its_own(errand, files)
        except (OSError, ValueError, TimeoutError) as problem:
            lost = await self._why() or Outcome(
                "infrastructure", self._jails.level, error=f"the jail gave no report: {problem!r}"
            )
            raise LaneLost(lost) from None

    async def _in_the_same_jail(self, errand: Errand, files: Mapping[str, bytes]) -> Step:
        channel = await self._open()
        order = {
            "cpu": errand.cpu,
            "wall": errand.wall,
            "patient": errand.patient,
            "script": errand.text and f"{HOME}/{_MAIN}",
            "files": bool(files),
            "stdout": errand.ends is not None,
            "mark": errand.marks,
            "calls": errand.calls,
            "check": errand.check,
        }
        with contextlib.ExitStack() as held:
            for end in errand.ends or ():
                held.enter_context(end)
            stdin = errand.ends[0].fileno() if errand.ends else None
            given = [held.enter_context(_sealed(errand.stdin)) if stdin is None else stdin]
            if files:
                packed = wire.pack({"files": list(files)}, list(files.values()))
                given.append(held.enter_context(_sealed(packed)))
            if errand.ends:
                given.append(errand.ends[1].fileno())
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", given))]
            message = json.dumps(order, ensure_ascii=False).encode(errors="surrogatepass")
            channel.sendmsg([message], rights)
        async with asyncio.timeout(None if errand.patient else errand.wall + _GRACE):
            said = await receive(channel, 2 * self._limits.output + _FRAMING)
        facts, blobs = wire.unpack(said)
        if facts.pop("spoilt"):
            await self.close()
        return step_of(facts, blobs)

    async def _open(self) -> socket.socket:
        if self._channel is not None:
            return self._channel
        build, limits = self._build, self._limits
        command = build.command(self._jails.config.python, self._given, limits.memory)
        own = build.language.limits(limits)
        header = header_of(own, build.files, (), build.language.env, (), (), build.executable)
        header |= {
            "argv": command and [*command, *self._arguments],
            "script": "" if command else f"{PROGRAM}/{build.script}",
            "warm": [] if command else _to_warm(build),
            "arguments": self._arguments,
        }
        request = wire.pack(header, [b"", *build.files.values()])
        room = replace(limits, processes=limits.processes + 1)  # the template is one
        opening = self._jails.channel(CASES, request, room, self._life)
        channel, self._ending = await self._stack.enter_async_context(opening)
        self._channel = channel
        return channel

    async def _why(self) -> Outcome | None:
        """The jail's own last words, if it has said any."""
        ending, self._ending = self._ending, None
        if ending is not None:
            if self._channel is not None:
                self._channel.close()
            await asyncio.wait([ending], timeout=_GRACE)
            if ending.done() and not ending.cancelled() and ending.result().error:
                return ending.result()
        return None

    async def _in_a_jail_of_its_own(self, errand: Errand, files: Mapping[str, bytes]) -> Step:
        build = self._build
        all_files = {**files, **build.files}
        argv = build.command(self._jails.config.python, files, errand.memory, folder="")
        step = {
            "argv": argv and [*argv, *self._arguments],
            "script": _MAIN if errand.text else build.script,
            "arguments": self._arguments,
            "wall": errand.wall,
            "patient": errand.patient,
            "mark": errand.marks,
            "calls": errand.calls,
        }
        limits = replace(self._limits, cpu=errand.cpu, wall=errand.wall)
        own = build.language.limits(limits)
        header = header_of(own, all_files, (), build.language.env, [step], (), build.executable)
        request = wire.pack(header, [errand.stdin, *all_files.values()])
        patience = self._life if errand.patient else None
        outcome = await self._jails.exchange(request, limits, compiles=False, patience=patience)
        if outcome.run is None:
            raise LaneLost(outcome)
        step_taken = outcome.run
        if step_taken.status == "finished" and step_taken.cpu > errand.cpu:
            step_taken = replace(step_taken, status="time_limit", return_code=None)
        return step_taken

    async def close(self) -> None:
        self._channel = self._ending = None
        await self._stack.aclose()


def _to_warm(build: Build) -> list[str]:
    text = build.files[build.script].decode(errors="replace")
    found = {
        name.split(" ")[0]
        for one, several in _IMPORTS.findall(text)
        for name in [one, *map(str.strip, several.split(","))]
    }
    return sorted(found & _WARM)


@contextlib.contextmanager
def _sealed(content: bytes) -> Iterator[int]:
    """A file that can be read, and never be written to."""
    at = os.memfd_create("case", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(at, view) :]
        os.lseek(at, 0, os.SEEK_SET)
        fcntl.fcntl(at, fcntl.F_ADD_SEALS, _SEALS)
        yield at
    finally:
        os.close(at)

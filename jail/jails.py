"""Hostile programs on this machine, each in a jail of its own.

    async with Jails() as jails:
        outcome = await jails.run(Program("print(1)"))

A program that fails is an outcome. So is our own failure (`infrastructure`), which
says nothing about the program and is worth another try.
"""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Self

from jail import languages
from jail.cgroups.cgroups import Hierarchy
from jail.cgroups.group import Group
from jail.errors import LimitRefused, SandboxUnavailable
from jail.inside import wire
from jail.inside.job import PROGRAM, SESSION
from jail.isolation import levels, selftest
from jail.languages import Language, LanguageAbsent
from jail.launch import ServerConfig
from jail.limits import CAPS, DEFAULTS, Limits, room_for_descriptors
from jail.notebook import Notebook
from jail.outcome import Outcome, Program, Step
from jail.server import ForkServer, JailLost, ServerGone

log = logging.getLogger(__name__)

_NO_FILES: Mapping[str, bytes] = MappingProxyType({})
_STARTS = 3  # tries, if the fork server is killed in each: by the kernel for want of memory, say
_FRAMING = 1 << 20  # the report's header and the slack that a cap on it needs


class Jails:
    """Jails run programs, isolated as the configuration's level says, at most `concurrency` at
    once."""

    def __init__(
        self,
        config: ServerConfig | None = None,
        *,
        caps: Limits = CAPS,
        concurrency: int | None = None,
        use_cgroups: bool = True,
    ) -> None:
        self.config = config or ServerConfig()
        self.level = self.config.level
        most_open = max(DEFAULTS.open_files, room_for_descriptors() // 4)
        self.caps = replace(caps, open_files=min(caps.open_files, most_open))
        self.concurrency = concurrency or 4 * (os.cpu_count() or 1)
        self._use_cgroups = use_cgroups
        self.slots = asyncio.Semaphore(self.concurrency)
        self._starting = asyncio.Lock()
        self._closed = False
        self._servers: dict[ServerConfig, ForkServer] = {}
        self._ending: set[asyncio.Task[None]] = set()  # fork servers
        self._hierarchy: Hierarchy | None = None
        self.lacking: list[str] = []  # modules that a language needs and its interpreter has not
        # Folders without an overlay, with the reason: locks in them reach the machine.
        self.not_overlaid: dict[str, str] = {}
        self.restarts = 0
        self.findings: list[selftest.Finding] = []  # of the self-test, each one contained

    @property
    def languages(self) -> list[str]:
        """The languages that run here; exact once it has started."""
        return languages.installed(self.lacking)

    @property
    def memory_by(self) -> str:
        """The means that holds a tree to its memory: a cgroup, or sampling."""
        return self._hierarchy.kind if self._hierarchy else "sampling"

    @property
    def cgroups(self) -> list[str]:
        """The marks beside which the groups of its programs are made."""
        marks = self._hierarchy.marks if self._hierarchy else []
        return [str(mark.folder) for mark in marks]

    def show_headers(self, folder: str) -> None:
        """Let programs read what is in this folder; to be called before the jails start."""
        self.config = replace(self.config, headers=folder)

    async def start(self) -> Self:
        """Start and test it. Raises `SandboxUnavailable` if a program could get out."""
        if self.level == "none":
            log.warning("%s", levels.UNCONFINED)
        if (most := room_for_descriptors()) < self.caps.open_files:
            raise SandboxUnavailable(
                f"a program may have {self.caps.open_files} files open, and this process {most}",
                "Start it with a higher limit: `ulimit -n 4096`",
            )
        self._closed = False
        try:
            await self._start()
        except BaseException:  # also if nobody waits for it any more
            await self.close()
            raise
        for path, why in self.not_overlaid.items():
            log.warning("a program's file locks below %s can slow down the machine: %s", path, why)
        return self

    async def _start(self) -> None:
        if self._use_cgroups:
            self._hierarchy = Hierarchy.find()
        for tries_left in reversed(range(_STARTS)):
            server = None
            try:
                server = await self._live_server()
                self.findings = await selftest.check(self.run, self.level, self.not_overlaid)
                return
            # OSError: not even the test could be set up
            except (SandboxUnavailable, ServerGone, OSError) as problem:
                killed = isinstance(problem, ServerGone) or (server and await server.was_killed())
                if not (killed and tries_left):
                    raise levels.unavailable(self.level, str(problem)) from None
                log.warning("the sandbox is started once more: its fork server was killed")

    async def run(self, program: Program) -> Outcome:
        """Run one program, start to end. What goes wrong is in the outcome, whosever doing it
        was."""
        try:
            language = languages.find(program.language, self.lacking)
            limits = program.limits.within(self.caps)
            request = self._request(program, language, limits)
        except (LimitRefused, LanguageAbsent) as refusal:
            return Outcome("refused", self.level, error=str(refusal), reason=refusal.reason)
        async with self.slots:
            return await self.exchange(request, limits, compiles=bool(language.compile))

    @contextlib.asynccontextmanager
    async def session(
        self, limits: Limits, files: Mapping[str, bytes] = _NO_FILES, fetch: Sequence[str] = ()
    ) -> AsyncIterator[Notebook]:
        """An interpreter that runs cell after cell, besides the `concurrency` of programs."""
        limits.within(self.caps)
        step = {"argv": [], "script": "", "wall": limits.wall}
        header = header_of(limits, files, fetch, {}, [step])
        request = wire.pack(header, [b"", *files.values()])
        async with self.channel(SESSION, request, limits) as (line, ending):
            yield Notebook(line, ending, limits)

    @contextlib.asynccontextmanager
    async def channel(
        self, what: str, request: bytes, limits: Limits, patience: float | None = None
    ) -> AsyncIterator[tuple[socket.socket, "asyncio.Future[Outcome]"]]:
        """A jail that is spoken with while it lives, and its end; it lives no longer than this."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            ending = asyncio.ensure_future(
                self.exchange(
                    request, limits, compiles=False, what=what, channel=theirs, patience=patience
                )
            )
            try:
                yield ours, ending
            finally:
                ours.close()
                ending.cancel()
                await asyncio.wait([ending])

    def _request(self, program: Program, language: Language, limits: Limits) -> bytes:
        script = languages.script(language, program.files, program.code)
        files = {**program.files, script: languages.source(language, program.code)}
        steps = languages.steps(
            language, script, program.files, self.config.python, limits.compile_wall, limits.wall,
            limits.memory, program.arguments,
        )  # fmt: skip
        env = {**language.env, **program.env}
        header = header_of(language.limits(limits), files, program.fetch, env, steps)
        return wire.pack(header, [program.stdin, *files.values()])

    async def exchange(
        self,
        request: bytes,
        limits: Limits,
        compiles: bool,
        what: str = PROGRAM,
        channel: socket.socket | None = None,
        patience: float | None = None,
        config: ServerConfig | None = None,
    ) -> Outcome:
        """Take one jail through its whole life, in a cgroup if there is one. With another
        configuration it is a jail of another fork server, which is started when it is first asked
        for."""
        patience = patience or limits.wall + limits.compile_wall
        most = 2 * limits.output + limits.fetched + _FRAMING
        hierarchy = self._hierarchy
        group: Group | None = None
        try:
            server = await self._live_server(config)
            group = hierarchy.make(limits) if hierarchy else None
            given = request, group.descriptors if group else (), patience, most, what, channel
            try:
                report, blobs = await server.exchange(*given)
            except ServerGone:
                server = await self._live_server(config)
                report, blobs = await server.exchange(*given)
            return self._outcome(report, blobs, compiles)
        except (JailLost, ServerGone, SandboxUnavailable, OSError) as problem:
            return Outcome("infrastructure", self.level, error=str(problem))
        finally:
            if group and hierarchy:
                hierarchy.discard(group)

    def _outcome(self, report: dict[str, Any], blobs: list[bytes], compiles: bool) -> Outcome:
        found = [step_of(facts, blobs) for facts in report.get("steps", [])]
        return Outcome(
            report["status"],
            self.level,
            compile=found.pop(0) if compiles and found else None,
            run=found[0] if found else None,
            files=dict(zip(report.get("files", []), blobs, strict=True)),
            refused_files=report.get("refused_files", {}),
            error=report.get("error", ""),
        )

    async def _live_server(self, config: ServerConfig | None = None) -> ForkServer:
        config = config or self.config
        async with self._starting:
            if self._closed:
                raise SandboxUnavailable("the sandbox is closed")
            server = self._servers.get(config)
            if server is None or server.dead:
                if server is not None:
                    self._let_go(config)
                    self.restarts += 1
                server = self._servers[config] = await ForkServer.start(config)
                if config == self.config:
                    self.lacking = server.ready["lacks"]
                    self.not_overlaid = server.ready["not_overlaid"]
            return server

    def _let_go(self, config: ServerConfig) -> None:
        """Close a server behind the caller's back, so that the next one may start at once."""
        ending = asyncio.ensure_future(self._servers.pop(config).close())
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """End it, and what runs in it: as our failure, as is whatever comes after."""
        async with self._starting:
            self._closed = True
            for config in list(self._servers):
                self._let_go(config)
            await asyncio.gather(*self._ending)
        if self._hierarchy is not None:
            self._hierarchy.close()
            self._hierarchy = None

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def header_of(
    limits: Limits,
    files: Mapping[str, bytes],
    fetch: Sequence[str],
    env: Mapping[str, str],
    steps: Sequence[Mapping[str, object]],
    made: Sequence[str] = (),
    executable: Sequence[str] = (),
) -> dict[str, Any]:
    return {
        "limits": limits.on_the_wire(),
        "files": list(files),
        "fetch": list(fetch),
        "env": dict(env),
        "steps": list(steps),
        "made": list(made),
        "executable": list(executable),
    }


def step_of(facts: dict[str, Any], blobs: list[bytes]) -> Step:
    """A step of its facts; its streams are taken from the front of `blobs`, as its init wrote
    them."""
    streams = {name: blobs.pop(0) for name in facts.pop("streams")}
    return Step(**{"stdout": b"", **streams, **facts})

"""A program's text becomes a build before its first case: compiled once, in a jail of its own.

A build is kept under its content: source, files beside it, command, and the compiler as it lies
on this machine. However many ask for the same at once, one compiles. No case is in reach of it.
"""

import asyncio
import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ground.recent import Recent
from jail import languages
from jail.inside import wire
from jail.inside.root import PROGRAM
from jail.jails import Jails, header_of
from jail.judge.header import ROOM, Header
from jail.judge.models import LONGEST
from jail.languages import Language
from jail.limits import Limits
from jail.outcome import Outcome, Step

_WALL = 3.0  # times the seconds of processor time that a compiler may take


class NotBuilt(Exception):
    """The compiler was not run to its end: the sandbox failed, or refused."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.error)
        self.outcome = outcome


@dataclass(frozen=True)
class Build:
    """The result of a compiler, from which cases are run; without `files` if it did not compile."""

    language: Language
    script: str
    files: Mapping[str, bytes]
    compiled: Step | None = None

    @property
    def ok(self) -> bool:
        return bool(self.files)

    @property
    def executable(self) -> list[str]:
        return [name for name in self.files if name == "main" and self.compiled]

    @property
    def size(self) -> int:
        said = (self.compiled.stdout, self.compiled.stderr) if self.compiled else ()
        return sum(map(len, [*self.files.values(), *said])) + 4096

    def command(
        self, python: str, given: Mapping[str, bytes], memory: int, folder: str = PROGRAM
    ) -> list[str]:
        """The command that runs the program in so much memory; empty for the warm interpreter."""
        names = list(given)
        return languages.arguments(self.language.run, self.script, names, python, memory, folder)


class Builds:
    """The builds of this size are kept together; what was not asked for longest goes first."""

    def __init__(self, jails: Jails, most_bytes: int) -> None:
        self._jails = jails
        self._most = most_bytes
        self._kept: Recent[Build] = Recent(most_bytes, lambda build: build.size)
        self._under_way: dict[tuple[str, Limits], _UnderWay] = {}
        self.header: Header | None = None  # while the sandbox runs, if there is room for it
        self.compiled = 0  # how many times a compiler was run

    async def of(
        self, language: str, code: str, given: Mapping[str, bytes], limits: Limits
    ) -> Build:
        """The build of a program, which may be kept from an earlier one. Raises `LanguageAbsent`,
        or `NotBuilt`."""
        found = languages.find(language, self._jails.lacking)
        script = languages.script(found, given, code)
        source = {script: languages.source(found, code)}
        if not found.compile:
            return Build(found, script, source)
        steps = languages.steps(
            found, script, given, self._jails.config.python, limits.compile_wall * _WALL, 1.0,
            limits.memory,
        )  # fmt: skip
        argv = [str(argument) for argument in _argv(steps[0])]
        key = _digest(argv, {**given, **source})
        if build := self._kept.use(key):
            return build
        joined = (key, limits)  # of one that compiles with less, the failure is its own
        if joined not in self._under_way:
            if self.header and not given:
                argv[1:1] = self.header.options(found, source[script], self._jails)
            step = {**steps[0], "argv": argv, "patient": True}
            compiling = self._compile(found, script, {**given, **source}, step, limits)
            self._under_way[joined] = _UnderWay(asyncio.ensure_future(compiling))
        build = await self._wait_for(joined)
        if build.ok and key not in self._kept:  # a failure may be the machine's
            self._keep(key, build)
        return build

    async def _wait_for(self, joined: tuple[str, Limits]) -> Build:
        """The last who gives up ends the compiler."""
        one = self._under_way[joined]
        one.waiting += 1
        try:
            return await asyncio.shield(one.task)
        finally:
            one.waiting -= 1
            if (one.task.done() or not one.waiting) and self._under_way.get(joined) is one:
                del self._under_way[joined]
                one.task.cancel()

    async def _compile(
        self,
        language: Language,
        script: str,
        files: Mapping[str, bytes],
        step: dict[str, object],
        limits: Limits,
    ) -> Build:
        """A compiler has its seconds of a processor. The clock ends it only if it waits."""
        limits = replace(
            limits, cpu=limits.compile_wall, compile_wall=limits.compile_wall * _WALL, wall=1.0
        )
        header = header_of(limits, files, (), language.env, [step], made=language.made)
        request = wire.pack(header, [b"", *files.values()])
        self.compiled += 1
        outcome = await self._jails.exchange(request, limits, compiles=True, patience=LONGEST)
        if outcome.compile is None:
            raise NotBuilt(outcome)
        ended = outcome.compile
        ok = ended.status == "finished" and ended.return_code == 0
        made = dict(outcome.files) if ok else {}
        if ok and not made:  # of a text without a class, say, or more than can be taken along
            refused = "".join(f"; {name}: {why}" for name, why in outcome.refused_files.items())
            said = f"the compiler ended well, and made no program{refused}\n"
            ended = replace(ended, return_code=1, stderr=ended.stderr + said.encode())
        return Build(language, script, made, ended)

    def open(self) -> str:
        """Name the folder that the sandbox is to show to compilers, before it starts; empty if
        none."""
        if self._most < ROOM or "cpp" not in self._jails.languages:
            return ""
        self.header = self.header or Header(tempfile.gettempdir())
        return self.header.folder

    async def close(self) -> None:
        header, self.header = self.header, None
        if header:
            await header.close()

    def _keep(self, key: str, build: Build) -> None:
        self._kept.most = self._most - (self.header.size if self.header else 0)
        self._kept.put(key, build)


@dataclass
class _UnderWay:
    task: "asyncio.Task[Build]"
    waiting: int = 0


def _argv(step: Mapping[str, object]) -> list[object]:
    argv = step["argv"]
    assert isinstance(argv, list)  # noqa: S101 - as `languages.steps` makes it
    return argv


def _digest(argv: list[str], files: Mapping[str, bytes]) -> str:
    """A digest of a compilation: its command, its files, and the compiler, which another one of the
    same name is not."""
    compiler = shutil.which(argv[0], path=languages.PATH)
    seen = os.stat(compiler) if compiler else None
    about = hashlib.sha256(repr((argv, seen and (seen.st_ino, seen.st_mtime_ns))).encode())
    for name, content in sorted(files.items()):
        about.update(repr((name, len(content))).encode() + content)
    return about.hexdigest()

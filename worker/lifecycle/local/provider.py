"""The local provider: session sandboxes in jails of this machine, all of them kept by one hub.

A sandbox is a session of `jail.sessions` with the same name. So any worker of this user on the
machine can use and end it, also after its maker has died.
"""

import asyncio
import contextlib
import errno
import socket
from collections.abc import AsyncIterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from ground import PenstockError, SettingError
from jail.errors import SandboxUnavailable
from jail.images import ImageError
from jail.sessions import (
    CommandRequest,
    LocalSessions,
    Network,
    SessionExists,
    SessionGone,
    SessionRefused,
    SessionRequest,
    SessionTrouble,
    TooManySessions,
)
from jail.sessions.launch import valid
from jail.sessions.session import MOST, LocalSession
from jail.sessions.settings import LONGEST, SessionSettings
from worker.lifecycle.local.folder import mark_of
from worker.lifecycle.provider import (
    FILE_ERRORS,
    Command,
    ExecResult,
    FileRefused,
    Kind,
    SandboxRef,
    SandboxSpec,
    Verdict,
)

_OPTIONS = ("disk_mb", "idle", "network", "processes")
_REFUSED = ("not_found", "not_executable", "no_folder")
_SOON = 1.0  # seconds until there may be room for another


class LocalError(Exception):
    """A local sandbox could not do what it was asked to."""


class Elsewhere(LocalError):
    """The sandbox is on another machine, and nothing here can reach it."""


class LocalProvider:
    """`image` names one of `penstock images`. Without, a sandbox has the machine's own programs.

    A spec's `options` may be `disk_mb`, `processes`, `idle`, in seconds, and `network`: the list
    of `host:port` that it may reach.
    """

    name = "local"

    def __init__(
        self, folder: Path | str | None = None, sessions: LocalSessions | None = None
    ) -> None:
        self._made = sessions
        where = sessions.folder if sessions else folder
        self._given = None if where is None else str(where)

    @cached_property
    def _sessions(self) -> LocalSessions:
        return self._made or LocalSessions(sessions=SessionSettings.load(**self._where()))

    def _where(self) -> dict[str, Any]:
        return {} if self._given is None else {"local_sandboxes": self._given}

    @cached_property
    def _root(self) -> Path:
        return SessionSettings.load(**self._where()).folder()

    @property
    def scope(self) -> str:
        """The scope has the folder's own mark: containers may share a host's name, and not this
        folder."""
        return f"local@{socket.gethostname()}:{self._root}:{mark_of(self._root)}"

    async def create(
        self, spec: SandboxSpec, *, name: str, tags: Mapping[str, str], ttl: float
    ) -> SandboxRef:
        if unknown := sorted(set(spec.options) - set(_OPTIONS)):
            raise SessionRefused(f"options: {unknown[0]!r:.100} is none of {', '.join(_OPTIONS)}")
        options = dict(spec.options)
        if allow := options.pop("network", None):
            try:
                options["network"] = Network(allow)
            except (TypeError, ValueError) as problem:
                raise SessionRefused(f"options: {problem}") from None
        await self._sessions.open(
            SessionRequest(
                name=name, tags=tags, env=spec.env, memory_mb=spec.memory_mb, image=spec.image,
                ttl=min(ttl, LONGEST), **options,
            )
        )  # fmt: skip
        return self._ref(name)

    async def wait_ready(self, ref: SandboxRef, timeout: float) -> None:  # noqa: ASYNC109
        """The sandbox is ready when it is made."""
        async with asyncio.timeout(timeout):
            await self._of(ref).info()

    async def open_runtime(self, ref: SandboxRef, timeout: float) -> SandboxRef:  # noqa: ASYNC109
        """The sandbox's hub answers already; `meta` says how strongly it is isolated."""
        async with asyncio.timeout(timeout):
            info = await self._of(ref).info()
        return SandboxRef(ref.id, ref.name, {**ref.meta, "isolation": info.isolation})

    async def close_runtime(self, ref: SandboxRef) -> None:
        return

    async def exec(self, ref: SandboxRef, command: Command) -> ExecResult:
        _check_size("its input", command.stdin)
        asked = CommandRequest(
            list(command.argv), dict(command.env), command.cwd, timeout=command.timeout
        )
        ran = await self._of(ref).run(asked, stdin=command.stdin)
        if ran.exit.why == "session_ended":
            raise SessionGone(f"sandbox {ref.name} ended during the command")
        if ran.exit.why == "timeout":
            return ExecResult(None, ran.stdout, ran.stderr, timed_out=True)
        code = ran.exit.code if ran.exit.code is not None else -(ran.exit.signal or 0)
        why = ran.exit.why
        refused = why if why in _REFUSED else ""
        return ExecResult(code, ran.stdout, ran.stderr + _said(why), refused=refused)

    async def read_file(self, ref: SandboxRef, path: str) -> bytes:
        content = bytearray()
        with _as_files_raise(path):
            async with contextlib.aclosing(self._of(ref).read(path)) as pieces:
                async for piece in pieces:
                    content += piece
                    if len(content) > MOST:
                        why = f"Larger than {MOST:,} bytes; read it in parts"
                        raise FileRefused(errno.EFBIG, why, path)
        return bytes(content)

    async def write_file(self, ref: SandboxRef, path: str, content: bytes) -> None:
        _check_size(path, content)
        with _as_files_raise(path):
            await self._of(ref).write(path, content)

    async def is_alive(self, ref: SandboxRef) -> bool:
        try:
            await self._of(ref).info()
        except (LocalError, PenstockError, OSError):
            return False
        return True

    async def terminate(self, id: str) -> None:
        await self._sessions.end(_name_here(id))

    async def find(self, name: str) -> SandboxRef | None:
        try:
            await self._sessions.get(_checked(name))
        except SessionGone:
            return None
        return self._ref(name)

    async def list(self, tags: Mapping[str, str]) -> AsyncIterator[SandboxRef]:
        async for info in self._sessions.list(tags):
            yield self._ref(info.name)

    def classify(self, problem: BaseException) -> Verdict:
        match problem:
            case SessionGone():  # of a creation: the hub, with all it had
                return Verdict(Kind.GONE, nothing_made=True)
            case SessionExists():
                return Verdict(Kind.EXISTS)
            case TooManySessions():
                return Verdict(Kind.THROTTLED, retry_after=_SOON, nothing_made=True)
            case SandboxUnavailable():
                advice = "`penstock doctor` says what is missing"
                return Verdict(Kind.FATAL, nothing_made=True, advice=advice)
            case SessionRefused() | SettingError() | ImageError():
                return Verdict(Kind.FATAL, nothing_made=True)
            case SessionTrouble() | OSError(errno=int()):  # said by the hub, which has ended it
                return Verdict(Kind.RETRY, nothing_made=True)
        return Verdict(Kind.RETRY)

    async def close(self) -> None:
        """Close nothing: nothing is kept open."""

    def _ref(self, name: str) -> SandboxRef:
        return SandboxRef(f"{name}@{socket.gethostname()}", name)

    def _of(self, ref: SandboxRef) -> LocalSession:
        return self._sessions.named(_name_here(ref.id))


@contextlib.contextmanager
def _as_files_raise(path: str) -> Any:
    """The error by its number, as `open` would have raised it here."""
    try:
        yield
    except FILE_ERRORS:
        raise
    except OSError as problem:
        raise FileRefused(problem.errno, problem.strerror, path) from None


def _said(why: str) -> bytes:
    """A sentence about a limit, which the command itself cannot report."""
    return f"\n[killed by its sandbox: {why}]\n".encode() if why.endswith("_limit") else b""


def _check_size(what: str, content: bytes) -> None:
    if len(content) > MOST:
        raise FileRefused(
            errno.EFBIG,
            f"{len(content):,} bytes; at most {MOST:,} fit into one call, so send it in parts",
            what,
        )


def _checked(name: str) -> str:
    """A record in Redis may say any name."""
    if not valid(name):
        raise LocalError(f"{name!r:.100} is not the name of a sandbox here")
    return name


def _name_here(id: str) -> str:
    name, _, machine = id.partition("@")
    if machine and machine != socket.gethostname():
        raise Elsewhere(f"{name} is on {machine}; there `penstock sandbox reap` can end it")
    return _checked(name)

"""The providers over a cloud's SDK have this in common: how a sandbox there is connected to, given
commands and files, found and judged. Each of them says how its SDK names these things."""

import asyncio
import errno
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from ground.backoff import retry_after_seconds
from ground.recent import Recent
from worker.lifecycle.clouds import shell
from worker.lifecycle.provider import Command, ExecResult, FileRefused, Kind, SandboxRef, Verdict

NAME = "penstock-name"  # the tag of a sandbox's name, at clouds whose sandboxes have none
LATER = 5.0  # seconds until there may be room, if the answer has no Retry-After
_CONNECTED = 1000  # sandboxes that one process remembers

Problems = type[BaseException] | tuple[type[BaseException], ...]
Judge = Callable[[Any], Verdict | None]

_ABSENT, _IS_FOLDER, _CLOSED, _LARGE = 66, 67, 68, 69
_MET = {
    _ABSENT: FileNotFoundError(errno.ENOENT, "No such file or directory"),
    _IS_FOLDER: IsADirectoryError(errno.EISDIR, "Is a directory"),
    _CLOSED: PermissionError(errno.EACCES, "Permission denied"),
    _LARGE: FileRefused(errno.EFBIG, f"Larger than {shell.MOST:,} bytes; read it in parts"),
}
_NO_FOLDER = f'test -d "$1" && exit {_IS_FOLDER}'
_FITS = f'test "$(wc -c < "$1")" -le {shell.MOST} || exit {_LARGE}'
# Looked at again: of one that has grown meanwhile, not all was passed.
_READ = (
    f'test -e "$1" || exit {_ABSENT}; {_NO_FOLDER}; test -r "$1" || exit {_CLOSED}; '
    f'{_FITS}; cat -- "$1" || exit; {_FITS}'
)
_WRITE = f'{_NO_FOLDER}; mkdir -p -- "$(dirname -- "$1")" && cat > "$1"'


class Cloud(ABC):
    """A provider whose sandboxes are reached by an SDK. What it does not define here is its own:
    `name`, `scope`, `create`, `terminate` and `list`."""

    folder = "/tmp"  # noqa: S108 - of a sandbox: where files of a command may be meanwhile
    # What the SDK raises for a sandbox that has ended, and what may mean that one has.
    gone: ClassVar[tuple[type[Exception], ...]] = ()
    doubtful: ClassVar[tuple[type[Exception], ...]] = ()
    # What exceptions mean: the first row that fits counts. A row may judge by itself.
    verdicts: ClassVar[Sequence[tuple[Problems, Verdict | Judge]]] = ()

    def __init__(self) -> None:
        self._opened: Recent[Any] = Recent(_CONNECTED)

    @abstractmethod
    async def reach(self, id: str) -> Any:
        """The SDK's object of a sandbox that lives. Raises one of `gone`."""

    @abstractmethod
    async def lives(self, id: str) -> bool:
        """Whether it runs. May raise."""

    @abstractmethod
    async def look_up(self, name: str) -> SandboxRef | None:
        """The living sandbox of that name. None, or one of `gone`, if there is none."""

    def inside(self, sandbox: Any) -> shell.Inside:
        """The SDK's own ways into a sandbox."""
        raise NotImplementedError

    async def disconnect(self, sandbox: Any) -> None:
        """Free what the SDK's object keeps open, if that is anything."""
        return

    async def wait_ready(self, ref: SandboxRef, timeout: float) -> None:  # noqa: ASYNC109
        """Wait until the sandbox runs a command."""
        async with asyncio.timeout(timeout):
            ran = await self.exec(ref, Command(["true"], timeout))
        if ran.exit_code != 0:
            raise shell.NoAnswer(f"`true` cannot be run in {ref.id}: {ran.stderr!r:.300}")

    async def open_runtime(self, ref: SandboxRef, timeout: float) -> SandboxRef:  # noqa: ASYNC109
        """The cloud answers for it."""
        return ref

    async def close_runtime(self, ref: SandboxRef) -> None:
        """Close our connection to it."""
        if (sandbox := self._opened.pop(ref.id, None)) is not None:
            await self.disconnect(sandbox)

    async def exec(self, ref: SandboxRef, command: Command) -> ExecResult:
        try:
            inside = self.inside(await self._sandbox(ref.id))
            return await shell.run(inside, command, self.folder)
        except self.doubtful:
            self._opened.pop(ref.id, None)
            await self.reach(ref.id)  # says so if it has ended
            raise

    async def exec_reading(self, ref: SandboxRef, command: Command) -> ExecResult:
        """Run a command whose output is a file, which must be whole."""
        return await self.exec(ref, command)

    async def read_file(self, ref: SandboxRef, path: str) -> bytes:
        command = Command(["sh", "-c", _READ, "sh", path], shell.FILE_WITHIN)
        return _done(ref, await self.exec_reading(ref, command), "read", path).stdout

    async def write_file(self, ref: SandboxRef, path: str, content: bytes) -> None:
        shell.check_size(path, content)
        command = Command(["sh", "-c", _WRITE, "sh", path], shell.FILE_WITHIN, stdin=content)
        _done(ref, await self.exec(ref, command), "write", path)

    async def is_alive(self, ref: SandboxRef) -> bool:
        try:
            return await self.lives(ref.id)
        except Exception:  # noqa: BLE001 - after any error, the sandbox was not seen alive
            return False

    async def find(self, name: str) -> SandboxRef | None:
        """Find a sandbox, also one that failed as it started, or has stopped: it exists until it is
        ended."""
        try:
            return await self.look_up(name)
        except self.gone:
            return None

    def classify(self, problem: BaseException) -> Verdict:
        for kinds, verdict in self.verdicts:
            if isinstance(problem, kinds):
                found = verdict if isinstance(verdict, Verdict) else verdict(problem)
                if found is not None:
                    return found
        return Verdict(Kind.RETRY)

    async def close(self) -> None:
        while self._opened:
            await self.disconnect(self._opened.popitem()[1])

    async def _sandbox(self, id: str) -> Any:
        known = self._opened.use(id)
        if known is None:
            known = await self.reach(id)
            # What gives way is not disconnected: a call that continues in it needs it to the end.
            self._opened.put(id, known)
        return known


def refused(advice: str = "") -> Verdict:
    """The verdict on a refusal: asking again changes nothing, and nothing was made."""
    return Verdict(Kind.FATAL, nothing_made=True, advice=advice)


def wait_after(headers: Any) -> float:
    """Seconds, by the Retry-After of an answer if it has one."""
    found = {str(name).lower(): text for name, text in (headers or {}).items()}
    seconds = retry_after_seconds(str(found.get("retry-after", "")))
    return LATER if seconds is None else seconds


def _done(ref: SandboxRef, ended: ExecResult, what: str, path: str) -> ExecResult:
    """Check how a command on a file ended. Raises what `open` would have raised."""
    if ended.timed_out:
        raise OSError(f"sandbox {ref.name}: timeout, cannot {what} {path}")
    if ended.exit_code != 0:
        met = _MET.get(ended.exit_code or 0)
        if met is not None:
            raise type(met)(met.errno, met.strerror, path)
        raise FileRefused(errno.EIO, ended.stderr.decode(errors="replace").strip(), path)
    return ended

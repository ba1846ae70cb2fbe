"""An open sandbox: what an agent's loop works with.

    async with lifecycle.open(SandboxSpec(image="python:3.12")) as sandbox:
        result = await sandbox.exec(["python", "-c", "print(1)"], timeout=30)

Its calls may come from any event loop or thread. The provider's own work is done on one loop of the
process. Neither a blocked caller nor a cancelled one holds that up.
"""

import asyncio
import errno
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from ground import tracing
from ground.numbers import check_number
from ground.process import from_thread, on_process_loop
from worker.lifecycle.box import Box
from worker.lifecycle.errors import CommandFailed, SandboxLost
from worker.lifecycle.provider import (
    FILE_ERRORS,
    Command,
    ExecResult,
    FileRefused,
    Kind,
    Provider,
    SandboxRef,
)

T = TypeVar("T")
_SPARE = 30.0  # seconds beyond a command's own timeout for the provider to say how it ended


class OpenSandbox:
    """Made by `SandboxLifecycle`. Its opener ends it."""

    def __init__(self, provider: Provider, box: Box) -> None:
        self._provider = provider
        self._box = box

    @property
    def id(self) -> str:
        """The provider's."""
        return self.ref.id

    @property
    def name(self) -> str:
        """The name that `penstock sandbox ls` shows."""
        return self._box.name

    @property
    def tags(self) -> Mapping[str, str]:
        """The tags that the sandbox carries at its provider, so that it can be found there."""
        return self._box.tags

    @property
    def meta(self) -> Mapping[str, Any]:
        """The provider's own facts about it, such as the address of its runtime."""
        return self.ref.meta

    @property
    def provider(self) -> Provider:
        return self._provider

    @property
    def ref(self) -> SandboxRef:
        """The sandbox's place at its provider."""
        if self._box.ref is None:
            raise SandboxLost(self.name, "it is not made so far")
        return self._box.ref

    @property
    def lost(self) -> bool:
        """Whether another process has ended it."""
        return bool(self._box.lost)

    async def exec(
        self,
        argv: Sequence[str],
        *,
        timeout: float = 60.0,  # noqa: ASYNC109
        cwd: str = "",
        env: Mapping[str, str] | None = None,
        stdin: bytes | str = b"",
    ) -> ExecResult:
        """Run one command. Raises `SandboxLost` if the sandbox is gone, else `CommandFailed`.

        A missing program exits with 127, and one that cannot be executed with 126.
        """
        if "\0" in cwd or any("\0" in word for word in argv):  # no program can be given that
            return ExecResult(
                126, stderr=b"a command has no zero bytes\n", refused="not_executable"
            )
        check_number("timeout", timeout)
        command = Command(list(argv), timeout, cwd, dict(env or {}), _as_bytes("its input", stdin))

        async def work() -> ExecResult:
            async with asyncio.timeout(timeout + _SPARE):
                return await self._provider.exec(self.ref, command)

        with tracing.span(f"exec {self._provider.name}") as span:
            span.set("penstock.sandbox", self.name)
            result = await self._asked(work)
            if result.exit_code is not None:
                span.set("process.exit.code", result.exit_code)
            return result

    async def read_file(self, path: str) -> bytes:
        """The content of a file. Raises as `open` does: `FileNotFoundError`, `IsADirectoryError`,
        …"""
        return await self._asked(lambda: self._provider.read_file(self.ref, path))

    async def write_file(self, path: str, content: bytes | str) -> None:
        """Make or replace a file, and the folders above it. Raises as `open` does."""
        data = _as_bytes(path, content)
        await self._asked(lambda: self._provider.write_file(self.ref, path, data))

    async def is_alive(self) -> bool:
        """Never raises."""
        return not self.lost and await on_process_loop(self._provider.is_alive(self.ref))

    async def _asked(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if self._box.lost:
            raise SandboxLost(self.name, self._box.lost)
        try:
            return await on_process_loop(work())
        except FILE_ERRORS:
            raise  # as `open` does: the sandbox is well
        except Exception as problem:
            # Only that is proof: one that cannot be reached may live.
            if self._provider.classify(problem).kind is Kind.GONE:
                self._box.lost = self._box.lost or f"it died: {problem}"
                raise SandboxLost(self.name, self._box.lost) from problem
            raise CommandFailed(self.name, problem) from problem

    @property
    def sync(self) -> "SyncSandbox":
        """A face of the sandbox for code that blocks."""
        return SyncSandbox(self)


def _as_bytes(what: str, content: bytes | str) -> bytes:
    try:
        return content.encode() if isinstance(content, str) else content
    except UnicodeEncodeError as problem:
        raise FileRefused(errno.EINVAL, f"the text is no UTF-8: {problem}", what) from None


class SyncSandbox:
    """The sandbox for threads, as `sandbox.sync` has it: its methods block."""

    def __init__(self, sandbox: OpenSandbox) -> None:
        self._sandbox = sandbox

    @property
    def id(self) -> str:
        return self._sandbox.id

    @property
    def name(self) -> str:
        return self._sandbox.name

    @property
    def meta(self) -> Mapping[str, Any]:
        return self._sandbox.meta

    @property
    def lost(self) -> bool:
        return self._sandbox.lost

    def exec(self, argv: Sequence[str], **options: Any) -> ExecResult:
        return from_thread(self._sandbox.exec(argv, **options))

    def read_file(self, path: str) -> bytes:
        return from_thread(self._sandbox.read_file(path))

    def write_file(self, path: str, content: bytes | str) -> None:
        from_thread(self._sandbox.write_file(path, content))

    def is_alive(self) -> bool:
        return from_thread(self._sandbox.is_alive())

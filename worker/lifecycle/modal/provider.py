"""The Modal provider, on Modal's own client.

A sandbox gets its name and tags in the very request that makes it. So one whose creation was never
answered is found again. How long Modal's client repeats a request that was throttled is bounded:
without that, a refusal looks like a creation that never ends.
"""

import asyncio
import math
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from ground.recent import Recent
from worker.lifecycle.clouds import shell
from worker.lifecycle.clouds.cloud import LATER, NAME, Cloud, refused
from worker.lifecycle.provider import (
    Command,
    ExecResult,
    Kind,
    SandboxRef,
    SandboxSpec,
    Verdict,
)

# Read by Modal's client at each request; an operator's own value wins.
os.environ.setdefault("MODAL_MAX_THROTTLE_WAIT", "30")

try:
    import modal
    import modal.exception as failures
except ImportError as missing:
    raise ImportError(
        f"Modal's client cannot be imported ({missing}): pip install 'penstock-rl[modal]'"
    ) from missing

APP = "penstock"
_KNOWN = 100_000  # names of sandboxes that one process remembers
# By a shell, whose 127 and 126 say that a program is missing, or cannot be executed.
_RUN = 'cd -- "${1:-.}" || exit 126; shift; exec "$@"'
_PIECE = 1 << 20
# A command that has ended may have left a child that holds its streams open. What comes in is read
# for this many seconds, and on for as long as it is more in that time than such a child says.
_LAST_WORDS = 2.0
_MANY_WORDS = 1 << 16
_CREDENTIALS = "Set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET, or run `modal token new`"


class ModalRefused(Exception):
    """Modal knows no such image, app or secret."""


def _exhausted(problem: Exception) -> Verdict:
    """The error has other meanings than a rate limit: no capacity, an answer that is too large."""
    refused = "rate limit" in str(problem).lower()
    return Verdict(Kind.THROTTLED, LATER, nothing_made=refused)


class ModalProvider(Cloud):
    """`options` of a spec are those of `modal.Sandbox.create`; its `command` is what it runs."""

    name = "modal"
    gone = (failures.NotFoundError,)
    verdicts = (
        (failures.AuthError, refused(_CREDENTIALS)),
        (failures.AlreadyExistsError, Verdict(Kind.EXISTS)),
        (ModalRefused, refused("Check the image's name")),
        (
            (
                failures.NotFoundError, failures.SandboxTerminatedError, failures.ConflictError,
                failures.SandboxTimeoutError,
            ),
            Verdict(Kind.GONE),
        ),
        (failures.ResourceExhaustedError, _exhausted),
        (
            (
                failures.PermissionDeniedError, failures.InvalidError, failures.ImageBuildError,
                failures.VersionError,
            ),
            refused(),
        ),
    )  # fmt: skip

    @property
    def scope(self) -> str:
        """The scope has the app, as names are looked up per app: another app's sandboxes are not
        found."""
        return self.name if self._app_name == APP else f"{self.name}:{self._app_name}"

    def __init__(self, app: str = APP, *, client: Any = None) -> None:
        super().__init__()
        self._app_name = app
        self._client = client
        self._app: Any = None
        self._names: Recent[str] = Recent(_KNOWN)

    async def create(
        self, spec: SandboxSpec, *, name: str, tags: Mapping[str, str], ttl: float
    ) -> SandboxRef:
        options = dict(spec.options)
        command = options.pop("command", ["sleep", str(math.ceil(ttl))])
        options |= {"cpu": spec.cpu} if spec.cpu else {}
        options |= {"memory": spec.memory_mb} if spec.memory_mb else {}
        try:
            made = await modal.Sandbox.create.aio(
                *command, app=await self._its_app(), name=name, image=_image(spec, options),
                tags={**tags, NAME: name}, timeout=math.ceil(ttl),
                env=dict(spec.env) or None, client=self._client, **options,
            )  # fmt: skip
        except failures.NotFoundError as missing:
            raise ModalRefused(str(missing)) from missing
        self._opened.put(made.object_id, made)
        return SandboxRef(made.object_id, name)

    async def open_runtime(self, ref: SandboxRef, timeout: float) -> SandboxRef:  # noqa: ASYNC109
        """Open the runtime: where its ports are reached from outside, if it has any."""
        tunnels = await (await self._sandbox(ref.id)).tunnels.aio(timeout=max(1, int(timeout)))
        if not tunnels:
            return ref
        urls = {str(port): tunnel.url for port, tunnel in tunnels.items()}
        return SandboxRef(ref.id, ref.name, {**ref.meta, "tunnels": urls})

    async def reach(self, id: str) -> Any:
        return await modal.Sandbox.from_id.aio(id, client=self._client)

    async def disconnect(self, sandbox: Any) -> None:
        await sandbox.detach.aio()

    async def lives(self, id: str) -> bool:
        return await (await self._sandbox(id)).poll.aio() is None

    async def look_up(self, name: str) -> SandboxRef:
        found = await modal.Sandbox.from_name.aio(self._app_name, name, client=self._client)
        return SandboxRef(found.object_id, name)

    async def exec(self, ref: SandboxRef, command: Command) -> ExecResult:
        return await self._exec(ref, command)

    async def _exec(self, ref: SandboxRef, command: Command, *, whole: bool = False) -> ExecResult:
        """`whole`: a command that leaves no child, and whose output is read to its end."""
        words = ["sh", "-c", _RUN, "sh", command.cwd, *command.argv]
        sandbox = await self._sandbox(ref.id)
        process = await sandbox.exec.aio(
            *words, timeout=max(1, math.ceil(command.timeout)), env=dict(command.env), text=False
        )
        out, err = bytearray(), bytearray()
        streams = (process.stdout, out), (process.stderr, err)
        reading = [asyncio.ensure_future(_read(*each)) for each in streams]
        feeding = asyncio.ensure_future(_feed(process.stdin, command.stdin))
        try:
            code = await process.wait.aio()
            if not whole:
                await _last_words(reading, (out, err))
            elif not await _all_words(reading, command.timeout):
                code = -1
        except failures.ExecTimeoutError:
            code = -1
        finally:
            for each in (feeding, *reading):
                each.cancel()
            # What they meet is cut off with the command.
            await asyncio.gather(feeding, *reading, return_exceptions=True)
        timed_out = code == -1  # the client says it so, if it does not raise
        denied = code == 126 and b"permission denied" in err.lower()  # the shell's words
        refused = "not_executable" if denied else ""
        return ExecResult(None if timed_out else code, bytes(out), bytes(err), timed_out, refused)

    async def exec_reading(self, ref: SandboxRef, command: Command) -> ExecResult:
        return await self._exec(ref, command, whole=True)

    async def terminate(self, id: str) -> None:
        sandbox = self._opened.pop(id, None)
        self._names.pop(id, None)
        try:
            if sandbox is None:
                sandbox = await self.reach(id)
            await sandbox.terminate.aio(wait=True)
            await self.disconnect(sandbox)
        except self.gone:
            return  # it has ended

    async def list(self, tags: Mapping[str, str]) -> AsyncIterator[SandboxRef]:
        app = await self._its_app()
        listed = modal.Sandbox.list.aio(app_id=app.app_id, tags=dict(tags), client=self._client)
        async for sandbox in listed:
            id = sandbox.object_id
            name = self._names.use(id)
            if name is None:  # a listing has no names; each sandbox is asked once
                name = (await sandbox.get_tags.aio()).get(NAME, "")
                self._names.put(id, name)
            yield SandboxRef(id, name)

    async def _its_app(self) -> Any:
        if self._app is None:
            self._app = await modal.App.lookup.aio(
                self._app_name, client=self._client, create_if_missing=True
            )
        return self._app


def _image(spec: SandboxSpec, options: dict[str, Any]) -> Any:
    """An image of Modal's as it is; a name is one of a registry."""
    given = options.pop("image", None) or spec.image
    return modal.Image.from_registry(given) if isinstance(given, str) and given else given or None


async def _feed(stdin: Any, content: bytes) -> None:
    """Write to a command's stdin in pieces: Modal's client holds no more than 16 MiB for it."""
    for at in range(0, len(content), _PIECE):
        stdin.write(content[at : at + _PIECE])
        await stdin.drain.aio()
    stdin.write_eof()
    await stdin.drain.aio()


async def _read(stream: Any, into: bytearray) -> None:
    """Read a stream to its end. No more of it is kept than an output may have."""
    async for piece in stream:
        into += piece[: shell.MOST - len(into)]


Reading = Sequence["asyncio.Future[None]"]


async def _all_words(reading: Reading, within: float) -> bool:
    """Whether both streams have ended. Raises what broke one of them off."""
    done, pending = await asyncio.wait(reading, timeout=within)
    for each in done:
        each.result()
    return not pending


async def _last_words(reading: Reading, heard: Sequence[bytearray]) -> None:
    """Read until both streams have ended, or say little more."""
    before = -_MANY_WORDS
    while sum(map(len, heard)) - before >= _MANY_WORDS:
        before = sum(map(len, heard))
        _, pending = await asyncio.wait(reading, timeout=_LAST_WORDS)
        if not pending:
            return

"""Session sandboxes at E2B, on its own SDK; at any server of its protocol too.

A sandbox there has no name: the name is in its metadata, with the tags, from its creation on. A
creation that is repeated carries the same idempotency key, so that it makes no second sandbox.
"""

import asyncio
import hashlib
import math
from collections.abc import AsyncIterator, Mapping
from typing import Any

from ground.recent import Recent
from worker.lifecycle.clouds import shell
from worker.lifecycle.provider import Command, ExecResult, Kind, SandboxRef, SandboxSpec, Verdict

try:
    import e2b
    from e2b.connection_config import ConnectionConfig
except ImportError as missing:
    raise ImportError(
        f"E2B's SDK cannot be imported ({missing}): pip install 'penstock-rl[e2b]'"
    ) from missing

_CLOUD = "e2b.app"
_NAME = "penstock-name"
_CONNECTED = 1000  # sandboxes that one process remembers
_CREDENTIALS = "Set E2B_API_KEY"
_LATER = 5.0  # seconds; the SDK has waited as the server's Retry-After says, and keeps it to itself
_TAKEN = (409, 422)  # its idempotency key was used: by an earlier request, with another body too
_REFUSED = (400, 401, 403, 404)


class E2bRefused(Exception):
    """The request asks for what E2B does not have."""


class E2bNameTaken(Exception):
    """A living sandbox has the name."""


class E2bProvider(shell.FilesByCommands):
    """A spec's `image` is a template. Its `options` are those of `e2b.AsyncSandbox.create`.

    `connection`: what the SDK takes in place of its variables, `api_key` or `domain`, say.
    """

    name = "e2b"

    def __init__(self, **connection: Any) -> None:
        self._connection = connection
        self._opened: Recent[e2b.AsyncSandbox] = Recent(_CONNECTED)

    @property
    def scope(self) -> str:
        """With the server, where that is not E2B's own."""
        where = ConnectionConfig(**self._connection).api_url
        return self.name if where == f"https://api.{_CLOUD}" else f"{self.name}:{where}"

    async def create(
        self, spec: SandboxSpec, *, name: str, tags: Mapping[str, str], ttl: float
    ) -> SandboxRef:
        if spec.cpu is not None or spec.memory_mb is not None:
            raise E2bRefused("cpu and memory_mb are set by an E2B template, not by a sandbox")
        if spec.name and await self.find(name):  # its idempotency key may have been used before
            raise E2bNameTaken(f"a sandbox called {name} lives")
        options = dict(spec.options)
        metadata = {**(options.pop("metadata", None) or {}), **tags, _NAME: name}
        key = None if spec.name else hashlib.sha256(name.encode()).hexdigest()
        made = await e2b.AsyncSandbox.create(
            spec.image or None, timeout=math.ceil(ttl), metadata=metadata,
            envs=dict(spec.env), idempotency_key=key, **self._connection | options,
        )  # fmt: skip
        self._opened.put(made.sandbox_id, made)
        return SandboxRef(made.sandbox_id, name)

    async def wait_ready(self, ref: SandboxRef, timeout: float) -> None:  # noqa: ASYNC109
        """Ready is what runs a command."""
        async with asyncio.timeout(timeout):
            await shell.ready(_Inside(await self._sandbox(ref.id)))

    async def open_runtime(self, ref: SandboxRef, timeout: float) -> SandboxRef:  # noqa: ASYNC109
        """E2B answers for it."""
        return ref

    async def close_runtime(self, ref: SandboxRef) -> None:
        self._opened.pop(ref.id, None)

    async def exec(self, ref: SandboxRef, command: Command) -> ExecResult:
        return await shell.run(_Inside(await self._sandbox(ref.id)), command)

    async def is_alive(self, ref: SandboxRef) -> bool:
        try:
            info = await e2b.AsyncSandbox.get_info(ref.id, **self._connection)
        except Exception:  # noqa: BLE001 - after any error, the sandbox was not seen alive
            return False
        return info.state is e2b.SandboxState.RUNNING

    async def terminate(self, id: str) -> None:
        self._opened.pop(id, None)
        try:
            await e2b.AsyncSandbox.kill(id, **self._connection)
        except e2b.SandboxException as problem:
            if problem.status_code != 400:  # what cannot be the id of a sandbox
                raise

    async def find(self, name: str) -> SandboxRef | None:
        found = [ref async for ref in self.list({_NAME: name})]
        return found[0] if found else None

    async def list(self, tags: Mapping[str, str]) -> AsyncIterator[SandboxRef]:
        """Paused ones too: they cost, and nobody else ends them."""
        query = e2b.SandboxQuery(metadata=dict(tags))
        pages = e2b.AsyncSandbox.list(query, **self._connection)
        while pages.has_next:
            for info in await pages.next_items():
                yield SandboxRef(info.sandbox_id, info.metadata.get(_NAME, ""))

    def classify(self, problem: BaseException) -> Verdict:
        match problem:
            case e2b.AuthenticationException():
                return Verdict(Kind.FATAL, nothing_made=True, advice=_CREDENTIALS)
            case e2b.RateLimitException() | e2b.ServiceBusyException():
                return Verdict(Kind.THROTTLED, retry_after=_LATER, nothing_made=True)
            case e2b.SandboxNotFoundException() | e2b.SandboxNotRunningException():
                return Verdict(Kind.GONE)
            case E2bNameTaken():
                return Verdict(Kind.EXISTS)
            case E2bRefused() | e2b.InvalidArgumentException():
                return Verdict(Kind.FATAL, nothing_made=True)
            case TypeError():  # an option that the SDK does not know
                return Verdict(Kind.FATAL)
            case e2b.TemplateException():
                return Verdict(Kind.FATAL, advice="Build the template again")
            case e2b.SandboxException(status_code=int() as status) if status in _TAKEN:
                return Verdict(Kind.EXISTS)
            case e2b.SandboxException(status_code=int() as status) if status in _REFUSED:
                return Verdict(Kind.FATAL, nothing_made=True, advice="Check the template's name")
        return Verdict(Kind.RETRY)

    async def close(self) -> None:
        """The SDK keeps its connections for the whole process."""
        while self._opened:
            self._opened.popitem()

    async def _sandbox(self, id: str) -> e2b.AsyncSandbox:
        known = self._opened.use(id)
        if known is None:
            # With the shortest of timeouts: to connect may prolong a sandbox, and shortens none.
            known = await e2b.AsyncSandbox.connect(id, timeout=1, **self._connection)
            self._opened.put(id, known)
        return known


class _Inside:
    def __init__(self, sandbox: e2b.AsyncSandbox) -> None:
        self._sandbox = sandbox

    async def line(self, line: str, within: float) -> str:
        try:
            return (await self._sandbox.commands.run(line, timeout=within)).stdout
        except e2b.CommandExitException as ended:
            return str(ended.stdout)

    async def put(self, path: str, content: bytes) -> None:
        await self._sandbox.files.write(path, content, request_timeout=shell.FILE_WITHIN)

    async def get(self, path: str) -> bytes:
        """A program that is in there too may have put a larger one in its place."""
        within, content = shell.FILE_WITHIN, bytearray()
        reading = await self._sandbox.files.read(path, "stream", request_timeout=within)
        async for piece in reading:
            content += piece[: shell.MOST - len(content)]
        return bytes(content)

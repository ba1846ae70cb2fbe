"""Session sandboxes at E2B, on its own SDK; at any server of its protocol too.

A sandbox there has no name: the name is in its metadata, with the tags, from its creation on. A
creation that is repeated carries the same idempotency key, so that it makes no second sandbox.
"""

import hashlib
import math
from collections.abc import AsyncIterator, Mapping
from typing import Any

from worker.lifecycle.clouds import shell
from worker.lifecycle.clouds.cloud import LATER, NAME, Cloud, refused
from worker.lifecycle.provider import Kind, SandboxRef, SandboxSpec, Verdict

try:
    import e2b
    from e2b.connection_config import ConnectionConfig
except ImportError as missing:
    raise ImportError(
        f"E2B's SDK cannot be imported ({missing}): pip install 'penstock-rl[e2b]'"
    ) from missing

_CLOUD = "e2b.app"
_CREDENTIALS = "Set E2B_API_KEY"
_TAKEN = (409, 422)  # its idempotency key was used: by an earlier request, with another body too
_REFUSED = (400, 401, 403, 404)


class E2bRefused(Exception):
    """The request asks for what E2B does not have."""


class E2bNameTaken(Exception):
    """A living sandbox has the name."""


def _by_status(problem: e2b.SandboxException) -> Verdict | None:
    if problem.status_code in _TAKEN:
        return Verdict(Kind.EXISTS)
    return refused("Check the template's name") if problem.status_code in _REFUSED else None


class E2bProvider(Cloud):
    """A spec's `image` is a template. Its `options` are those of `e2b.AsyncSandbox.create`.

    `connection`: what the SDK takes in place of its variables, `api_key` or `domain`, say.
    """

    name = "e2b"
    verdicts = (
        (e2b.AuthenticationException, refused(_CREDENTIALS)),
        (
            # The SDK has waited as the server's Retry-After says, and keeps that to itself.
            (e2b.RateLimitException, e2b.ServiceBusyException),
            Verdict(Kind.THROTTLED, LATER, nothing_made=True),
        ),
        ((e2b.SandboxNotFoundException, e2b.SandboxNotRunningException), Verdict(Kind.GONE)),
        (E2bNameTaken, Verdict(Kind.EXISTS)),
        ((E2bRefused, e2b.InvalidArgumentException), refused()),
        (TypeError, Verdict(Kind.FATAL)),  # an option that the SDK does not know
        (e2b.TemplateException, Verdict(Kind.FATAL, advice="Build the template again")),
        (e2b.SandboxException, _by_status),
    )

    def __init__(self, **connection: Any) -> None:
        super().__init__()
        self._connection = connection

    @property
    def scope(self) -> str:
        """The scope, with the server if that is not E2B's own."""
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
        metadata = {**(options.pop("metadata", None) or {}), **tags, NAME: name}
        key = None if spec.name else hashlib.sha256(name.encode()).hexdigest()
        made = await e2b.AsyncSandbox.create(
            spec.image or None, timeout=math.ceil(ttl), metadata=metadata,
            envs=dict(spec.env), idempotency_key=key, **self._connection | options,
        )  # fmt: skip
        self._opened.put(made.sandbox_id, made)
        return SandboxRef(made.sandbox_id, name)

    async def reach(self, id: str) -> e2b.AsyncSandbox:
        """Connect to a sandbox with the shortest of timeouts: to connect may prolong a sandbox, and
        shortens none."""
        return await e2b.AsyncSandbox.connect(id, timeout=1, **self._connection)

    async def lives(self, id: str) -> bool:
        info = await e2b.AsyncSandbox.get_info(id, **self._connection)
        return info.state is e2b.SandboxState.RUNNING

    def inside(self, sandbox: e2b.AsyncSandbox) -> "_Inside":
        return _Inside(sandbox)

    async def terminate(self, id: str) -> None:
        self._opened.pop(id, None)
        try:
            await e2b.AsyncSandbox.kill(id, **self._connection)
        except e2b.SandboxException as problem:
            if problem.status_code != 400:  # what cannot be the id of a sandbox
                raise

    async def look_up(self, name: str) -> SandboxRef | None:
        found = [ref async for ref in self.list({NAME: name})]
        return found[0] if found else None

    async def list(self, tags: Mapping[str, str]) -> AsyncIterator[SandboxRef]:
        """Paused ones too: they cost, and nobody else ends them."""
        query = e2b.SandboxQuery(metadata=dict(tags))
        pages = e2b.AsyncSandbox.list(query, **self._connection)
        while pages.has_next:
            for info in await pages.next_items():
                yield SandboxRef(info.sandbox_id, info.metadata.get(NAME, ""))


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

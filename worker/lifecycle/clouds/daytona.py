"""Session sandboxes at Daytona, on its own SDK.

A sandbox gets its name and labels in the request that makes it. By default it would stop after 15
minutes without a request: that is turned off, and its time to live ends it.
"""

import math
import os
from collections.abc import AsyncIterator, Mapping
from typing import Any

from worker.lifecycle.clouds import shell
from worker.lifecycle.clouds.cloud import LATER, NAME, Cloud, refused, wait_after
from worker.lifecycle.provider import Kind, SandboxRef, SandboxSpec, Verdict

try:
    import daytona
    from daytona import (
        DaytonaAuthenticationError,
        DaytonaBadRequestError,
        DaytonaConflictError,
        DaytonaError,
        DaytonaFileNotFoundError,
        DaytonaForbiddenError,
        DaytonaGoneError,
        DaytonaNotFoundError,
        DaytonaRateLimitError,
        DaytonaServiceUnavailableError,
        DaytonaUnprocessableEntityError,
    )
except ImportError as missing:
    raise ImportError(
        f"Daytona's SDK cannot be imported ({missing}): pip install 'penstock-rl[daytona]'"
    ) from missing

_CLOUD = "https://app.daytona.io/api"
_CREDENTIALS = "Set DAYTONA_API_KEY"
_ENDED = ("destroyed", "destroying")


class DaytonaRefused(Exception):
    """The request asks for what Daytona does not have."""


def _over_quota(problem: DaytonaForbiddenError) -> Verdict:
    if "exceeded" in str(problem).lower():
        return Verdict(Kind.THROTTLED, LATER, nothing_made=True)
    return refused()


class DaytonaProvider(Cloud):
    """A spec's `image` is one of a registry; without one, the sandbox is of the default snapshot.

    `options` are the parameters of the SDK's `create`: `snapshot`, `network_block_all` and so on.
    `config`: what the SDK takes in place of its variables.
    """

    name = "daytona"
    gone = (DaytonaNotFoundError, DaytonaGoneError)
    doubtful = (DaytonaError,)
    verdicts = (
        (DaytonaAuthenticationError, refused(_CREDENTIALS)),
        (
            DaytonaRateLimitError,
            lambda met: Verdict(Kind.THROTTLED, wait_after(met.headers), nothing_made=True),
        ),
        (DaytonaForbiddenError, _over_quota),
        (
            DaytonaServiceUnavailableError,
            lambda met: Verdict(Kind.THROTTLED, wait_after(met.headers)),
        ),
        (DaytonaConflictError, Verdict(Kind.EXISTS)),
        (DaytonaFileNotFoundError, Verdict(Kind.RETRY)),
        (gone, Verdict(Kind.GONE)),
        (DaytonaRefused, refused("Check the names of image and snapshot")),
        ((DaytonaBadRequestError, DaytonaUnprocessableEntityError), refused()),
    )

    def __init__(self, config: Any = None) -> None:
        super().__init__()
        self._config = config
        self._made: Any = None

    @property
    def scope(self) -> str:
        """The scope, with the server if that is not Daytona's own."""
        given = self._config.api_url if self._config else None
        where = given or os.environ.get("DAYTONA_API_URL") or _CLOUD
        return self.name if where == _CLOUD else f"{self.name}:{where}"

    async def create(
        self, spec: SandboxSpec, *, name: str, tags: Mapping[str, str], ttl: float
    ) -> SandboxRef:
        params = _params(spec)
        params.name, params.env_vars = name, {**(params.env_vars or {}), **spec.env}
        params.labels = {**(params.labels or {}), **tags, NAME: name}
        params.ttl_minutes = math.ceil(ttl / 60)
        if params.auto_stop_interval is None:
            params.auto_stop_interval = 0
        try:
            made = await self._daytona.create(params, timeout=0)  # whoever waits has a limit
        except DaytonaNotFoundError as missing:
            raise DaytonaRefused(str(missing)) from missing
        self._opened.put(made.id, made)
        return SandboxRef(made.id, name)

    async def reach(self, id: str) -> Any:
        found = await self._daytona.get(id)
        if _state(found) in _ENDED:
            raise DaytonaGoneError(f"sandbox {id} has ended")
        return found

    async def lives(self, id: str) -> bool:
        return _state(await self._daytona.get(id)) == "started"

    async def look_up(self, name: str) -> SandboxRef:
        return SandboxRef((await self.reach(name)).id, name)

    def inside(self, sandbox: Any) -> "_Inside":
        return _Inside(sandbox)

    async def terminate(self, id: str) -> None:
        self._opened.pop(id, None)
        try:
            await (await self._daytona.get(id)).delete(wait=True)
        except self.gone:
            return  # it has ended

    async def list(self, tags: Mapping[str, str]) -> AsyncIterator[SandboxRef]:
        query = daytona.ListSandboxesQuery(labels=dict(tags))
        async for each in self._daytona.list(query):
            if _state(each) not in _ENDED:
                yield SandboxRef(each.id, each.labels.get(NAME, ""))

    async def close(self) -> None:
        await super().close()
        made, self._made = self._made, None
        if made is not None:
            await made.close()

    @property
    def _daytona(self) -> Any:
        """Made when first used, as it needs a running loop."""
        if self._made is None:
            self._made = daytona.AsyncDaytona(self._config)
        return self._made


class _Inside:
    def __init__(self, sandbox: Any) -> None:
        self._sandbox = sandbox

    async def line(self, line: str, within: float) -> str:
        ran = await self._sandbox.process.exec(line, timeout=math.ceil(within))
        return str(ran.result)

    async def put(self, path: str, content: bytes) -> None:
        await self._sandbox.fs.upload_file(content, path, int(shell.FILE_WITHIN))

    async def get(self, path: str) -> bytes:
        return bytes(await self._sandbox.fs.download_file(path, int(shell.FILE_WITHIN)))


def _params(spec: SandboxSpec) -> Any:
    """Parameters as the SDK has them; an option that it does not know is refused."""
    by_image = bool(spec.image) or "image" in spec.options
    kind: Any = (
        daytona.CreateSandboxFromImageParams
        if by_image
        else daytona.CreateSandboxFromSnapshotParams
    )
    options = dict(spec.options)
    if unknown := sorted(set(options) - set(kind.model_fields)):
        raise DaytonaRefused(f"options: {unknown[0]!r:.100} is no parameter of {kind.__name__}")
    if spec.cpu is not None or spec.memory_mb is not None:
        if not by_image:
            raise DaytonaRefused("cpu and memory_mb are set by a snapshot; name an image instead")
        options.setdefault(
            "resources",
            daytona.Resources(
                cpu=math.ceil(spec.cpu) if spec.cpu else None,
                memory=math.ceil(spec.memory_mb / 1024) if spec.memory_mb else None,
            ),
        )
    return kind(**({"image": spec.image} if spec.image else {}), **options)


def _state(sandbox: Any) -> str:
    return str(getattr(sandbox.state, "value", sandbox.state))

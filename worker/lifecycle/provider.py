"""Every provider of session sandboxes offers this: small enough for any of them.

Modal, E2B, Daytona, Docker, Kubernetes and a process on this machine all fit. A sandbox
is named before it is made, so that one whose creation was never answered can be found.
Its id is enough to end it, so that anybody can.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from ground import SettingError
from ground.numbers import check_number
from ground.process import aside
from ground.settings import load_named


@dataclass(frozen=True)
class SandboxSpec:
    """The sandbox to make. `options` are the provider's own, and are passed on as they are.

    `name`: under which it is registered and made, in one attempt; empty: one is made up per
    attempt. `ttl`: seconds after which the provider ends it; None: `PENSTOCK_SANDBOX_TTL`.
    """

    image: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    cpu: float | None = None
    memory_mb: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    ttl: float | None = None

    def __post_init__(self) -> None:
        if self.ttl is not None:
            check_number("ttl", self.ttl)


@dataclass(frozen=True)
class SandboxRef:
    """A sandbox at its provider: enough for any process to use it. `meta` is JSON."""

    id: str
    name: str
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Command:
    """A command to be run inside; `cwd` is seen from where the sandbox itself starts."""

    argv: Sequence[str]
    timeout: float = 60.0
    cwd: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: bytes = b""


@dataclass(frozen=True)
class ExecResult:
    """How one command inside ended. A command that was out of time has no exit code.

    `refused`: why it never began, if the provider can tell: `not_found`, `not_executable`,
    `no_folder`. A program may end with 126 or 127 by itself.
    """

    exit_code: int | None
    stdout: bytes = b""
    stderr: bytes = b""
    timed_out: bool = False
    refused: str = ""


class FileRefused(OSError):
    """A sandbox's files refuse for another reason: a full disk, a file too large to pass."""


# What reading and writing files in a sandbox may raise as `open` does. It says nothing of the
# sandbox, which continues.
FILE_ERRORS = (
    FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError, FileRefused,
)  # fmt: skip


class Kind(StrEnum):
    """The meaning of a provider's exception for a start."""

    RETRY = "retry"
    THROTTLED = "throttled"
    FATAL = "fatal"  # asking again changes nothing
    GONE = "gone"  # the sandbox does not exist any more
    EXISTS = "exists"  # its name is taken: by our own earlier request


@dataclass(frozen=True)
class Verdict:
    """`nothing_made`: the provider refused, so that no sandbox can come of the request."""

    kind: Kind
    retry_after: float = 0.0
    nothing_made: bool = False
    advice: str = ""


class Provider(Protocol):
    """A provider is one account, machine or cluster. Everything is called on one event loop."""

    @property
    def name(self) -> str:
        """The name by which another process finds this provider: `modal`, `pkg.mod.callable`."""

    @property
    def scope(self) -> str:
        """Equal in all processes that reach the same sandboxes, and only there: the name, and the
        machine if only that reaches them."""

    async def create(
        self, spec: SandboxSpec, *, name: str, tags: Mapping[str, str], ttl: float
    ) -> SandboxRef:
        """Create one with this name and these tags; the provider itself ends it after `ttl` s."""

    async def wait_ready(self, ref: SandboxRef, timeout: float) -> None:  # noqa: ASYNC109
        """Wait until the sandbox can run commands; raise if it died on the way."""

    async def open_runtime(self, ref: SandboxRef, timeout: float) -> SandboxRef:  # noqa: ASYNC109
        """Start the server inside, if the provider itself does not answer. Put its address into
        the `meta` that you return."""

    async def close_runtime(self, ref: SandboxRef) -> None:
        """The reverse. May fail: the sandbox is ended all the same."""

    async def exec(self, ref: SandboxRef, command: Command) -> ExecResult:
        """Run one command to its end. One that cannot begin ends as in a shell: with 127 if there
        is no such program, with 126 if it cannot be executed."""

    async def read_file(self, ref: SandboxRef, path: str) -> bytes:
        """Read a whole file. Raises one of `FILE_ERRORS`, such as `FileNotFoundError`."""

    async def write_file(self, ref: SandboxRef, path: str, content: bytes) -> None:
        """Make or replace a file, and the folders above it. Raises one of `FILE_ERRORS`."""

    async def is_alive(self, ref: SandboxRef) -> bool:
        """Never raises: what cannot be reached is not alive."""

    async def terminate(self, id: str) -> None:
        """End it, and return when it has ended. A sandbox that does not exist has ended."""

    async def find(self, name: str) -> SandboxRef | None:
        """The living sandbox of that name."""

    def list(self, tags: Mapping[str, str]) -> AsyncIterator[SandboxRef]:
        """The living sandboxes that carry all of these tags."""

    def classify(self, problem: BaseException) -> Verdict:
        """The meaning of an exception of this provider."""

    async def close(self) -> None:
        """Free connections. Sandboxes live on."""


PROVIDERS = {
    "agent-sandbox": "worker.lifecycle.clouds.agent_sandbox.AgentSandboxProvider",
    "daytona": "worker.lifecycle.clouds.daytona.DaytonaProvider",
    "e2b": "worker.lifecycle.clouds.e2b.E2bProvider",
    "local": "worker.lifecycle.local.provider.LocalProvider",
    "modal": "worker.lifecycle.modal.provider.ModalProvider",
}


def provider_named(name: str) -> Provider:
    """A new provider. Raises `SettingError` if there is none of that name, or not here."""
    make: Callable[[], Provider] = load_named("provider", name, PROVIDERS)
    try:
        return make()
    except SettingError:
        raise
    except Exception as problem:
        why = f"{name!r} could not be made: {type(problem).__name__}: {problem}"
        raise SettingError("provider", why) from problem


def _require_trusted(name: str) -> None:
    """Anyone who can write to Redis can write a record, whose name is imported and called."""
    if name in PROVIDERS:
        return
    from worker.allowed import allowed
    from worker.settings import WorkerSettings

    if not allowed(WorkerSettings.load().allow or "").names(name):
        raise SettingError(
            "PENSTOCK_ALLOW", f"does not name {name!r:.100}, the provider of a sandbox in Redis"
        )


class Providers:
    """The providers that one reaper has met. Each is made once; `own` is there from the start."""

    def __init__(self, own: Provider | None = None) -> None:
        self._own = own
        self._made: dict[str, Provider] = {}
        self._making = asyncio.Lock()

    async def named(self, name: str) -> Provider:
        """Made in a thread: to import one may take seconds, for which no job should stand."""
        if self._own is not None and self._own.name == name:
            return self._own
        async with self._making:
            if name not in self._made:
                _require_trusted(name)
                self._made[name] = await aside(lambda: provider_named(name))
            return self._made[name]

    async def close(self) -> None:
        """Close the sandboxes that were made here."""
        for provider in self._made.values():
            await provider.close()

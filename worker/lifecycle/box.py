"""A sandbox in the hands of the process that starts, uses and ends it."""

import asyncio
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto

from ground.tasks import Body
from limiter import Report
from worker.lifecycle.errors import SandboxLost
from worker.lifecycle.provider import SandboxRef
from worker.lifecycle.registry.records import StartingPermit


class Phase(Enum):
    """How far its start has come, and so what its teardown must do."""

    NOT_MADE = auto()  # the provider was not asked for it yet, or refused
    ASKED_FOR = auto()  # it exists, or may: only the answer to its creation says so
    OPEN = auto()  # its runtime is open, or being opened


def new_name() -> str:
    """A name that no other sandbox has."""
    return f"penstock-{uuid.uuid4().hex[:24]}"


@dataclass(eq=False)
class Box:
    """The knowledge of this process about a sandbox; what all processes must know is in its
    record."""

    name: str = field(default_factory=new_name)
    fence: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)  # by which a sweep finds it
    permits: tuple[StartingPermit, ...] = ()
    ref: SandboxRef | None = None
    creating: "asyncio.Task[SandboxRef] | None" = None
    phase: Phase = Phase.NOT_MADE
    report: Report = Report.NOTHING  # what its permits say of the provider, to a gate that adapts
    lost: str = ""  # why, once it is
    taken: bool = False  # by a reaper or an operator, as against dead
    sure_until: float = 0.0  # of the monotonic clock: nobody can have taken it before
    create_deadline: float = 0.0  # of the monotonic clock: when its creation is given up
    _on_taken: Callable[[], object] | None = None
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def left(self) -> float:
        """Seconds until its creation is given up."""
        return max(0.0, self.create_deadline - time.monotonic())

    def is_asked_for(self) -> None:
        """The provider is about to be asked for it. Raises `SandboxLost` if a reaper may have
        looked for it by name already, and found nothing."""
        if time.monotonic() > self.sure_until:
            raise SandboxLost(
                self.name,
                "this process was frozen for longer than its lease (PENSTOCK_SANDBOX_LEASE)",
            )
        self.phase = Phase.ASKED_FOR

    async def answered(self) -> None:
        """A creation under way cannot be called back: only its answer says what to end."""
        if self.creating is None or self.ref is not None:
            return
        await asyncio.wait([self.creating], timeout=self.left())
        if not self.creating.done():
            self.creating.cancel()
        elif not self.creating.cancelled() and self.creating.exception() is None:
            self.ref = self.creating.result()

    def take(self) -> None:
        """Note, from any thread, that another process ends the sandbox, or has ended it."""
        with self._guard:
            self.lost = self.lost or "its lease was taken over, by a reaper or an operator"
            self.taken, call = True, self._on_taken
        if call is not None:
            call()

    def on_taken(self, call: Callable[[], object] | None) -> None:
        """Call this when another process takes the sandbox, on whatever thread; at once if that
        has happened. None: call nothing."""
        with self._guard:
            self._on_taken, now = call, self.taken
        if now and call is not None:
            call()

    def check(self) -> None:
        """Raise `SandboxLost` if another process has taken the sandbox."""
        if self.taken:
            raise SandboxLost(self.name, self.lost)


@asynccontextmanager
async def held(box: Box) -> AsyncIterator[None]:
    """Cancel the body when the sandbox is taken, and raise `SandboxLost`."""
    body = Body(box.check)
    box.on_taken(body.cancel)
    try:
        with body:
            yield
    finally:
        box.on_taken(None)


@contextmanager
def checked(box: Box) -> Iterator[None]:
    """Raise `SandboxLost` after a body that ended well although its sandbox was taken."""
    yield
    box.check()

"""One sandbox in the hands of the process that starts, uses and ends it."""

import asyncio
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from worker.lifecycle.provider import SandboxRef
from worker.lifecycle.records import StartingPermit


@dataclass(eq=False)
class Box:
    """What is known of it here; what everybody must know is in its record."""

    name: str = field(default_factory=lambda: f"penstock-{uuid.uuid4().hex[:24]}")
    fence: str = ""
    fleet: str = ""
    permits: tuple[StartingPermit, ...] = ()
    ref: SandboxRef | None = None
    creating: "asyncio.Task[SandboxRef] | None" = None
    work: "asyncio.Task[None] | None" = None
    abandoned: bool = False
    nothing_made: bool = False
    runtime_open: bool = False
    gone: bool = False  # confirmed
    lost: str = ""  # why, once it is
    taken: bool = False  # by a reaper or an operator, as against dead
    sure_until: float = 0.0  # of the loop's clock: nobody can have taken it before
    create_deadline: float = 0.0  # of the loop's clock: when its creation is given up
    _told: Callable[[], object] | None = None
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def take(self) -> None:
        """Somebody else ends it, or has ended it. From any thread."""
        with self._guard:
            self.lost = self.lost or "its lease was taken over, by a reaper or an operator"
            self.taken, told = True, self._told
        if told is not None:
            told()

    def on_taken(self, told: Callable[[], object] | None) -> None:
        """Call `told` when somebody else takes the sandbox, on whatever thread; at once where
        that has happened. None: call nobody."""
        with self._guard:
            self._told, now = told, self.taken
        if now and told is not None:
            told()

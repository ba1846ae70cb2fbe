"""One sandbox in the hands of the process that starts, uses and ends it."""

import asyncio
import uuid
from dataclasses import dataclass, field

from worker.lifecycle.provider import SandboxRef
from worker.lifecycle.registry import StartingPermit


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
    create_deadline: float = 0.0  # of the loop's clock: when its creation is given up

    def lose(self) -> None:
        """Somebody else ends it, or has ended it."""
        self.lost = self.lost or "its lease was taken over, by a reaper or an operator"

"""The record of one run of the demo: its looks, its events, and its outcome."""

from dataclasses import dataclass, field

from ground import PenstockError


class DemoFailed(PenstockError):
    """The demo did not come to its end."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of the demo, in numbers."""

    server: str
    jobs: int
    finished: int
    executions: int
    repeated: int
    limit: int
    most_at_once: int
    killed: int
    """How the killed worker's process ended, as the system reports it: -9."""
    permits_granted: int
    permits_expired: int
    permits_left: int
    permit_back_after: float
    groups: int
    groups_delivered: int
    groups_timed_out: int
    trajectories: int
    mean_reward: float
    seconds: float

    @property
    def lost(self) -> int:
        groups = self.groups - self.groups_delivered - self.groups_timed_out
        return self.jobs - self.finished + groups

    @property
    def well(self) -> bool:
        return not self.lost and self.most_at_once <= self.limit and not self.permits_left


@dataclass
class Sample:
    """A look at the fleet, for the picture."""

    at: float
    waiting: int
    in_flight: int
    open: int
    ready: int
    delivered: int


@dataclass
class Record:
    """The looks, and what happened when."""

    limit: int
    samples: list[Sample] = field(default_factory=list)
    events: list[tuple[float, str]] = field(default_factory=list)

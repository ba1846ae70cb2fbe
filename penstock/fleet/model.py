"""A look at a fleet finds these things. Times are seconds; moments are those of the server's
clock."""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from buffer.catalog import Pulse
from buffer.versions.publishing import Versions
from limiter import GateStatus

Level = Literal["well", "warn", "bad", "unused"]
Verdict = Literal[
    "idle", "working", "suspended", "paused", "no workers", "held back", "workers are full"
]


@dataclass(frozen=True)
class Server:
    """The Redis that all of it stands on."""

    where: str
    version: str
    used_memory: int
    max_memory: int
    clients: int
    commands_per_second: int
    max_clients: int = 0
    """0 of a server that does not say."""
    trouble: tuple[tuple[str, str], ...] = ()
    """Why it takes no writes or may lose what it has, each a verdict and its sentence."""


@dataclass(frozen=True)
class Worker:
    """A worker process, RQ's or Penstock's."""

    name: str
    state: Literal["idle", "busy", "suspended", "dead"]
    queues: tuple[str, ...]
    gate: str
    """Empty of a `ConcurrentWorker` that takes no permits, and of RQ's own, which do not say."""
    concurrent: bool
    """Whether it is a `ConcurrentWorker`."""
    running: int
    room: int
    """How many jobs it runs at once; 0 of RQ's own, which do not say."""
    job: str
    """The job that it has run longest, of those it runs now."""
    job_since: float
    silent: float
    """Since its last heartbeat."""
    born: float
    finished: int
    failed: int
    masked: int
    """Of the finished ones, those whose outcome is unknown: `infrastructure`."""
    programs: dict[str, int]
    """Of the finished ones, the programs that did not finish well, by `PROGRAM_OUTCOMES`."""
    host: str
    pid: int
    unreachable: tuple[str, ...]
    """Sandbox servers that its programs cannot reach; at its last heartbeat."""
    refused: str = ""
    """What Redis answered when it refused this worker's latest claim or heartbeat."""
    release: str = ""
    """Of Penstock; empty of RQ's own, and of older ones."""
    ahead: float = 0.0
    """Seconds that its machine's clock is before that of Redis."""
    pace: tuple[int, float] = (0, 0.0)
    """The jobs that it ended in the last minute, and how long they took together."""
    late: int = 0
    """Of these, programs that ran out of time."""
    forgotten: float = 0.0
    """Seconds since it found that Redis no longer knew it; 0 if it always did."""
    ending: bool = False
    """It takes no new job, and ends when those that run have."""


@dataclass(frozen=True)
class Latency:
    """How many finished jobs took, or waited, how long."""

    counts: tuple[int, ...]
    """By `LATENCY_STEPS`, of which each is an upper end in seconds."""
    seconds: float
    """Of all of them together."""


@dataclass(frozen=True)
class Masked:
    """The programs of a queue that had no outcome lately."""

    many: int = 0
    """Of the last `of` that finished."""
    of: int = 0
    since: int = 0
    """How many had an outcome after the last that had none."""
    ago: float = 0.0
    why: str = ""
    """Of the last one."""


@dataclass(frozen=True)
class Queue:
    """A queue, and why it grows."""

    name: str
    depth: int
    oldest: float
    """How long the first in line has waited."""
    running: int
    deferred: int
    scheduled: int
    workers: int
    """Those that live."""
    counters: dict[str, int]
    programs: dict[str, int]
    """Finished programs by `PROGRAM_OUTCOMES`, and `unknown`: those of workers that do not say."""
    waited: Latency
    took: Latency
    shared: int = 0
    """Of the finished ones, programs whose assertions ran in their own process."""
    masked: Masked = Masked()
    overdue: int = 0
    """Scheduled jobs that nobody has put into the queue, though they are due."""
    paused: bool = False
    breaker: str = "closed"
    """`open` or `half`, if its breaker has paused it."""
    paused_why: str = ""
    """What that breaker has counted; empty of a pause by hand."""
    verdict: Verdict = "idle"
    reason: str = ""
    remedy: str = ""
    """What lets its jobs in; empty if nothing holds them."""
    cause: str = ""
    """What holds them, as `penstock.fleet.health.VERDICTS` names it."""
    ungated: str = ""
    """How some of its workers pass the gate of the others by; empty if none does."""


@dataclass(frozen=True)
class Group:
    """A trajectory group."""

    task: str
    instance_id: str | int
    round: int
    state: str
    items: int
    bytes: int
    since: float
    reason: str
    version: int | None
    reward: float | None
    """The mean of its items' rewards."""
    why: str = ""
    """What ended it: `count` of its items, `timeout` or `judged`; empty while it is open."""


@dataclass(frozen=True)
class Gateway:
    """A gateway that serves a task's agents."""

    name: str
    silent: float
    failing: dict[str, str]
    """The engines that fail it, each with the reason."""


@dataclass(frozen=True)
class Task:
    """A task of the run's rollout buffer."""

    name: str
    groups: dict[str, int]
    counters: dict[str, int]
    bytes: int
    oldest_ready: float
    rewards: int
    """How many of the items since the last read have one."""
    mean_reward: float | None
    reward_counts: tuple[int, ...]
    """Of all rewards since the run began, how many fell into each of `REWARD_STEPS`."""
    rollout: str
    """preparing, running, finished or failed; empty if none was started."""
    versions: Versions | None
    """Where its versions stand; None if none was published under a policy."""
    generation_seconds: dict[str, float]
    """Mean time to make a group that was `delivered`, or `dropped`: discarded or made again."""
    pulse: Pulse
    gateways: tuple[Gateway, ...] = ()


@dataclass(frozen=True)
class Sandbox:
    """A session sandbox, as its run's registry has it."""

    run: str
    name: str
    id: str
    """The provider's; empty until it has answered."""
    provider: str
    state: str
    starting: bool
    """Whether it holds a STARTING permit."""
    session: str
    """The `instance_id` that it serves, if it serves one."""
    owner: str
    since: float
    failing: bool
    """Whether it was to be ended, and could not be."""
    tries: int
    trouble: str
    """Why it could not, or why it is to end, or that nobody has come to end it."""
    overdue: bool = False
    """Whether nobody has come to end it, long after its owner's lease."""
    waits: str = ""
    """Why it is not ready yet, its place in line, and what would let it in."""


@dataclass(frozen=True)
class Registry:
    """A registry: all session sandboxes of one run."""

    run: str
    states: dict[str, int]
    failing: int
    """How many of them were to be ended, and could not be."""
    counters: dict[str, int]
    reaper: str
    """The reaper in charge; empty if there is none."""


@dataclass(frozen=True)
class Job:
    """A job; times that have not come are 0 or None."""

    id: str
    queue: str
    status: str
    description: str
    worker: str
    ended: float
    waited: float | None
    took: float | None
    attempts: int
    outcome: str = ""
    """How its program ended, by `PROGRAM_OUTCOMES`; empty of a function, or where nobody said."""
    enqueued: float = 0.0
    started: float = 0.0
    error: str = ""
    """The last line of a failed one's traceback; of the newest ones only."""
    program: str = ""
    """The first line of its program, in lists of jobs alone."""


@dataclass(frozen=True)
class Alarm:
    """An alarm: what is wrong, what to do, and where to look.

    verdict  its name, as in `penstock.fleet.health.VERDICTS`
    kind     queue, gate, worker, task, run, job, redis or monitor
    """

    level: Literal["warn", "bad"]
    text: str
    kind: str
    name: str
    verdict: str
    remedy: str

    @property
    def said(self) -> str:
        """Text and remedy in one line."""
        return f"{self.text}; {self.remedy}"


@dataclass(frozen=True)
class Fleet:
    """Everything, at one moment. Lists are cut to what one look can take in; totals are not."""

    at: float
    run: str
    server: Server
    suspended: bool
    queues: tuple[Queue, ...]
    workers: tuple[Worker, ...]
    worker_states: dict[str, int]
    gates: tuple[GateStatus, ...]
    tasks: tuple[Task, ...]
    groups: tuple[Group, ...]
    quarantine: tuple[Group, ...]
    recent: tuple[Job, ...]
    failed: tuple[Job, ...]
    done: int
    """Jobs that workers living now have ended, for rates."""
    registries: tuple[Registry, ...] = field(default=())
    sandboxes: tuple[Sandbox, ...] = field(default=())
    """Of all registries, those in trouble first."""
    broken_gates: dict[str, str] = field(default_factory=dict)
    """Gates that cannot be read, each with the reason and the remedy."""
    monitor: float | None = None
    """Since a monitor of the run looked last; None if none has, or if it ended in order."""
    level: Level = "unused"
    sentence: str = ""
    """What a person should know first."""
    notes: tuple[str, ...] = field(default=())
    """All of it, worst first."""
    alarms: tuple[Alarm, ...] = field(default=())
    """The same, each with where to look."""

    @property
    def used(self) -> bool:
        """Whether anybody has used this Redis, as far as can be seen: of tasks, this run's."""
        return any((
            self.queues, self.workers, self.gates, self.broken_gates, self.tasks, self.registries,
        ))  # fmt: skip

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

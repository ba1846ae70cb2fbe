"""The log of sessions in Redis: a call costs two round trips, its beginning and its commit.

A session belongs to no process. A call that is open belongs to one, by a lease; the commit carries
the fence of its beginning. Every method may be repeated without harm.
"""

from dataclasses import dataclass
from typing import Any

from buffer.link import Link
from buffer.writer import Outcome
from gateway.calls import Call, Sent
from gateway.packing import Ids
from gateway.rows import Log
from gateway.settings import GatewaySettings
from ground.redis.connect import AnyRedis


@dataclass(frozen=True, slots=True)
class Session:
    """Where a session's keys are; what its opener fixed.

    sampling  the session's parameters of sampling and other facts, as its opener gave them
    """

    run: str
    task: str
    sid: str
    sampling: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Budget:
    """What a session may use; 0: without a bound. `seconds` count from its opening."""

    tokens: int = 0
    turns: int = 0
    seconds: float = 0


@dataclass(frozen=True, slots=True)
class Opened:
    """A session, and the key with which its agent speaks. The key is nowhere else."""

    session: Session
    key: str


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request says of itself, before a call begins.

    digest      of its body (`canonical.digest`)
    hashes      after each of its assistant's turns, the newest first (`canonical.turns`)
    retry       its client says that it is a retry
    key         its Idempotency-Key
    live        content leaves before the commit
    """

    digest: bytes
    hashes: tuple[bytes, ...] = ()
    retry: bool = False
    key: str = ""
    live: bool = False


@dataclass(frozen=True, slots=True)
class Fresh:
    """Sample an answer, and commit it under this number and fence.

    hits     per hash of the request, the call that it ends with; None: this session sampled no such
    foreign  turns of an assistant in it that this session did not sample
    version  the version that the task's trainer published last, if any
    retry    it is a retry, of a call that has no answer to repeat
    """

    call: int
    fence: str
    hits: tuple[int | None, ...]
    foreign: int
    version: int | None
    retry: bool


@dataclass(frozen=True, slots=True)
class Replay:
    """This was answered before. Send the same answer again; without one, parse `call.out`."""

    call: Call
    answer: bytes | None


@dataclass(frozen=True, slots=True)
class Join:
    """This is being answered now, or its process is gone. `SessionLog.joined` waits, then begin
    again."""

    call: int
    wait: float


@dataclass(frozen=True, slots=True)
class Finalized:
    """A session's end: what the buffer made of its item, and what the rows were."""

    outcome: Outcome
    rows: int
    counts: dict[str, int]
    masked: bool
    cause: str


class SessionLog:
    """The sessions of a run.

    redis     a URL, a client or a `Link`
    settings  of this process; by default its environment's (PENSTOCK_…)
    """

    def __init__(
        self, redis: AnyRedis | Link, run: str, settings: GatewaySettings | None = None
    ) -> None:
        raise NotImplementedError

    async def open(
        self,
        task: str,
        uid: str,
        instance_id: str | int,
        *,
        round_number: int | None = None,
        slot: tuple[str, str] | None = None,
        budget: Budget = Budget(),
        sampling: dict[str, Any] | None = None,
    ) -> Opened:
        """Open the session of one trajectory; `slot` is the id and the fence of the slot that it
        is made under. The same uid again is the same session, with a further key. The task must
        have settings. `SessionsFull` if there is no room."""
        raise NotImplementedError

    async def find(self, key: str) -> Session:
        """The session of a key; `SessionUnknown`."""
        raise NotImplementedError

    async def begin(self, session: Session, asked: Asked) -> Fresh | Replay | Join:
        """Begin a call. `SessionOver`, `BudgetSpent`, `KeyReused`."""
        raise NotImplementedError

    async def ids(self, session: Session, call: int) -> Ids:
        """All ids of a done call: from this process's memory, else from Redis."""
        raise NotImplementedError

    async def commit(
        self, session: Session, fence: str, call: Call, reached: bytes, answer: bytes = b""
    ) -> None:
        """Store the answer. When this returns, the answer may leave.

        `reached` is the hash of the conversation with the answer in it, and `answer` what a retry
        is given again. `SessionOver`, `CallConflict`, `BudgetSpent` for bytes.
        """
        raise NotImplementedError

    async def joined(self, session: Session, call: int, wait: float) -> None:
        """Wait until the call is committed or given up, at most `wait` seconds."""
        raise NotImplementedError

    def sent(self, session: Session, call: int, sent: Sent) -> None:
        """What the client has of a committed answer. It is noted within 0.2 s, with others."""
        raise NotImplementedError

    def broke(self, session: Session, call: int, fence: str, sent: Sent = Sent.NOTHING) -> None:
        """The call has no answer. It is noted within 0.2 s, with others."""
        raise NotImplementedError

    async def freeze(self, session: Session, *, drain: float | None = None) -> Log:
        """No call begins any more. Those under way have `drain` seconds. What the log has then
        stays as it is."""
        raise NotImplementedError

    async def finalize(
        self,
        session: Session,
        reward: float | None,
        *,
        rewards: dict[int, float] | None = None,
        extra: dict[str, Any] | None = None,
        drain: float | None = None,
    ) -> Finalized:
        """Put the session's rows and reward into the buffer, and forget its calls, in one script.
        A repeat gets the same answer. `rewards` are by call, for the lineages that these are in;
        `extra` are further keys of the item. `RewardDiffers`, and what the buffer raises."""
        raise NotImplementedError

    async def read(self, session: Session) -> Log:
        """The log as it is now, to look at."""
        raise NotImplementedError

    async def listed(self, task: str, most: int = 100) -> list[dict[str, Any]]:
        """Open sessions of a task, the longest without a call first."""
        raise NotImplementedError

    async def sweep(self, task: str) -> int:
        """Give up calls whose process is gone, and sessions that are idle, in bounded steps.
        Returns how many sessions were given up."""
        raise NotImplementedError

    async def aclose(self) -> None:
        """Note what is left to note, and close this loop's connections."""
        raise NotImplementedError

"""The jobs that this worker runs: what was claimed, how it ended, and who may end it early."""

import asyncio
import logging
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from types import TracebackType
from typing import Any, TypeVar

from ground.logs import encodable
from ground.tracing import Span
from ground.tracing.spans import OFF
from limiter import Report

T = TypeVar("T")

log = logging.getLogger("penstock.worker")

GRACE = 5.0  # seconds that an interrupted thread has to come back
HELD, LOST, PERMIT_LOST, UNWANTED = 1, 0, 2, 3  # the heartbeat script's answer per job

BeatRow = tuple[str, str, int, int]  # id, execution, fence of its permit, hold in microseconds
ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]


@dataclass(slots=True, eq=False)
class ClaimedJob:
    """A job from its claim to its recorded end. It fills no RQ `Job` unless someone needs one:
    building that costs more than everything else we do for a job, and code jobs never need it."""

    queue: str
    id: str
    execution: str
    fields: dict[bytes, bytes]  # as they were before the claim
    started: float  # the server's time, in seconds
    build_job: Callable[["ClaimedJob"], Any]
    permit: int = 0  # fence of its permit at the gate; 0 if it holds none
    ticket: str = ""  # its place in the gate's line
    # When its claim or last renewal was sent, by our clock: its lease began no earlier.
    leased: float = field(default_factory=time.monotonic)
    began: float = field(default_factory=time.monotonic)  # `started`, by our clock
    hold: float = 0.0  # seconds that its program may outlive this worker; its permit stays as long
    still_running: float = 0.0  # after its end: seconds that the sandbox may still be busy
    busy_until: float = 0.0  # by our clock: so long with an attempt that was given up before
    report: Report = Report.SUCCESS  # what its end says of the service to a gate that adapts
    task: "asyncio.Task[None] | None" = None
    interrupt: Callable[[], object] | None = None  # ends a function that runs in a thread
    once: bool = False  # it must not run again, even if it has no outcome
    ending: bool = False  # its outcome is on its way to Redis
    why: str = ""  # why it is interrupted: stopped, killed, lost, cold
    built: Any = None  # RQ's Job, if someone has needed it
    span: Span = OFF  # from its claim to its recorded end
    recording: Span = OFF

    @property
    def job(self) -> Any:
        """RQ's Job, built at the first use."""
        if self.built is None:
            self.built = self.build_job(self)
        return self.built

    @property
    def member(self) -> str:
        return f"{self.id}:{self.execution}"

    def beat_row(self) -> BeatRow:
        """The job's arguments for the heartbeat script."""
        return self.id, self.execution, self.permit, int(self.hold * 1e6)

    def still_busy(self) -> float:
        """Seconds for which the sandbox may be busy with attempts that were given up."""
        return max(self.still_running, self.busy_until - time.monotonic())

    def hold_row(self, *, failed: bool) -> int | str:
        """The row of its end: microseconds for which its permit stays, and its report behind
        them."""
        hold = int(self.still_busy() * 1_000_000)
        report = self.report or (Report.NOTHING if failed else "")
        return f"{hold} {report}" if report else hold

    def is_lost(self, row: BeatRow, answer: int) -> bool:
        """Whether the answer to that row says so. A permit released since then is not lost."""
        return answer == LOST or (answer == PERMIT_LOST and self.permit == row[2])

    @property
    def waited(self) -> float | str:
        """Seconds from enqueueing to its claim; empty if that is not known."""
        try:
            enqueued = self.moment(b"enqueued_at")
        except JobMalformed:
            return ""
        return "" if enqueued is None else max(0.0, self.started - enqueued)

    def text(self, name: bytes) -> str:
        """A field of the job; empty if it has none."""
        return self._read(name, bytes.decode, "text") or ""

    def number(self, name: bytes, default: int) -> int:
        value = self._read(name, _whole_number, "a whole number")
        return default if value is None else value

    def moment(self, name: bytes) -> float | None:
        """A time, in seconds since 1970."""
        return self._read(name, _timestamp, "a time such as 2026-08-02T10:11:12.345678Z")

    def _read(self, name: bytes, read: Callable[[bytes], T], what: str) -> T | None:
        value = self.fields.get(name)
        if not value:
            return None
        try:
            return read(value)
        except ValueError:
            raise JobMalformed(
                f"job {self.id}: its field {name.decode()!r} is {value!r}, but RQ writes {what};"
                " enqueue the job again"
            ) from None


@dataclass(slots=True, eq=False)
class Outcome:
    """How a job ended."""

    claimed: ClaimedJob
    value: Any = None
    error: ExcInfo | None = None
    stopped: bool = False

    @classmethod
    def failed(cls, claimed: ClaimedJob, error: BaseException) -> "Outcome":
        return cls(claimed, error=(type(error), error, error.__traceback__))

    @classmethod
    def interrupted(cls, claimed: ClaimedJob) -> "Outcome":
        """The reason of an interrupt, in the words of RQ, which kills its work-horse."""
        error = RuntimeError("Work-horse terminated unexpectedly; it was told to (kill-horse)")
        return cls.failed(claimed, error)


class RunningJobs(dict[str, ClaimedJob]):
    """The jobs of this worker, by id and execution. `changed` is called after each end.

    A job whose lease could not be renewed is interrupted before the server would give it to
    another worker.
    """

    def __init__(self, changed: Callable[[], object], lease: float) -> None:
        super().__init__()
        self.idle_since = time.monotonic()
        self._changed = changed
        self._good_for = lease * 5 / 6
        self._watching: asyncio.TimerHandle | None = None

    def add(self, claimed: ClaimedJob) -> None:
        self[claimed.member] = claimed
        if self._watching is None:
            self._watch()

    def ended(self, claimed: ClaimedJob) -> None:
        self.pop(claimed.member, None)
        claimed.recording.end()
        if claimed.why:
            claimed.span.failed(claimed.why)
        if claimed.why != "lost":  # the worker that runs it now shows that end
            claimed.span.end()
        if not self:
            self.idle_since = time.monotonic()
        self._changed()

    def interrupt(self, jobs: list[ClaimedJob], why: str) -> None:
        for claimed in jobs:
            if claimed.why or claimed.ending:
                continue
            claimed.why = why
            if claimed.interrupt is not None:
                claimed.interrupt()
            if claimed.task is not None:
                claimed.task.cancel()

    def lose(self, jobs: list[ClaimedJob]) -> None:
        # A heartbeat may run between the end of a lease and our reading that it ended.
        gone = [claimed for claimed in jobs if claimed.member in self and not claimed.ending]
        for claimed in gone:
            log.warning("job %s: its lease is lost; others run it", claimed.id)
        self.interrupt(gone, "lost")

    def _watch(self) -> None:
        """Watch the time by this process's clock: Redis may be unreachable, and the heartbeat may
        wait for it."""
        now = time.monotonic()
        self.lose([each for each in self.values() if now - each.leased > self._good_for])
        kept = [each.leased for each in self.values() if not (each.why or each.ending)]
        self._watching = None
        if kept:
            again = max(min(kept) + self._good_for - now, _SHORTEST_WAIT)
            self._watching = asyncio.get_running_loop().call_later(again, self._watch)


_SHORTEST_WAIT = 0.01  # seconds


class WorkerDied(Exception):
    """The outcome of a job whose workers all died before they finished it."""


class JobMalformed(Exception):
    """A field of a job's hash is not what RQ writes there."""


_LARGEST = 2**53  # above it Lua is not exact, and Redis refuses it as a time to live


def _whole_number(value: bytes) -> int:
    number = int(value)
    if abs(number) > _LARGEST:
        raise ValueError
    return number


def _timestamp(value: bytes) -> float:
    return datetime.fromisoformat(value.decode()).timestamp()


OUR_CALLBACKS = "worker.notices."


def exc_string(error: ExcInfo) -> str:
    """The traceback as RQ stores it; characters that UTF-8 cannot encode are escaped."""
    try:
        text = "".join(traceback.format_exception(*error))
    except BaseException as unprintable:  # noqa: BLE001 - a user's error class may raise anything
        text = f"{error[0].__qualname__}; its traceback cannot be written: {type(unprintable)}"
    return encodable(text)

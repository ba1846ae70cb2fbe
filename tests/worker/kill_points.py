"""Where a process dies in the tests of a job's way: one table, in the order of that way."""

from dataclasses import dataclass
from typing import Literal

from tests.harness import killing
from tests.harness.killing import Point, after, before, named

SHIFT, FINISHER = "worker.concurrent.shift:Shift", "worker.concurrent.finish:Finisher"
ENDING, ORDERS = "worker.concurrent.end_or_retry_by_rq:Ending", "worker.queue.client_orders:Orders"
RUN = "jail.fusion.client:SandboxFusion.run"
READ_CLAIM = "worker.concurrent.shift:read_claim"
CLEANUP = "worker.concurrent.worker:ConcurrentWorker.cleanup_execution"
FENCED = "worker.concurrent.end_or_retry_by_rq:FencedPipeline._is_due"


@dataclass(frozen=True)
class KillPoint:
    """A place on the way of a job, in the process of a trainer or of a worker.

    Whoever dies there, the job has one result and nothing of it is left. `runs` is how often
    its program runs where the process itself dies there; if another dies, it runs once.
    """

    name: str
    of: Literal["trainer", "worker"]
    at: Point
    runs: int = 1

    def __str__(self) -> str:
        return self.name

    @property
    def frozen(self) -> Point:
        """The process stands still there while another one dies."""
        return killing.freezing(self.at)


TRAINERS_WAY = [
    KillPoint("the trainer asks for a job", "trainer", before(f"{ORDERS}.add")),
    KillPoint("the job is queued and the trainer does not know", "trainer",
              before(f"{ORDERS}._arrived")),
    KillPoint("the trainer waits", "trainer", named("waits")),
    KillPoint("the notice reached the trainer", "trainer", before(f"{ORDERS}.read_entries")),
    KillPoint("the trainer has the result", "trainer", named("has the result")),
]  # fmt: skip

WORKERS_WAY = [
    KillPoint("the worker claimed the job", "worker", after(READ_CLAIM)),
    KillPoint("the job is about to start", "worker", before(f"{SHIFT}._begin")),
    KillPoint("its function is about to be called", "worker",
              before("worker.concurrent.perform:Performer.perform")),
    KillPoint("its program is about to be sent", "worker", before(RUN)),
    KillPoint("its program ran", "worker", after(RUN), runs=2),
    KillPoint("its function returned", "worker", before(f"{FINISHER}.finish"), runs=2),
    KillPoint("its end is about to be recorded", "worker", before(f"{FINISHER}._record"), runs=2),
    KillPoint("its end is on its way to Redis", "worker",
              after("worker.concurrent.commands:WorkCommands.finish"), runs=2),
    KillPoint("its end is in Redis", "worker",
              after("worker.concurrent.running:RunningJobs.ended")),
]  # fmt: skip

# A job with callbacks or dependents ends by RQ's own code.
RQS_WAY = [
    KillPoint("RQ's end is about to be prepared", "worker", before(f"{ENDING}.prepare"), runs=2),
    KillPoint("RQ's end is about to be recorded", "worker", before(f"{ENDING}.record"), runs=2),
    KillPoint("RQ's transaction is being built", "worker", before(CLEANUP), runs=2),
    KillPoint("RQ's transaction is about to be sent", "worker", before(FENCED), runs=2),
    KillPoint("RQ's transaction passed its last check", "worker", after(FENCED), runs=2),
    KillPoint("RQ's end is in Redis", "worker", after(f"{ENDING}.record")),
]

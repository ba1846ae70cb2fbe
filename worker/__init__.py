"""Code jobs run on RQ: a job runs at least once, and has one result.

Stock RQ imports this package again for each job: what needs an HTTP client is
imported when it is first named; so is the trainer's side.
"""

from typing import TYPE_CHECKING

from ground.lazy import lazily as _lazily
from jail.errors import (
    RequestRefused,
    SandboxBroken,
    SandboxBusy,
    SandboxFailure,
    SandboxTimeout,
    SandboxUnfit,
    SandboxUnreachable,
)
from jail.models import CodeRequest, CodeResult, CommandResult
from jail.protocol import Sandbox
from worker.errors import (
    DeadlineExceeded,
    JobCancelled,
    JobFailed,
    NotAllowed,
    NoWorkers,
    QueueError,
    QueueUnavailable,
    ResultExpired,
    ResultUnreadable,
    TrainingPaused,
)

if TYPE_CHECKING:
    from jail.fusion.client import SandboxFusion
    from worker.allowed import AllowedJob
    from worker.concurrent.worker import ConcurrentWorker
    from worker.lifecycle.modal.deployment import ModalDeployment
    from worker.queue.code_queue import CodeQueue
    from worker.queue.handle import Handle, SyncHandle
    from worker.queue.shares import Share, Shares
    from worker.queue.sync import SyncCodeQueue
    from worker.run.execution import RetryPolicy
    from worker.settings import WorkerSettings

__all__ = [
    "AllowedJob",
    "CodeQueue",
    "CodeRequest",
    "CodeResult",
    "CommandResult",
    "ConcurrentWorker",
    "DeadlineExceeded",
    "Handle",
    "JobCancelled",
    "JobFailed",
    "ModalDeployment",
    "NoWorkers",
    "NotAllowed",
    "QueueError",
    "QueueUnavailable",
    "RequestRefused",
    "ResultExpired",
    "ResultUnreadable",
    "RetryPolicy",
    "Sandbox",
    "SandboxBroken",
    "SandboxBusy",
    "SandboxFailure",
    "SandboxFusion",
    "SandboxTimeout",
    "SandboxUnfit",
    "SandboxUnreachable",
    "Share",
    "Shares",
    "SyncCodeQueue",
    "SyncHandle",
    "TrainingPaused",
    "WorkerSettings",
]


_LAZY = {
    "AllowedJob": "worker.allowed",
    "ConcurrentWorker": "worker.concurrent.worker",
    "CodeQueue": "worker.queue.code_queue",
    "Handle": "worker.queue.handle",
    "Share": "worker.queue.shares",
    "Shares": "worker.queue.shares",
    "ModalDeployment": "worker.lifecycle.modal.deployment",
    "RetryPolicy": "worker.run.execution",
    "SandboxFusion": "jail.fusion.client",
    "SyncCodeQueue": "worker.queue.sync",
    "SyncHandle": "worker.queue.handle",
    "WorkerSettings": "worker.settings",
}

__getattr__ = _lazily(__name__, _LAZY)

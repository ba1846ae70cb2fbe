"""The setting of a run: where everything is, and the terms that all processes share."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from buffer import Policy, RolloutBuffer, TaskConfig
from buffer.settings import BufferSettings
from limiter import Adaptive, TokenBucket

TASK = "proof"
SIZE = 2  # samples of a group
LIMIT = Adaptive(start=6, min=3, max=16)
GATE_LEASE = 6.0
POLICY = Policy(
    groups_per_version=8, max_age=3, depth=1, attempts=1000, slot_lease=4.0, when_old="wait"
)
CONFIG = TaskConfig(
    group_size=SIZE, lease=5, retain=86_400, grace=86_400, late_window=86_400, dialect="v1"
)
# Short leases: what a dead process had is another's within seconds.
ENVIRONMENT = {
    "PENSTOCK_JOB_LEASE": "4", "PENSTOCK_SANDBOX_LEASE": "5", "PENSTOCK_REAP_INTERVAL": "1",
    "PENSTOCK_SANDBOX_GRACE": "2", "PENSTOCK_GATEWAY_CALL_LEASE": "3",
    "PENSTOCK_SANDBOX": "local", "PENSTOCK_GATE": "code", "PENSTOCK_GATE_LIMIT": "6",
    "PENSTOCK_CONCURRENCY": "4", "PENSTOCK_MAX_STARTING": "8", "PENSTOCK_SESSION_HUB_IDLE": "5",
    "PENSTOCK_RESULT_TTL": "86400",
}  # fmt: skip


@dataclass(frozen=True)
class Run:
    """What every process is told. `redis` is the address of the proxy."""

    seed: int
    redis: str
    gateways: list[str]
    buffers: list[str]
    engines: list[str]

    @classmethod
    def of(cls, folder: Path) -> "Run":
        return cls(**json.loads((folder / "run.json").read_text()))

    def write(self, folder: Path) -> None:
        (folder / "run.json").write_text(json.dumps(asdict(self)))


def buffer(redis: str) -> RolloutBuffer:
    return RolloutBuffer(redis, TASK, CONFIG, settings=BufferSettings(redis_patience=120))


async def prepare(redis: str) -> None:
    """The task and its policy, as they are before any process asks for them."""
    made = buffer(redis)
    await made.set_policy(POLICY)
    await made.aclose()


def gate(redis: str) -> TokenBucket:
    return TokenBucket(redis, "agents", limit=LIMIT, lease=GATE_LEASE, patience=120)

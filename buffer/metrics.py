"""A buffer's figures for Prometheus: groups by state, totals, ages."""

import time
from collections.abc import Iterable

from prometheus_client import Metric

from buffer.catalog import REWARD_STEPS
from buffer.rollout_buffer import RolloutBuffer
from ground import Sheet

STATES = ("open", "ready", "leased", "kept", "delivered", "discarded", "quarantined")
COUNTERS = {
    "stored": "items", "repeated": "items", "late": "items", "surplus": "items", "full": "items",
    "consumed_items": "items", "invalid_items": "items", "expired_items": "items",
    "quarantined_items": "items",
    "finished": "groups", "delivered": "groups", "consumed": "groups", "invalid": "groups",
    "expired": "groups", "quarantined": "groups", "vanished": "groups", "returned": "groups",
    "requeued": "groups",
    "batches": "batches",
}  # fmt: skip
_AGES = ("open", "ready")


async def families(buffers: Iterable[RolloutBuffer]) -> list[Metric]:
    """The families of all these tasks."""
    sheet = Sheet("run", "task")
    for buffer in buffers:
        ages = {state: await _age(buffer, state) for state in _AGES}
        _enter(sheet, buffer.run, buffer.task, await buffer.stats(), ages)
        counted = zip(REWARD_STEPS, await buffer.rewards(), strict=True)
        sheet.histogram("penstock_buffer_reward", "Rewards of items stored since the run began.",
                        counted, buffer.run, buffer.task)  # fmt: skip
    return sheet.families()


async def _age(buffer: RolloutBuffer, state: str) -> float:
    oldest = await buffer.groups(state, limit=1)
    return max(0.0, time.time() - oldest[0].since) if oldest else 0.0


def _enter(
    sheet: Sheet, run: str, task: str, stats: dict[str, int], ages: dict[str, float]
) -> None:
    where = (run, task)
    for state in STATES:
        value = stats.get(f"{state}_groups", 0)
        sheet.gauge("penstock_buffer_groups", "Groups now in each state.", value, *where,
                    state=state)  # fmt: skip
    sheet.gauge("penstock_buffer_bytes", "Bytes of items in open, ready and leased groups.",
                stats.get("bytes", 0), *where)  # fmt: skip
    for state, age in ages.items():
        sheet.gauge("penstock_buffer_oldest_seconds",
                    "Since the oldest group's last write, or its end.", age, *where,
                    state=state)  # fmt: skip
    for name, unit in COUNTERS.items():
        sheet.count(f"penstock_buffer_{unit}_total",
                    f"{unit.title()} by outcome, since the run began.",
                    stats.get(name, 0), *where, outcome=name.removesuffix("_items"))  # fmt: skip

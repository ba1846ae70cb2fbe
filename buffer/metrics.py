"""A buffer's figures for Prometheus: groups by state, totals, ages."""

from collections.abc import Iterable

from prometheus_client import Metric

from buffer.catalog import REWARD_STEPS
from buffer.counters import COUNTERS, STATES, generation_seconds
from buffer.rollout_buffer import RolloutBuffer
from buffer.versions.publishing import DROPS
from ground.http import Sheet

_AGES = ("open", "ready")


async def families(buffers: Iterable[RolloutBuffer]) -> list[Metric]:
    """The families of all these tasks."""
    sheet = Sheet("run", "task")
    for buffer in buffers:
        now = await buffer._task.link.now()
        ages = {state: await _age(buffer, state, now) for state in _AGES}
        _enter(sheet, buffer.run, buffer.task, await buffer.catalog.stats(), ages)
        await _enter_versions(sheet, buffer)
        counted = zip(REWARD_STEPS, await buffer.catalog.rewards(), strict=True)
        sheet.histogram("penstock_buffer_reward", "Rewards of items stored since the run began.",
                        counted, buffer.run, buffer.task)  # fmt: skip
    return sheet.families()


async def _age(buffer: RolloutBuffer, state: str, now: float) -> float:
    oldest = await buffer.catalog.groups(state, limit=1)
    return max(0.0, now - oldest[0].since) if oldest else 0.0


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


_SLOTS = ("granted", "done", "back", "lapsed", "overdue", "old")


async def _enter_versions(sheet: Sheet, buffer: RolloutBuffer) -> None:
    """Add the figures of a policy on versions."""
    now = await buffer.versions()
    if now.version is None:
        return
    where, stats = (buffer.run, buffer.task), await buffer.catalog.stats()

    def gauge(name: str, help: str, value: float, **more: str) -> None:
        sheet.gauge(f"penstock_buffer_{name}", help, value, *where, **more)

    gauge("version", "The version last published.", now.version)
    gauge("line", "How often training began, at first or from a checkpoint.", now.line)
    gauge("slots", "Slots that are out.", now.slots)
    for age, n in now.outstanding.items():
        gauge("outstanding", "Slots, open and ready groups by age in versions.", n, age=str(age))
    for age, n in now.ready.items():
        gauge("outstanding_ready", "Of the outstanding ones, the ready groups.", n, age=str(age))
    for what, n in {"parked": now.parked, "again": now.again, "asks": now.waiting}.items():
        gauge("waiting", "Groups that wait for a slot, and asks that do.", n, what=what)
    for what, mean in generation_seconds(stats).items():
        gauge("generation_seconds", "Mean time to generate a group.", mean, outcome=what)
    for how in DROPS:
        sheet.count("penstock_buffer_dropped_groups_total",
                    "Groups that the policy discarded, or had generated again.",
                    now.dropped_by.get(how, 0), *where, when_old=how)  # fmt: skip
    gauge("dropped_share", "Share of the groups that the policy dropped.", now.dropped_share)
    gauge("dropped_share_of_ten", "Part of the dropped groups that ten problems account for.",
          now.most_dropped_share)  # fmt: skip
    for what in _SLOTS:
        sheet.count("penstock_buffer_slots_total", "Slots by outcome, since the run began.",
                    stats.get(f"slots_{what}", 0), *where, outcome=what)  # fmt: skip
    sheet.count("penstock_buffer_admission_wait_seconds_total", "Time in the line of granted asks.",
                stats.get("admission_waited_ms", 0) / 1000, *where)  # fmt: skip
    sheet.count("penstock_buffer_admissions_waited_total", "Slots granted to asks in the line.",
                stats.get("admissions_waited", 0), *where)  # fmt: skip
    sheet.count("penstock_buffer_masked_tokens_total", "Tokens delivered but too old to train on.",
                stats.get("masked_tokens", 0), *where)  # fmt: skip
    ages = [(str(age), n) for age, n in now.ages.items()]
    sheet.histogram("penstock_buffer_age_at_take", "Groups delivered by age in versions.",
                    [*ages, ("+Inf", 0)], *where)  # fmt: skip

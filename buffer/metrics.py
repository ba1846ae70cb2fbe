"""A buffer's figures in Prometheus' text format: sizes by state, totals, ages."""

from collections.abc import Iterable

from buffer.rollout_buffer import RolloutBuffer

_GAUGES = ("open", "ready", "leased", "kept", "delivered", "discarded", "quarantined")
_COUNTERS = {
    "stored": "items", "repeated": "items", "late": "items", "surplus": "items", "full": "items",
    "finished": "groups", "consumed": "groups", "invalid": "groups", "expired": "groups",
    "quarantined": "groups", "vanished": "groups", "returned": "groups", "requeued": "groups",
    "batches": "batches",
}  # fmt: skip


async def metrics(buffers: Iterable[RolloutBuffer], now: float) -> str:
    """One page for all tasks of a server."""
    sizes, totals, bytes_, ages = [], [], [], []
    for buffer in buffers:
        stats = await buffer.stats()
        label = f'run="{buffer.run}",task="{buffer.task}"'
        for state in _GAUGES:
            value = stats.get(f"{state}_groups", 0)
            sizes.append(f'penstock_buffer_groups{{{label},state="{state}"}} {value}')
        for name, unit in _COUNTERS.items():
            value = stats.get(name, 0)
            totals.append(f'penstock_buffer_{unit}_total{{{label},outcome="{name}"}} {value}')
        bytes_.append(f"penstock_buffer_bytes{{{label}}} {stats.get('bytes', 0)}")
        for state in ("open", "ready"):
            oldest = await buffer.groups(state, limit=1)
            age = max(0.0, now - oldest[0].since) if oldest else 0.0
            ages.append(f'penstock_buffer_oldest_seconds{{{label},state="{state}"}} {age:.3f}')
    page = [
        "# HELP penstock_buffer_groups Groups now in each state.",
        "# TYPE penstock_buffer_groups gauge", *sizes,
        "# HELP penstock_buffer_bytes Bytes of items in open, ready and leased groups.",
        "# TYPE penstock_buffer_bytes gauge", *bytes_,
        "# HELP penstock_buffer_oldest_seconds Since the oldest group's last write, or its end.",
        "# TYPE penstock_buffer_oldest_seconds gauge", *ages,
    ]  # fmt: skip
    for unit in ("items", "groups", "batches"):
        name = f"penstock_buffer_{unit}_total"
        page += [
            f"# HELP {name} What became of {unit} since the run began.",
            f"# TYPE {name} counter",
            *sorted(line for line in totals if line.startswith(name)),
        ]
    return "\n".join(page) + "\n"

"""The counters of a task and the states of its groups, as operators see them."""

STATES = ("open", "ready", "leased", "kept", "delivered", "discarded", "quarantined")
COUNTERS = {
    "stored": "items", "repeated": "items", "late": "items", "surplus": "items", "full": "items",
    "foreign": "items", "quarantine_dropped": "groups",
    "consumed_items": "items", "invalid_items": "items", "expired_items": "items",
    "quarantined_items": "items",
    "finished": "groups", "delivered": "groups", "consumed": "groups", "invalid": "groups",
    "expired": "groups", "quarantined": "groups", "vanished": "groups", "returned": "groups",
    "requeued": "groups",
    "batches": "batches",
    # Under a policy on versions:
    "stale": "groups", "again": "groups", "returned_by_line": "groups", "let_go_unsaved": "groups",
    "stale_items": "items", "again_items": "items", "parked": "items", "unpublished": "items",
}  # fmt: skip


def generation_seconds(stats: dict[str, int]) -> dict[str, float]:
    """Mean time to make a group that was `delivered`, or `dropped`: discarded or made again."""
    return {
        what: stats.get(f"{what}_ms", 0) / 1000 / max(1, stats.get(f"{what}_timed", 0))
        for what in ("delivered", "dropped")
    }

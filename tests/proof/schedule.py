"""When something breaks, and what: drawn from a seed, so that equal seeds break alike.

Kinds come from a deck that is shuffled whenever it is used up, so even a short run has most of
them.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

ROLES = ("worker", "gateway", "buffer", "trainer", "generator", "client")

# The column of the guarantees' matrix that each kind is in, and its shortest and longest seconds.
# A clock jumps by their cube, 1 to 125 s: by some seconds mostly, and at times by minutes.
KINDS = {
    "kill": ("Process killed", 0.0, 1.5),
    "freeze": ("Process frozen", 0.3, 8.0),
    "redis killed": ("Redis restarted", 0.0, 2.0),
    "failover": ("Failover", 0.0, 0.0),
    "redis frozen": ("Network cut", 0.3, 3.0),
    "cut": ("Network cut", 0.0, 0.0),
    "replies lost": ("Network cut", 0.0, 0.0),
    "held up": ("Network cut", 0.3, 5.0),
    "delayed": ("Network cut", 0.5, 3.0),
    "hub killed": ("Process killed", 0.0, 0.0),
    "disk full": ("Disk full", 0.5, 2.0),
    "clock forward": ("Clock jumped", 1.0, 5.0),
    "clock back": ("Clock jumped", 1.0, 5.0),
}
CLOCKS = ("clock forward", "clock back")
COLUMN = {kind: column for kind, (column, _, _) in KINDS.items()}


@dataclass(frozen=True)
class Disturbance:
    """One of them: at which second of the run, of what kind, whom it hits, how long it lasts."""

    at: float
    kind: str
    target: str
    seconds: float


def drawn(seed: int, seconds: float, every: float, names: Sequence[str]) -> Iterator[Disturbance]:
    """One about every so many seconds. `names`: the processes, as `worker-0`."""
    chance, deck, at = random.Random(seed), list[list[str]](), 0.0
    roles = [role for role in ROLES if any(name.startswith(role) for name in names)]
    cards = [
        *(["kill", role] for role in roles for _ in range(2)),
        *(["freeze", role] for role in roles),
        *([kind, "redis"] for kind in KINDS if kind not in ("kill", "freeze")),
        *([kind, role] for kind in CLOCKS for role in ("worker", "trainer")),
    ]  # fmt: skip
    while (at := at + chance.uniform(0.5, 1.5) * every) < seconds:
        if not deck:
            deck = chance.sample(cards, len(cards))
        kind, role = deck.pop()
        hit = chance.choice([name for name in names if name.startswith(role)] or [role])
        yield Disturbance(round(at, 2), kind, hit, round(chance.uniform(*KINDS[kind][1:]), 2))

"""What the kernel counts and grants a jail's cgroup, through files that the client opened."""

import os
from typing import NamedTuple

_SHARE = 4


class Evidence(NamedTuple):
    """Descriptors of the group's own files; the hierarchy itself is not visible in a jail."""

    memory_events: int
    process_events: int
    peak: int
    weight: int

    def passed(self) -> str | None:
        """Which limit the tree has passed: a fork was refused, or one killed for its memory.

        Forks that are refused use up memory too, so they are asked for first.
        """
        if _count(self.process_events, b"max"):
            return "process_limit"
        return "memory_limit" if _count(self.memory_events, b"oom_kill") else None

    def give_way(self) -> bool:
        """Leave most of the processor to others that want it; False where it cannot be divided."""
        usual = os.pread(self.weight, 64, 0)
        return bool(usual) and os.write(self.weight, b"%d" % (int(usual) // _SHARE)) > 0

    def memory_peak(self) -> int:
        try:
            return int(os.pread(self.peak, 64, 0))
        except (OSError, ValueError):
            return 0  # not every kernel keeps it; the sampled peak stands


def _count(at: int, name: bytes) -> int:
    for line in os.pread(at, 4096, 0).splitlines():
        key, _, value = line.partition(b" ")
        if key == name:
            return int(value)
    return 0

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

    def out_of_memory(self) -> bool:
        """Whether the kernel killed a process of the tree for its memory."""
        return _count(self.memory_events, b"oom_kill") > 0

    def out_of_processes(self) -> bool:
        """Whether a fork was refused."""
        return _count(self.process_events, b"max") > 0

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

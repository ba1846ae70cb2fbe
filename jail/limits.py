"""The limits are what a program may use. Every limit is per execution and holds for its whole tree.

A request names the ones it wants otherwise. The operator's caps bound them, and
one beyond its cap is refused rather than quietly lowered.
"""

import resource
from dataclasses import dataclass
from typing import Any

from ground.numbers import shown
from jail.errors import LimitRefused

MB = 1 << 20
CACHE_MB = 256  # of compiled programs


@dataclass(frozen=True)
class Limits:
    """Seconds and bytes, unless a name says otherwise."""

    wall: float = 10.0
    compile_wall: float = 10.0
    cpu: float = 600.0  # seconds of processor time, of all processes together
    memory: int = 1024 * MB
    processes: int = 64  # and threads
    disk: int = 256 * MB  # all writable folders together
    inodes: int = 16384  # files, folders and links in them
    file_size: int = 256 * MB
    open_files: int = 512  # of one process
    stack: int = 8 * MB  # of Python and scripts; machine code has as much as it has memory
    output: int = 4 * MB  # stdout and stderr together
    fetched: int = 64 * MB  # all fetched files together

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:  # nor what is no number
                raise LimitRefused(f"limit {name} is {value}; it must be above 0")

    def within(self, caps: "Limits") -> "Limits":
        """Itself, if no limit is beyond the operator's cap."""
        for name, cap in vars(caps).items():
            asked = getattr(self, name)
            if asked > cap:
                raise LimitRefused(
                    f"limit {name} is {shown(asked)}, above this sandbox's cap of {cap}; "
                    f"ask for less, or give `LocalSandbox` other `caps`"
                )
        return self

    def on_the_wire(self) -> dict[str, Any]:
        return dict(vars(self))


DEFAULTS = Limits()
CAPS = Limits(
    wall=3600.0,
    compile_wall=3600.0,
    cpu=4 * 3600.0,
    memory=8192 * MB,
    processes=1024,
    disk=2048 * MB,
    inodes=1 << 20,
    file_size=2048 * MB,
    open_files=4096,
    stack=64 * MB,
    output=64 * MB,
    fetched=256 * MB,
)


def room_for_descriptors() -> int:
    """Let this process have as many open as it may, and say how many that is.

    The kernel counts those that a user has under way in sockets. It sends no more for a process
    beyond its own limit. So our limit must be well above what a program can get under way.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most

"""A wall clock that jumps under processes while they run: libfaketime, loaded under each of them.

    clock = Clock(folder)
    with PrivateRedis(folder, environment=clock.environment) as server:
        clock.jump_of(server, 60)

The monotonic clock goes on as it is: a real jump does not move it either.
"""

import ctypes
import os
import time
from importlib.util import find_spec
from pathlib import Path

from tests.harness.servers import PrivateRedis, until


def library() -> Path | None:
    """libfaketime, if this machine has it: its wheel's is for Linux on x86-64."""
    found = find_spec("libfaketime")
    for folder in found.submodule_search_locations or () if found else ():
        file = Path(folder) / "vendor/libfaketime/src/libfaketime.so.1"
        if file.exists():
            return file
    return None


SEEN_WITHIN = 2.0  # seconds, of a process that looks at its clock


class Clock:
    """One clock; any number of processes may have it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / "clock"
        self._shared = f"/penstock-{os.getpid()}-{id(self):x}"
        self.offset = 0.0  # seconds that it is ahead of the machine's
        self._latest = 0.0  # the latest time that it has shown
        self._write()
        _make_shared(self._shared)

    @property
    def environment(self) -> dict[str, str]:
        """What a process is started with that has this clock."""
        return {
            "LD_PRELOAD": str(library()), "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": "0", "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1", "FAKETIME_SHARED": f"{self._shared} {self._shared}",
        }  # fmt: skip

    @property
    def now(self) -> float:
        return time.time() + self.offset

    @property
    def behind(self) -> float:
        """How many seconds it is before the latest time that it has shown."""
        return max(0.0, self._latest - self.now)

    def jump(self, seconds: float) -> None:
        """Forward, or back if they are below 0."""
        self._latest = max(self._latest, self.now)
        self.offset += seconds
        self._write()

    def jump_of(self, server: PrivateRedis, seconds: float) -> None:
        """Returns when the server sees it."""
        self.jump(seconds)
        until(lambda: abs(self.now - _time_of(server)) < 0.5, "a server that sees its clock jump")

    def close(self) -> None:
        _remove_shared(self._shared)

    def _write(self) -> None:
        """It is read at any moment, and half a line would end the process."""
        half = self._file.with_suffix(".half")
        half.write_text(f"{self.offset:+.3f}\n")
        half.rename(self._file)


def _time_of(server: PrivateRedis) -> float:
    seconds, us = server.ask("TIME")
    return int(seconds) + int(us) / 1e6


def _make_shared(name: str) -> None:
    """A semaphore and a piece of memory, which libfaketime would make for each process, and which
    a SIGKILL would leave behind."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.sem_open.restype = ctypes.c_void_p
    if not libc.sem_open(name.encode(), os.O_CREAT | os.O_EXCL, 0o600, 1):
        raise OSError(ctypes.get_errno(), f"no semaphore {name}")
    (Path("/dev/shm") / name.strip("/")).write_bytes(bytes(4096))


def _remove_shared(name: str) -> None:
    ctypes.CDLL(None).sem_unlink(name.encode())
    (Path("/dev/shm") / name.strip("/")).unlink()

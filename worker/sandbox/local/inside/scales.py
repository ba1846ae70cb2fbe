"""Memory of processes by proportional share, which counts a page that they share once.

To read a share is to wait for whatever that process does to its memory just then, and a fork bomb
on a busy machine has that take half a minute. So it is read in a thread, and init goes on looking.
"""

import _thread
import time

_SOON = 0.02  # seconds; it takes a millisecond or two where nobody hinders it
_OVERDUE = 1.0


class Weighing:
    """Of a tree's processes with their resident memory; begun as it is made."""

    def __init__(self, processes: list[tuple[str, int]]) -> None:
        self._processes = processes
        self._share = 0
        self._began = time.monotonic()
        self._under_way = _thread.allocate_lock()
        self._under_way.acquire()
        _thread.start_new_thread(self._weigh, ())

    def _weigh(self) -> None:
        self._share = sum(_proportional(pid, resident) for pid, resident in self._processes)
        self._under_way.release()

    def share(self) -> int | None:
        """In bytes; None if it is not known yet. One that hinders us long is counted in full."""
        if self._under_way.acquire(timeout=_SOON):
            self._under_way.release()
            return self._share
        if time.monotonic() - self._began > _OVERDUE:
            return sum(resident for _, resident in self._processes)
        return None


def _proportional(pid: str, resident: int) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * 1024
    except PermissionError:
        return resident  # it made itself unreadable, and is counted in full for that
    except OSError:
        pass  # it has ended
    return 0

"""Keeps the leases of this process's session sandboxes, off everybody's event loop.

A sandbox that nobody in this process answers for any more is not kept: its lease ends,
and the reaper takes it. A process that dies keeps nothing, and so leaks nothing.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from redis.exceptions import RedisError

from ground import new_owner
from ground.process import in_forked_child
from worker.lifecycle.registry.registry import Registry

log = logging.getLogger("penstock.worker")


@dataclass
class _Kept:
    fence: str
    on_lost: list[Callable[[], None]]


class Keeper:
    """Beats every third of a lease while there is something to keep."""

    def __init__(self, registry: Registry, lease: float) -> None:
        self.lease = lease
        self._registry = registry
        self._forget_parent()
        in_forked_child(self._forget_parent)

    def _forget_parent(self) -> None:
        """A forked child keeps nothing of its parent's, and is another owner."""
        self._kept: dict[str, _Kept] = {}
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None
        self.owner = new_owner()

    def keep(self, name: str, fence: str, on_lost: Callable[[], None]) -> None:
        """Renew its lease from now on, until everybody who asked for that has dropped it."""
        with self._guard:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="penstock-sandboxes", daemon=True)
                thread.start()  # it waits for the guard; there may be no room for it
                self._thread = thread
            kept = self._kept.setdefault(name, _Kept(fence, []))
            kept.fence = fence
            kept.on_lost.append(on_lost)

    def drop(self, name: str, on_lost: Callable[[], None]) -> None:
        """The reverse of `keep`. Harmless when it was lost or dropped before."""
        with self._guard:
            kept = self._kept.get(name)
            if kept is not None and on_lost in kept.on_lost:
                kept.on_lost.remove(on_lost)
                if not kept.on_lost:
                    del self._kept[name]

    def _run(self) -> None:
        pause = self.lease / 3
        while True:
            time.sleep(pause)
            pause = self.lease / 3
            with self._guard:
                if not self._kept:
                    self._thread = None
                    return
                rows = [(name, kept.fence, self.lease) for name, kept in self._kept.items()]
            try:
                self._digest(rows, self._registry.renew(rows))
            except (RedisError, OSError) as failure:
                # Late renewals count: no reaper acts in its first lease after an outage. After
                # one too short for that, what was missed is made good at once.
                pause = min(1.0, self.lease / 12)
                log.warning("the leases of this process's sandboxes were not renewed: %s", failure)
            except Exception:  # no other thread takes over: this one continues
                log.exception("the leases of this process's sandboxes were not renewed")

    def _digest(self, rows: list[tuple[str, str, float]], held: list[bool]) -> None:
        for (name, fence, _), is_held in zip(rows, held, strict=True):
            if is_held:
                continue
            with self._guard:
                kept = self._kept.get(name)
                if kept is None or kept.fence != fence:
                    continue
                del self._kept[name]
            log.warning("sandbox %s was taken over by a reaper, or killed", name)
            for on_lost in kept.on_lost:
                try:
                    on_lost()
                except Exception:  # one's trouble keeps no other from hearing of it
                    log.exception(
                        "sandbox %s: a user of it could not be notified of its loss", name
                    )

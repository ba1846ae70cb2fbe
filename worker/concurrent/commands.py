"""The worker's scripts as commands, for one queue: which keys, which arguments, in which order.

The headers of `lua/*.lua` next to this file say the same; this is their only caller. With a
gate the scripts have their gated form, whose first keys and arguments are the gate's.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ground.keys import tagged
from ground.lua import Command, Script, load_script
from limiter import Report
from limiter.commands import SCRIPTS as GATE_SCRIPTS
from limiter.commands import GateCommands

_NAMES = ("claim", "finish", "return", "drop", "beat")
_PLAIN = {name: load_script("worker.concurrent", name) for name in (*_NAMES, "reap")}
_REJOIN = load_script("worker.queue", "rejoin")
_GATED = {name: load_script("worker.concurrent", name, "gated", "full") for name in _NAMES}
# With a breaker. The others' scripts have no line of it.
_WITH_BREAKER = ("claim", "finish", "drop")
_PLAIN_WITH_BREAKER = {
    name: load_script("worker.concurrent", name, "with_breaker") for name in _WITH_BREAKER
}
_GATED_WITH_BREAKER = {
    name: load_script("worker.concurrent", name, "gated", "full", "with_breaker")
    for name in _WITH_BREAKER
}
_ALL = (_PLAIN, _GATED, _PLAIN_WITH_BREAKER, _GATED_WITH_BREAKER, GATE_SCRIPTS)
SCRIPTS: dict[str, Script] = {script.sha: script for each in _ALL for script in each.values()}

KEEP = 3600  # seconds that RQ's own cleaners act later than our reaper
MOST = 500  # jobs in one script call


class WorkCommands:
    """The commands of one worker on one queue."""

    def __init__(
        self,
        queue: str,
        worker: str,
        lease: float,
        gate: GateCommands | None,
        breaker: "tuple[int, int] | None" = None,
    ) -> None:
        """`breaker`: how many ends without an outcome open it, of how many ends."""
        self.queue = queue
        self.jobs = f"rq:queue:{queue}"
        self.hand = tagged("work", queue, f"hand:{worker}")
        self._worker = worker
        self._gate = gate
        self._scripts = _PLAIN if gate is None else _GATED
        self._breaker: tuple[int, ...] = ()
        self._unknown: tuple[str, ...] = ()
        if breaker is not None:
            self._scripts = self._scripts | (
                _PLAIN_WITH_BREAKER if gate is None else _GATED_WITH_BREAKER
            )
            self._breaker, self._unknown = breaker, (tagged("work", queue, "unknown"),)
        self.lease = lease
        self._lease_us = int(lease * 1_000_000)
        self._keep = int(lease) + KEEP
        self._wip = f"rq:wip:{queue}"
        self._work = tagged("work", queue)
        self.leases = tagged("work", queue, "leases")
        self._workers = tagged("work", queue, "workers")
        self._sought = tagged("work", queue, "sought")
        self._worker_key = f"rq:worker:{worker}"
        self._executions = f"rq:worker:{worker}:executions"

    def claim(self, want: int, granted: str = "") -> Command:
        """`granted`: a permit that the gate's line gave this worker, to become a job's."""
        keys = (self.jobs, self.hand, self._wip, self._work, self.leases, self._worker_key,
                self._executions)  # fmt: skip
        args = (self._lease_us, self._keep, min(want, MOST), self._worker, granted)
        return self._either("claim", keys, args)

    def finish(self, rows: Iterable[tuple[Any, ...]]) -> Command:
        """Each row: id, execution, how, ttl, payload, started, waited, notice, hold_us (and a
        report)."""
        keys = (*self._unknown, self.jobs, self._wip, self._work, self.leases, self._worker_key,
                self._executions)  # fmt: skip
        return self._either("finish", keys, (*self._breaker, self._worker, *_flat(rows)))

    def give_back(self, rows: Sequence[tuple[Any, ...]], *, leaving: bool) -> Command:
        """Each row: id, execution, hold_us."""
        keys = (self.jobs, self.hand, self._wip, self._work, self.leases, self._worker_key,
                self._executions, self._workers)  # fmt: skip
        return self._either("return", keys, (self._worker, int(leaving), *_flat(reversed(rows))))

    def drop(self, row: tuple[Any, ...]) -> Command:
        """The row: id, execution, reply_to, status, program, started, waited, hold_us (and a
        report). Sent whole: it is part of RQ's own transaction, which is not sent again."""
        keys = (*self._unknown, self.jobs, self._wip, self._work, self.leases, self._worker_key,
                self._executions)  # fmt: skip
        return self._either("drop", keys, (*self._breaker, *row), whole=True)

    def rejoin(self, id: str) -> Command:
        """Move a job from RQ's list to its share's, in the transaction by which RQ enqueues it
        again."""
        return _REJOIN.command((self.jobs,), (id,), whole=True)

    def beat(self, now: str, rows: Iterable[tuple[Any, ...]]) -> Command:
        """Each row: id, execution, fence of its permit, hold_us."""
        keys = (self._wip, self.leases, self._workers)
        return self._either(
            "beat", keys, (self._lease_us, self._keep, self._worker, now, *_flat(rows))
        )

    def reap(self, bound: int) -> Command:
        keys = (self.jobs, self._wip, self._work, self.leases, self._workers, self._executions,
                self._sought)  # fmt: skip
        return _PLAIN["reap"].command(keys, (self._lease_us, self._keep, bound))

    def free_permit(self, permit: str, fence: int, report: Report) -> Command:
        assert self._gate is not None  # noqa: S101 - there are no permits without a gate
        return self._gate.give_back(permit, f"{fence} {report}" if report else fence)

    def _either(
        self, name: str, keys: tuple[str, ...], args: tuple[Any, ...], *, whole: bool = False
    ) -> Command:
        if self._gate is not None:
            keys, args = (*self._gate.keys, *keys), (*self._gate.head, *args)
        return self._scripts[name].command(keys, args, whole=whole)


def _flat(rows: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
    return (part for row in rows for part in row)


@dataclass(slots=True)
class Claim:
    """A claim is the reply to one command: the jobs that were claimed."""

    sent: float  # when we asked, by our own clock: the leases begin after that
    now: float
    left: int
    suspended: bool  # by `rq suspend`: every queue is
    paused: bool  # this queue alone is
    shut: bool
    jobs: list[list[Any]]
    dropped: list[tuple[str, str]]  # some jobs that were taken off and do not run, each with why

    @property
    def rows(self) -> list[tuple[bytes, bytes, int]]:
        """The executions to be given back unstarted."""
        return [(id, execution, 0) for id, execution, *_ in self.jobs]

    def is_stale(self, lease: float) -> bool:
        """Whether this process was frozen for so long that its leases may have ended."""
        return time.monotonic() - self.sent > lease * 5 / 6


def read_claim(reply: list[Any], sent: float) -> Claim:
    now, left, suspended, shut, *rows = reply
    held, dropped = int(suspended), list[tuple[str, str]]()
    while rows and len(rows[-1]) == 2:
        id, why = rows.pop()
        dropped.append((id.decode(errors="backslashreplace"), why.decode()))
    return Claim(sent, int(now) / 1e6, int(left), held == 1, held == 2, bool(shut), rows, dropped)

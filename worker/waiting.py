"""Whose outcome is awaited, job by job: several orders may be for one, all with its token."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from worker.order import Order

if TYPE_CHECKING:
    from worker.ear import Ear


class Waiting:
    """See the module. A signal's handler may raise in the midst of `remove`: the list by job is
    changed last, so that the order is found there and removed once more."""

    def __init__(self) -> None:
        self._by_job: dict[str, list[Order]] = {}
        self._by_ear: dict[Ear | None, dict[Order, None]] = {}

    def add(self, order: Order) -> None:
        self._by_ear.setdefault(order.ear, {})[order] = None
        self._by_job.setdefault(order.id, []).append(order)

    def remove(self, order: Order) -> None:
        theirs = self._by_ear.get(order.ear, {})
        theirs.pop(order, None)
        if not theirs:
            self._by_ear.pop(order.ear, None)
        if others := self.others(order):
            self._by_job[order.id] = others
        else:
            self._by_job.pop(order.id, None)

    def others(self, order: Order) -> list[Order]:
        """Those that are for the same job."""
        return [other for other in self.of(order.id) if other is not order]

    def of(self, job: str) -> list[Order]:
        return self._by_job.get(job, [])

    @property
    def only_ear(self) -> "Ear | None":
        """That of the one loop on which all of them are awaited, where there is one."""
        return next(iter(self._by_ear)) if len(self._by_ear) == 1 else None

    def __iter__(self) -> Iterator[Order]:
        return (order for orders in self._by_job.values() for order in orders)

    def __bool__(self) -> bool:
        return bool(self._by_job)

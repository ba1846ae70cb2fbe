"""Whose outcome is awaited, job by job: several orders may be for one, all with its token."""

from collections.abc import Iterator

from worker.order import Order


class Waiting:
    """See the module."""

    def __init__(self) -> None:
        self._by_job: dict[str, list[Order]] = {}

    def add(self, order: Order) -> None:
        self._by_job.setdefault(order.id, []).append(order)

    def remove(self, order: Order) -> None:
        if others := self.others(order):
            self._by_job[order.id] = others
        else:
            self._by_job.pop(order.id, None)

    def others(self, order: Order) -> list[Order]:
        """Those that are for the same job."""
        return [other for other in self.of(order.id) if other is not order]

    def of(self, job: str) -> list[Order]:
        return self._by_job.get(job, [])

    def __iter__(self) -> Iterator[Order]:
        return (order for orders in self._by_job.values() for order in orders)

    def __bool__(self) -> bool:
        return bool(self._by_job)

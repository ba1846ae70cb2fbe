"""A mapping of limited size."""

from collections import OrderedDict
from typing import Generic, TypeVar

V = TypeVar("V")


class Recent(OrderedDict[str, V], Generic[V]):
    """At most this many entries: the one that was not used for longest is dropped first."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def use(self, key: str) -> V | None:
        if key in self:
            self.move_to_end(key)
        return self.get(key)

    def put(self, key: str, value: V) -> None:
        self[key] = value
        self.move_to_end(key)
        if len(self) > self._most:
            self.popitem(last=False)

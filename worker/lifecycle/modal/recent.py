"""What is remembered of sandboxes that may have ended long ago, elsewhere: the last so many."""

from collections import OrderedDict
from typing import Generic, TypeVar

V = TypeVar("V")


class Recent(OrderedDict[str, V], Generic[V]):
    """What was used last stays; what has not been used for longest gives way."""

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

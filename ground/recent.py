"""A mapping of limited size keeps its newest entries: it never outgrows its bound."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

V = TypeVar("V")


class Recent(OrderedDict[Hashable, V], Generic[V]):
    """A dict of at most so many entries: the one that was not used for longest is dropped first.

    With `size_of`, their sizes together are at most `most`, and only `drop` takes one out.
    """

    def __init__(self, most: int, size_of: Callable[[V], int] | None = None) -> None:
        super().__init__()
        self.most = most
        self._size_of = size_of
        self.size = 0

    def use(self, key: Hashable) -> V | None:
        if key in self:
            self.move_to_end(key)
        return self.get(key)

    def drop(self, key: Hashable) -> None:
        value = self.pop(key, None)
        if value is not None and self._size_of is not None:
            self.size -= self._size_of(value)

    def put(self, key: Hashable, value: V) -> None:
        before = self.get(key)
        self[key] = value
        self.move_to_end(key)
        if self._size_of is None:
            if len(self) > self.most:
                self.popitem(last=False)
            return
        self.size += self._size_of(value) - (0 if before is None else self._size_of(before))
        while self.size > self.most:
            self.size -= self._size_of(self.popitem(last=False)[1])

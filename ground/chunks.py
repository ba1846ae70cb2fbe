"""A long list in parts, each short enough for one script call or one pipeline."""

from collections.abc import Iterator
from typing import TypeVar

T = TypeVar("T")


def chunks(items: list[T], size: int) -> Iterator[list[T]]:
    """The items in order, `size` at a time; the last part may be shorter."""
    return (items[start : start + size] for start in range(0, len(items), size))

"""How much of all requests together a server holds."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Held:
    """A count of the bytes of all requests that are here. A request that would be too much is
    refused, with the error that `refusal` makes of the reason."""

    def __init__(self, most_bytes: int, refusal: Callable[[str], Exception]) -> None:
        self.most, self.bytes = most_bytes, 0
        self._refusal = refusal

    @contextmanager
    def some(self) -> Iterator[Callable[[int], None]]:
        """A `with` block for one request. It yields the function that counts so many bytes more, or
        fewer; what is left is given back at the end."""
        own = 0

        def take(more: int) -> None:
            nonlocal own
            own += more
            self.bytes += more
            if more > 0 and self.bytes > self.most:
                raise self._refusal(f"{self.bytes:,} bytes of requests are here already")

        try:
            yield take
        finally:
            self.bytes -= own

"""A step's process, and what it prints: read here as it comes, and cut at the limit of output."""

import os

from .wire import Socket

_CHUNK = 1 << 16


class Running:
    """A step's process: while it waits for its order, while it runs, and after."""

    def __init__(
        self, pid: int, streams: dict[int, bytearray], complaint: int, line: Socket
    ) -> None:
        self.pid = pid
        self.streams = streams
        self.complaint = complaint
        self.line = line  # for the order
        self.started = 0.0
        self.wait_status: int | None = None
        self.verdict: str | None = None
        self.gave_way = False

    def take(self, stream: int, limit: int) -> bool:
        """Read what there is, up to the limit; False when the stream is at its end or empty."""
        try:
            chunk = os.read(stream, _CHUNK)
        except BlockingIOError:
            return False
        room = limit - sum(map(len, self.streams.values()))
        self.streams[stream] += chunk[: max(0, room)]
        if len(chunk) > room:
            self.verdict = self.verdict or "output_limit"
            return False
        return bool(chunk)

"""A trouble that lasts is logged once, as is its end, however often the thing is tried again."""

import logging
import time


class Complaint:
    """A complaint is about one thing that is tried again and again.

    complaint = Complaint(log, "heartbeat")
    complaint.of("Redis does not answer")    # WARNING heartbeat: Redis does not answer
    complaint.of("Redis does not answer")    # nothing: it was said
    complaint.over()                         # INFO heartbeat: it works again, after 31 s
    """

    def __init__(self, log: logging.Logger, what: str) -> None:
        self._log, self._what = log, what
        self._said: set[str] = set()
        self._since = 0.0

    def of(self, why: object) -> None:
        """Log why it does not work, unless that was said since it last worked."""
        if not self._said:
            self._since = time.monotonic()
        if (words := str(why)) not in self._said:
            self._said.add(words)
            self._log.warning("%s: %s", self._what, words)

    def over(self) -> None:
        """Log that it works, if it did not before."""
        if self._said:
            self._said.clear()
            seconds = time.monotonic() - self._since
            self._log.info("%s: it works again, after %.0f s", self._what, seconds)

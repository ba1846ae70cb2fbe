"""An outage of Redis: when a broken connection is tried again, and with which pauses.

The engine (engine.py) reports each try that failed. It sends nothing before `retry_at`. What got no
reply is sent again (unit.py), or is given up by its own patience, counted from `since`.
"""

from ground.backoff import backoff

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0  # seconds


class Outage:
    """Redis is there as long as `since` is None."""

    since: float | None = None
    cause: BaseException | None = None
    retry_at = 0.0
    _failures = 0

    def failed(self, now: float, cause: BaseException, timeout: float) -> float:
        """A try has failed. The return value is the time of the outage's first failure.

        No pause is longer than the timeout of a command: what is lost is noticed within the
        margin of a lease.
        """
        if self.since is None:
            self.since = now
        self._failures += 1
        self.cause = cause
        longest = min(_LONGEST_PAUSE, timeout)
        self.retry_at = now + backoff(self._failures, _FIRST_PAUSE, longest)
        return self.since

    def over(self) -> None:
        self.since, self._failures = None, 0

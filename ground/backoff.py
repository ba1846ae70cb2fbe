"""A backoff says how long to pause before the next try of what failed. Each pause is longer than
the one before, up to a bound.

Those that try again ask it: ground/redis/outage.py for a lost Redis, for example."""

import math
import time
from email.utils import parsedate_to_datetime


def backoff(failures: int, first: float, longest: float) -> float:
    """Seconds to pause after this many failures in a row: `first` after one, doubled for each
    further one, at most `longest`."""
    return min(longest, first * 2.0 ** min(failures - 1, 60))  # 2.0 ** 2000 is an OverflowError


def retry_after_seconds(header: str) -> float | None:
    """A Retry-After header, seconds or a date; None if it says nothing."""
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(header).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None

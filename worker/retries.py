"""When to try a sandbox again, and how long to wait before: with no permit held.

    attempts ≤ policy.attempts;  wait ≥ the sandbox's own Retry-After, up to `longest`

The wait is drawn at random from a window that doubles, so that the jobs that
failed together do not come back together.
"""

import random
from dataclasses import dataclass

from ground.errors import SettingError
from worker.errors import SandboxFailure


@dataclass(frozen=True)
class RetryPolicy:
    """How often, and how patiently. The worker asks `wait_after` between attempts."""

    attempts: int = 6
    first: float = 0.5
    longest: float = 30.0

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise SettingError("attempts", f"at least 1 attempt is made, not {self.attempts}")
        if not 0 < self.first <= self.longest:
            raise SettingError(
                "first", f"the first window, {self.first} s, must be above 0 and at most "
                f"the longest wait, {self.longest} s"
            )  # fmt: skip

    def wait_after(
        self,
        failure: SandboxFailure,
        attempt: int,
        *,
        remaining: float | None = None,
        draw: random.Random | None = None,
    ) -> float | None:
        """Seconds until the next attempt, or None: report the failure.

        `attempt` counts from 1; `remaining` are the seconds the job has left.
        """
        if not failure.retryable or attempt >= self.attempts:
            return None
        wait = (draw or _RANDOM).uniform(0, self._window(attempt))
        if failure.retry_after is not None:
            wait += min(max(failure.retry_after, 0.0), self.longest)
        return None if remaining is not None and wait >= remaining else wait

    def _window(self, attempt: int) -> float:
        # The exponent is bounded before it is used: 2.0 ** 2000 is an OverflowError.
        return float(min(self.longest, self.first * 2 ** min(attempt - 1, 60)))


_RANDOM = random.Random()

"""The shares of one queue: who waits, and how many jobs of each run for one of another."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ground import SettingError, connect
from ground.keys import tagged
from ground.lua import load_script
from ground.numbers import check_whole
from ground.redis.url import RedisTarget
from ground.shares import MOST_WEIGHTS, ShareStatus, read_rows, too_many_weights, weight_text

Charge = Literal["jobs", "seconds"]
_KEPT = ("shares", "idle", "weights", "clock")
_WEIGH, _SHOW = (load_script("worker.queue", name) for name in ("weigh", "show_shares"))


class Share(ShareStatus):
    """A share of a queue.

    waiting  its jobs that no worker has taken yet
    weight   how many of its jobs run for one job of a share with weight 1
    own      whether the weight is its own, or the one for all others
    """


@dataclass(frozen=True)
class Shares:
    """The shares of a queue at one moment.

    others   the weight of shares that have none of their own
    by       what a share is charged for a job: `jobs`, or `seconds` that it ran
    waiting  how many shares have jobs; `shares` may list fewer
    shares   those with jobs, in the order of their turns, then those with a weight and no jobs
    """

    others: float
    waiting: int
    shares: tuple[Share, ...]
    by: Charge


class QueueShares:
    """The shares of one queue; each call blocks until Redis has answered."""

    def __init__(self, target: RedisTarget, queue: str) -> None:
        self._target = target
        self._keys = _keys_of(queue)

    def set_weights(self, weights: Mapping[str, float | None], by: Charge | None) -> None:
        if by not in (None, "jobs", "seconds"):
            raise SettingError("by", f"is 'jobs' or 'seconds', not {by!r:.40}")
        words = [
            word
            for share, weight in weights.items()
            for word in (share, weight_text(share, weight))
        ]
        if not self._call(_WEIGH, [MOST_WEIGHTS, by or "", *words]):
            raise too_many_weights()

    def read(self, most: int) -> Shares:
        check_whole("most", most)
        return _shown(self._call(_SHOW, [most]))

    def _call(self, script: Any, words: list[Any]) -> Any:
        client = connect(self._target)
        try:
            return script.call(client, self._keys, words)
        finally:
            client.close()


async def shares_of(client: Any, queue: str, most: int) -> Shares:
    """The shares as `QueueShares.read` gives them, by a client of the running event loop."""
    return _shown(await _SHOW.call_async(client, _keys_of(queue), [most]))


def _keys_of(queue: str) -> tuple[str, ...]:
    return (f"rq:queue:{queue}", *(tagged("work", queue, part) for part in _KEPT))


def _shown(reply: Any) -> Shares:
    others, seconds, waiting, *rows = reply
    shares = read_rows(Share, float(others), rows)
    return Shares(float(others), int(waiting), shares, "seconds" if seconds else "jobs")

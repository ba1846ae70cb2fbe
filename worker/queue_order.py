"""In which order a worker asks its queues: RQ's dequeue strategies."""

import random
from collections.abc import Callable, Iterator

DEFAULT, RANDOM, ROUND_ROBIN = "default", "random", "round_robin"


class QueueOrder:
    """By default the first queue has all it can give; otherwise they take turns, a job each."""

    def __init__(self, queues: list[str], strategy: str) -> None:
        self._queues = queues
        self._strategy = strategy

    @property
    def takes_turns(self) -> bool:
        return self._strategy != DEFAULT and len(self._queues) > 1

    def turns(self, room: int, left_out: Callable[[str], bool]) -> Iterator[tuple[str, int]]:
        """Which queues to ask, and for how many jobs."""
        asked = [queue for queue in self._queues if not left_out(queue)]
        if self._strategy == RANDOM:
            random.shuffle(asked)
        yield from ((queue, 1 if self.takes_turns else room) for queue in asked)

    def had_its_turn(self, queue: str) -> None:
        if self._strategy == ROUND_ROBIN:
            at = self._queues.index(queue) + 1
            self._queues = self._queues[at:] + self._queues[:at]

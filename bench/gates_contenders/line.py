"""What one call costs the server while so many wait: `line.py URL WAITING CALLS`.

Median microseconds by the server's own account (INFO commandstats), taken call by call, so
that one which the machine interrupted counts for no more than the others.
"""

import json
import random
import statistics
import sys
import uuid
from typing import Any

from ground import connect, tagged
from limiter.commands import SCRIPTS, Command, GateCommands
from limiter.terms import Terms

HOUR = 3_600_000_000  # microseconds
CHUNK = 500


class Line:
    """A gate whose one permit is held, and those who wait for it, in order."""

    def __init__(self, url: str, length: int) -> None:
        self._redis: Any = connect(url)
        self._redis.flushall()
        for script in SCRIPTS.values():
            self._redis.script_load(script.source)
        self._waiters = GateCommands("line", Terms(limit=1), "bench:1:waiters")
        self._holders = GateCommands("line", Terms(limit=1), "bench:2:holders")
        self._holder = ""
        self._waiting: list[str] = []
        self.acquire()
        while len(self._waiting) < length:
            self.acquire(min(CHUNK, length - len(self._waiting)))

    def acquire(self, count: int = 1) -> int:
        ids = [uuid.uuid4().hex for _ in range(count)]
        taken = self._cost(
            self._waiters.acquire([(i, 0, "", HOUR, 0) for i in ids], HOUR, join=True)
        )
        self._waiting += ids
        self._let_in()
        return taken

    def pair(self) -> int:
        """A release rides with an acquire: the first in line is let in, who asks stands last."""
        joining = uuid.uuid4().hex
        taken = self._cost(
            self._waiters.acquire(
                [(joining, 0, "", HOUR, 0)], HOUR, join=True, released=[self._given_back()]
            )
        )
        self._waiting.append(joining)
        self._let_in()
        return taken

    def cancel(self) -> int:
        """Somebody, anywhere in the line, gives up."""
        gone = self._waiting.pop(random.randrange(len(self._waiting)))
        return self._cost(self._waiters.cancel("cancelled", [gone]))

    def release(self) -> int:
        """The permit goes to the first in line."""
        taken = self._cost(self._holders.release([self._given_back()]))
        self._let_in()
        return taken

    def _given_back(self) -> tuple[str, int]:
        held, self._holder = self._holder, ""
        return held, int(self._redis.hget(tagged("gate", "line"), "fence"))

    def _let_in(self) -> None:
        if not self._holder and self._waiting:
            self._holder = self._waiting.pop(0)

    def _cost(self, command: Command) -> int:
        before = self._spent()
        self._redis.execute_command(*command)
        return self._spent() - before

    def _spent(self) -> int:
        stats = self._redis.info("commandstats").get("cmdstat_evalsha", {"usec": 0})
        return int(stats["usec"])


def main() -> None:
    url, waiting, calls = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    line = Line(url, waiting)
    taken: dict[str, list[int]] = {"acquire": [], "cancel": [], "pair": [], "release": []}
    for _ in range(calls):  # each time round, the line is as long as before
        taken["acquire"].append(line.acquire())
        taken["cancel"].append(line.cancel())
        taken["pair"].append(line.pair())
        taken["release"].append(line.release())
        line.acquire()
    metrics = {f"server µs per {call}": statistics.median(cost) for call, cost in taken.items()}
    print(json.dumps(metrics))


if __name__ == "__main__":
    main()

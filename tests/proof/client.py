"""A client: `python client.py FOLDER NAME`. It holds permits and has programs run, by what every
release has: so it is of the older one, too.
"""

import asyncio
import itertools
import random
import sys
from pathlib import Path

from ground import PenstockError, SettingError
from tests.proof import programs, setting
from tests.proof.journal import Journal, read
from worker import CodeQueue

LANES = 2
PAUSE = 0.2  # seconds, which leave the processors to the others


class Client:
    """One life of a client."""

    def __init__(self, folder: Path, name: str) -> None:
        run = setting.Run.of(folder)
        self._folder, self._name, self._journal = folder, name, Journal(folder, name)
        before = [line for line in read(folder, name) if line["what"] == "submits"]
        self._numbers = itertools.count(len(before))
        self._chance = random.Random(f"{run.seed}/{name}/{len(before)}")
        self._gate, self._queue = setting.gate(run.redis), CodeQueue(run.redis, "code")
        self._journal.watch_for_standstill()

    async def work(self) -> None:
        async with asyncio.TaskGroup() as lanes:
            for _ in range(LANES):
                lanes.create_task(self._lane())

    async def _lane(self) -> None:
        while not (self._folder / "stop").exists():
            try:
                await self._one_job(f"{self._name}-{next(self._numbers)}")
                await asyncio.sleep(PAUSE)
            except SettingError:
                raise  # our own mistake
            except PenstockError as error:
                self._journal.add("failed", error=type(error).__name__, said=str(error))
                await asyncio.sleep(0.1)

    async def _one_job(self, job: str) -> None:
        permit = await self._gate.acquire(share="train", timeout=60)
        self._journal.add("has a permit", fence=permit.fence, cost=1)
        permit.on_lost = lambda: self._journal.add("lost a permit", fence=permit.fence)
        try:
            if run := await programs.submit(self._queue, self._journal, job):
                await programs.ask_again(self._queue, self._journal, job, run)
        finally:
            self._journal.add("returns a permit", fence=permit.fence)
            permit.release()


if __name__ == "__main__":
    asyncio.run(Client(Path(sys.argv[1]), sys.argv[2]).work())

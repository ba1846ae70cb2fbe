"""A trainer: `python trainer.py FOLDER NAME`. `trainer-0` leads: it publishes versions, and uses
the library. Any other takes beside it, by the buffer servers' HTTP.

Each looks at every row it takes: the log-probability of each trained token must be the one that the
engine's model has in that context.
"""

import asyncio
import contextlib
import itertools
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Protocol

import httpx

from buffer import LeaseLost
from gateway.items import rows_in
from gateway.packing import spread
from tests.gateway.scripted.model import misproved
from tests.proof import programs, setting
from tests.proof.journal import Journal, read
from worker import CodeQueue

GROUPS = 2  # of a batch

Taken = tuple[str, int, list[int], list[tuple[str, list[dict[str, Any]]]]]


class Source(Protocol):
    """Where batches come from."""

    async def take(self) -> Taken | None: ...
    async def ack(self, receipt: str) -> None: ...


class Library:
    """The buffer as an object."""

    def __init__(self, run: setting.Run) -> None:
        self.buffer = setting.buffer(run.redis)

    async def take(self) -> Taken | None:
        batch = await self.buffer.take(GROUPS, wait=0.5)
        if batch is None:
            return None
        assert batch.version is not None
        groups = [(str(name), items) for name, items in batch.groups]
        return batch.receipt, batch.version, list(batch.ages), groups

    async def ack(self, receipt: str) -> None:
        await self.buffer.ack(receipt)


class Servers:
    """The buffer's servers, one after the other until one answers."""

    def __init__(self, run: setting.Run) -> None:
        self._urls = itertools.cycle(run.buffers)
        self._http = httpx.AsyncClient(timeout=100, trust_env=False)

    async def take(self) -> Taken | None:
        answer = await self._ask("take", {"groups": GROUPS, "wait": 0.5})
        if answer.status_code in (204, 409):  # nothing, or its lease ended on the way here
            return None
        batch = answer.json()
        groups = [(str(group["instance_id"]), group["items"]) for group in batch["groups"]]
        return batch["receipt"], batch["meta_info"]["version"], batch["meta_info"]["ages"], groups

    async def ack(self, receipt: str) -> None:
        if (await self._ask(f"batches/{receipt}/ack", {})).status_code == 409:
            raise LeaseLost(receipt)

    async def _ask(self, what: str, body: dict[str, Any]) -> httpx.Response:
        while True:
            url = f"{next(self._urls)}/v1/tasks/{setting.TASK}/{what}"
            with contextlib.suppress(httpx.TransportError):
                answer = await self._http.post(url, json=body)
                if answer.status_code < 300 or answer.status_code == 409:
                    return answer
                assert answer.status_code in (429, 503), (answer.status_code, answer.text)
            await asyncio.sleep(0.1)


class Trainer:
    """One life of a trainer."""

    def __init__(self, folder: Path, name: str) -> None:
        self._run = setting.Run.of(folder)
        self._journal = Journal(folder, name)
        self._before = read(folder, name)
        self._leads = name == "trainer-0"
        self._source: Source = Library(self._run) if self._leads else Servers(self._run)
        self._queue = CodeQueue(self._run.redis, "code")

    async def work(self) -> None:
        if self._leads:
            await self._lead()
        while True:
            await self._consume()

    async def _lead(self) -> None:
        """Publishes; each version is a checkpoint, so a new life goes on with the last one."""
        buffer = setting.buffer(self._run.redis)
        published = [line["version"] for line in self._before if line["what"] == "publishes"]
        version, lead = max(published, default=0), True
        while True:
            self._journal.add("publishes", version=version, lead=lead)
            await buffer.publish(version, saved=version, lead=lead)
            self._journal.add("published", version=version, lead=lead)
            await self._tell_engines(version)
            lead = False
            while True:
                await self._consume()
                now = await buffer.versions()
                if now.taken >= setting.POLICY.groups_per_version:
                    break
                if now.taken and not now.ready and not now.slots:
                    break
            while (await buffer.catalog.stats())["leases"]:  # noqa: ASYNC110 - the other's
                await asyncio.sleep(0.05)
            version += 1

    async def _tell_engines(self, version: int) -> None:
        async with httpx.AsyncClient(timeout=100, trust_env=False) as http:
            for engine in self._run.engines:
                said = {"new_version": str(version), "abort_all_requests": False}
                answer = await http.post(f"{engine}/update_weight_version", json=said)
                assert answer.status_code == 200, answer.text

    async def _consume(self) -> None:
        try:
            taken = await self._source.take()
        except LeaseLost:
            return
        if taken is None:
            return
        receipt, version, ages, groups = taken
        seen = [[name, [looked_at(item) for item in items]] for name, items in groups]
        self._journal.add("took", receipt=receipt, version=version, ages=ages, groups=seen)
        try:
            await self._source.ack(receipt)
        except LeaseLost:
            self._journal.add("lost a batch", receipt=receipt)
            return
        self._journal.add("acknowledged", receipt=receipt)
        for _, items in groups:
            for item in items:
                if item.get("run"):
                    await programs.ask_again(self._queue, self._journal, item["job"], item["run"])


def looked_at(item: dict[str, Any]) -> dict[str, Any]:
    """An item for the accounts: which turns it trains on, and whether its rows are true."""
    trained, wrong = Counter[str](), 0
    for row, _ in rows_in(item):
        begin = len(row.tokens) - row.response_length
        mask = [0] * begin + spread(row.mask)
        versions = [-1] * begin + spread(row.versions)
        wrong += len(misproved(row.tokens, mask, [0.0] * begin + list(row.logprobs), versions))
        for call, first, end, _ in row.calls:
            trained[str(call)] += sum(mask[first:end]) > 0
    return {
        "uid": item["uid"], "session": item["session"], "wrong": wrong, "trained": trained,
        "cause": item.get("cause", ""),
    }  # fmt: skip


if __name__ == "__main__":
    asyncio.run(Trainer(Path(sys.argv[1]), sys.argv[2]).work())

"""Two trainers on two tasks with the same instances, two servers on one Redis, random schedules.

Steps of a burst run at once, each on either server. "math" is read as slime's client reads;
the trainer of "code" is slow: it acknowledges late, or never, and its leases end meanwhile.
"""

import asyncio
from collections import Counter, defaultdict
from contextlib import AsyncExitStack
from typing import Any

import fakeredis
import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ground
from ground.redis.url import RedisTarget
from tests.buffer.conftest import item
from tests.buffer.serving import served

SIZE, LEASE, ROUNDED = 3, 250, 100
TASKS = ("math", "code")
CONFIG = {
    "group_size": SIZE, "lease": LEASE, "dialect": "v1", "late_window": 86_400,
    "group_timeout_seconds": 86_400, "retain": 86_400,
}  # fmt: skip

servers = st.integers(0, 1)
instances = st.sampled_from(["a", "b", "c", "d"])
steps = st.one_of(
    st.tuples(
        st.just("write"), servers, st.sampled_from(TASKS), instances, st.integers(0, SIZE - 1)
    ),
    st.tuples(st.just("write_many"), servers, st.sampled_from(TASKS), instances),
    st.tuples(st.just("read"), servers),
    st.tuples(st.just("take"), servers, st.integers(1, 2)),
    st.tuples(st.just("acknowledge"), servers, st.integers(0, 3)),
)
bursts = st.one_of(
    st.lists(steps, min_size=1, max_size=5),
    st.lists(steps, min_size=1, max_size=5),
    st.integers(1, 3),  # hundreds of seconds that pass
)


schedules = st.lists(bursts, min_size=4, max_size=30)


@settings(max_examples=30, deadline=None)
@given(schedules)
def test_nothing_crosses_over_and_nothing_is_delivered_twice(schedule: list[Any]) -> None:
    asyncio.run(_play(schedule))


@pytest.mark.soak
@pytest.mark.timeout(3600)
@settings(max_examples=1000, deadline=None)
@given(schedules)
def test_nothing_does_in_a_thousand_schedules(schedule: list[Any]) -> None:
    asyncio.run(_play(schedule))


async def _play(schedule: list[Any]) -> None:
    options = {"server": fakeredis.FakeServer()}
    redis = ground.connect(RedisTarget("fake", (("fake", 0),), options=options))
    async with AsyncExitStack() as stack:
        fleet = [await stack.enter_async_context(served(redis)) for _ in range(2)]
        for task in TASKS:
            (await fleet[0].put(f"/v1/tasks/{task}", json=CONFIG)).raise_for_status()
        ledger = Ledger(redis, fleet)
        for burst in schedule:
            if isinstance(burst, int):
                ledger.advance(burst * ROUNDED)
            else:
                await asyncio.gather(*(getattr(ledger, what)(*how) for what, *how in burst))
        await ledger.close()
    redis.close()


class Ledger:
    """What was written and what came out, and what must never be seen."""

    def __init__(self, redis: Any, fleet: list[httpx.AsyncClient]) -> None:
        self._redis = redis
        self._fleet = fleet
        self._now = 0.0
        self.stored: dict[tuple[str, str], set[str]] = defaultdict(set)
        self.delivered: Counter[tuple[str, str]] = Counter()
        self.held: dict[str, tuple[float, set[str]]] = {}  # receipt → end of lease, instances

    def advance(self, seconds: float) -> None:
        self._now += seconds
        for task in TASKS:
            key = f"penstock:buffer:{{default/{task}}}:state"
            self._redis.hincrby(key, "paused", -int(seconds * 1000))

    async def write(self, server: int, task: str, name: str, number: int) -> None:
        found = item(name, f"{name}-{number}", number, task=task)
        answer = await self._post(server, f"/tasks/{task}/buffer/write", found)
        self._note(task, name, found["uid"], answer.headers["x-penstock-outcome"])

    async def write_many(self, server: int, task: str, name: str) -> None:
        items = [item(name, f"{name}-{n}", n, task=task) for n in range(SIZE)]
        answer = await self._post(server, f"/v1/tasks/{task}/items", {"items": items})
        for found, outcome in zip(items, answer.json()["outcomes"], strict=True):
            self._note(task, name, found["uid"], outcome)

    async def read(self, server: int) -> None:
        """slime's client: what it got, it has."""
        answer = await self._post(server, "/tasks/math/get_rollout_data", {})
        items = answer.json()["data"]["data"]
        for start in range(0, len(items), SIZE):
            self.delivered["math", self._one_group("math", items[start : start + SIZE])] += 1

    async def take(self, server: int, groups: int) -> None:
        """The slow trainer's."""
        answer = await self._post(server, "/v1/tasks/code/take", {"groups": groups})
        if answer.status_code == 204:
            return
        batch = answer.json()
        names = {self._one_group("code", group["items"]) for group in batch["groups"]}
        assert len(names) == len(batch["groups"]) <= groups
        for ends, others in self.held.values():
            assert ends <= self._now or not names & others, "leased to another batch"
        self.held[batch["receipt"]] = (self._now + LEASE, names)

    async def acknowledge(self, server: int, place: int) -> None:
        if place >= len(self.held):
            return
        receipt = list(self.held)[place]
        ends, names = self.held.pop(receipt)
        answer = await self._post(server, f"/v1/tasks/code/batches/{receipt}/ack", None)
        assert (answer.status_code == 200) >= (ends > self._now)
        if answer.status_code == 200:
            self.delivered.update(("code", name) for name in names)

    async def close(self) -> None:
        """All leases end, and both trainers take the rest."""
        self.advance(2 * LEASE)
        self.held.clear()
        await self.read(0)
        await self.take(1, len("abcd"))
        await self.acknowledge(0, 0)
        whole = {group for group, uids in self.stored.items() if len(uids) == SIZE}
        assert self.delivered == dict.fromkeys(whole, 1)

    def _one_group(self, task: str, items: list[dict[str, Any]]) -> str:
        (name,) = {found["instance_id"] for found in items}
        assert {found["task"] for found in items} == {task}
        assert {found["uid"] for found in items} == {f"{name}-{n}" for n in range(SIZE)}
        return str(name)

    def _note(self, task: str, name: str, uid: str, outcome: str) -> None:
        assert outcome in ("stored", "repeated")
        self.stored[task, name].add(uid)

    async def _post(self, server: int, path: str, body: Any) -> httpx.Response:
        answer = await self._fleet[server].post(path, json=body)
        assert answer.status_code in (200, 204, 409), answer.text
        return answer

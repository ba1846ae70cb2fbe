"""Look at a task without changing it, and requeue groups for a person."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count
from typing import Any

from buffer.default_functions import Item
from buffer.item import by_arrival, head_of, instance_key
from buffer.link import scored
from buffer.task import Task
from ground.lua import chunks, fields_of, text_fields

STATES = ("open", "ready", "leased", "kept")
# The upper ends of the steps that rewards are counted in; what is above the last is `+Inf`.
REWARD_STEPS = (*(f"{tenth / 10:.1f}" for tenth in range(-10, 11)), "+Inf")


@dataclass(frozen=True)
class GroupInfo:
    """A group as its index and its meta hash describe it.

    `since` is the last write to an open group, else when it came into its state. Time in which
    no server lived is left out, so that it is as long ago as the group's clock says.
    """

    instance_id: Any
    round: int
    state: str
    items: int
    bytes: int
    since: float
    reason: str = ""
    """Why it is invalid or in quarantine; empty of an `expired` one, which had too few items."""
    version: int | None = None
    """Under which it began; None without a policy on versions."""
    reward: float | None = None
    """Mean of its items' rewards; None if none has one."""
    why: str = ""
    """What made it ready: `count`, `timeout` or `judged`; empty while it is open."""
    assumed: bool = False
    """Under a policy on versions: no slot makes it."""
    orphan: bool = False
    """Under a policy on versions: it began in a line of versions that is over."""


@dataclass(frozen=True)
class Pulse:
    """The times at which those who act on a task did it last, in seconds before now.

    served           a server looked after it; None if none ever did
    taken            a batch was taken; None if none was
    taken_every      as a rule, a batch is taken every so many seconds
    published        a version was published, under a policy; None if none was
    published_every  the same for versions
    bytes, max_bytes what its groups hold, and may hold
    max_items        how many items they may have; an open group counts as full
    group_size       items of a group
    group_timeout    after which a group without a write times out
    """

    served: float | None
    taken: float | None
    taken_every: float | None
    published: float | None
    published_every: float | None
    bytes: int
    max_bytes: int
    max_items: int
    group_size: int
    group_timeout: float


_AT_ONCE = 500  # groups, in one pipeline
_PUBLISHED = 9  # versions, by which it is known how often one is published


class Catalog:
    """The groups and counters of one task, for those who look and repair."""

    def __init__(self, task: Task) -> None:
        self._task = task

    async def stats(self) -> dict[str, int]:
        """Sizes of every index, and the totals since the run began."""
        link, key = self._task.link, self._task.key
        fields = text_fields(await link.command("HGETALL", key("state")))
        hidden = ("beat", "paused", "set_back", "owed", "taken_at", "taken_every")
        totals = {name: int(value) for name, value in fields.items() if name not in hidden}
        sizes = {
            f"{state}_groups": int(await link.command("ZCARD", key(state)))
            for state in (*STATES, "delivered", "discarded")
        }
        sizes["quarantined_groups"] = int(await link.command("HLEN", key("quarantine")))
        sizes["leases"] = int(await link.command("ZCARD", key("leases")))
        sizes["unreported"] = int(await link.command("LLEN", key("unreported")))
        return {**sizes, **totals}

    async def pulse(self) -> Pulse:
        """The task's pulse: the times of those who act on it, and how full it is."""
        link, key = self._task.link, self._task.key
        now = await link.now()
        names = ("beat", "paused", "taken_at", "taken_every", "bytes")
        beat, paused, taken, every, held = (
            float(value) if value else None
            for value in await link.command("HMGET", key("state"), *names)
        )
        limits = ("max_bytes", "max_buffer_size", "group_size", "group_timeout_seconds")
        config = [
            float(value or 0) for value in await link.command("HMGET", key("config"), *limits)
        ]
        told = await link.command("XREVRANGE", key("versions"), "+", "-", "COUNT", _PUBLISHED)
        published = [int(id.partition(b"-")[0]) / 1000 for id, _ in told]
        clock = now - (paused or 0.0) / 1000
        return Pulse(
            served=None if beat is None else max(0.0, now - beat / 1000),
            taken=None if taken is None else max(0.0, clock - taken / 1000),
            taken_every=None if every is None else every / 1000,
            published=max(0.0, now - published[0]) if published else None,
            published_every=(published[0] - published[-1]) / (len(published) - 1)
            if len(published) > 1
            else None,
            bytes=int(held or 0), max_bytes=int(config[0]), max_items=int(config[1]),
            group_size=int(config[2]), group_timeout=config[3],
        )  # fmt: skip

    async def rewards(self) -> tuple[int, ...]:
        """How many rewards of stored items fell into each of `REWARD_STEPS` since the run began."""
        link, key = self._task.link, self._task.key("rewards")
        return tuple(int(n or 0) for n in await link.command("HMGET", key, *REWARD_STEPS))

    async def rollout(self) -> str:
        """The state of the rollout that was started here: preparing, running, finished or failed;
        empty if none was."""
        state = await self._task.link.command("HGET", self._task.key("rollout"), "state")
        return state.decode() if state else ""

    async def groups(self, state: str = "ready", limit: int = 100) -> list[GroupInfo]:
        """Groups of one state, oldest first. `kept` are those closed a while ago."""
        if state not in STATES:
            raise ValueError(f"a state is one of {', '.join(STATES)}, not {state!r}")
        return await self.page(state, 0, max(limit, 1))

    async def size(self, state: str) -> int:
        """How many groups are in a state, or quarantined."""
        command = "HLEN" if state == _QUARANTINE else "ZCARD"
        return int(await self._task.link.command(command, self._key(state)))

    async def page(self, state: str, start: int, count: int) -> list[GroupInfo]:
        """Read some groups of a state, oldest first. Those in quarantine have no order: the first
        are found."""
        if state == _QUARANTINE:
            return (await self.quarantined(start + count))[start:]
        rows = await self._task.link.command(
            "ZRANGE", self._key(state), start, start + count - 1, "WITHSCORES"
        )
        return await self._infos([(gid, score, "") for gid, score in scored(rows)])

    async def quarantined(self, limit: int | None = None) -> list[GroupInfo]:
        """The groups that a function failed on, each with the reason; all, or some."""
        key = self._task.key("quarantine")
        if limit is None:
            found = await self._task.link.command("HGETALL", key)
        else:
            _, found = await self._task.link.command("HSCAN", key, 0, "COUNT", limit)
        rows = [*fields_of(found).items()][:limit]
        return await self._infos([(gid, 0.0, reason.decode()) for gid, reason in rows])

    async def items(self, instance_id: str | int, round_number: int = 0) -> list[Item]:
        """Read the raw items of one group, by arrival."""
        values = await self._task.link.command(
            "HVALS", self._task.group_key(f"{instance_id}:{round_number}")
        )
        return by_arrival(values)

    async def state(self, instance_id: str | int, round_number: int = 0) -> str:
        """Read the state of one group, as `GroupInfo` has it; empty if nothing is known of the
        group."""
        meta = self._task.meta_key(f"{instance_id}:{round_number}")
        state = await self._task.link.command("HGET", meta, "state")
        return state.decode() if state else ""

    async def group(self, instance_id: str | int, round_number: int = 0) -> GroupInfo | None:
        """Read what is known of one group, except since when it waits; None if that is nothing."""
        gid = f"{instance_id}:{round_number}"
        (found,) = await self._infos([(gid.encode(), 0.0, "")])
        return None if found.state == "vanished" else found

    async def holding(self, uid: str, most: int = 10_000) -> list[tuple[str, int]]:
        """The groups that hold an item of that uid, among the newest `most` of each state."""
        link, found = self._task.link, dict[bytes, None]()
        for state in STATES:
            gids = await link.command("ZREVRANGE", self._task.key(state), 0, most - 1)
            for some in chunks(gids, _AT_ONCE):
                keys = [self._task.group_key(gid.decode()) for gid in some]
                held = await link.commands([("HEXISTS", key, uid) for key in keys])
                found |= {gid: None for gid, is_there in zip(some, held, strict=True) if is_there}
        parts = [gid.decode().rpartition(":") for gid in found]
        return [(instance, int(number)) for instance, _, number in parts]

    async def aside(self, limit: int = 100) -> list[dict[str, str]]:
        """The newest items that came late or were surplus; their first 2 kB."""
        rows = await self._task.link.command("LRANGE", self._task.key("aside"), 0, limit - 1)
        why = {b"3": "late", b"4": "surplus", b"6": "lost"}
        parts = [row.partition(b" ") for row in rows]
        return [{"outcome": why[code], "item": head_of(rest)} for code, _, rest in parts]

    async def requeue(self, instance_id: str | int, round_number: int = 0) -> bool:
        """Make a quarantined or discarded group ready again; False if it is not kept any more.
        Repeating is harmless."""
        return bool(await self._task.call("revive", f"{instance_id}:{round_number}"))

    async def finished_rounds(self, skip: Iterable[str | int] = ()) -> Counter[str]:
        """How many rounds of each instance a generator should skip, from the first one on: those
        that the list names, or those that are closed here, whichever are more. What came for
        these would be late, or surplus."""
        link, key = self._task.link, self._task.key
        found = list(await link.command("HKEYS", key("quarantine")))
        for index in ("delivered", "discarded", "ready", "leased"):
            found += await link.command("ZRANGE", key(index), 0, -1)
        rounds: dict[str, set[int]] = defaultdict(set)
        for gid in found:
            instance, _, number = gid.decode().rpartition(":")
            rounds[instance].add(int(number))
        closed = Counter({name: _first_absent(numbers) for name, numbers in rounds.items()})
        return Counter(map(instance_key, skip)) | closed

    async def unnamed(self, named: Counter[str]) -> list[bytes]:
        """Delivered rounds that a trainer's list does not name. A batch that was handed out counts
        as delivered: the next read, which would have consumed it, will not come."""
        link, delivered = self._task.link, self._task.key("delivered")
        for receipt in await link.command("ZRANGE", self._task.key("leases"), 0, -1):
            name = receipt.decode()
            if await link.command("HGET", self._task.batch_key(name), "handed"):
                await self._task.call_to_its_end("ack", name)
        parts = [
            (gid, gid.rpartition(b":")) for gid in await link.command("ZRANGE", delivered, 0, -1)
        ]
        return [gid for gid, (name, _, number) in parts if int(number) >= named[name.decode()]]

    async def resume(self, skip: Iterable[str | int]) -> int:
        """Continue from a trainer's list of finished ids, which names an id once per round.

        Delivered groups that it does not name return to ready if still kept, else are
        forgotten, to be generated again. Returns how many came back.
        """
        back = 0
        for gid in await self.unnamed(Counter(map(instance_key, skip))):
            if await self._task.call("revive", gid):
                back += 1
            else:
                await self._task.call("forget_group", gid)
        return back

    async def _paused(self) -> int:
        """Milliseconds in which no server lived: a task's clock is that much behind."""
        return int(await self._task.link.command("HGET", self._task.key("state"), "paused") or 0)

    async def _infos(self, rows: list[tuple[bytes, float, str]]) -> list[GroupInfo]:
        """Read what is known of groups that have a score in an index and a reason, in one
        pipeline."""
        keys = [self._task.meta_key(gid.decode()) for gid, _, _ in rows]
        metas = await self._task.link.commands([("HMGET", key, *_META) for key in keys])
        paused = await self._paused() if keys else 0
        return [_info(*row, meta, paused) for row, meta in zip(rows, metas, strict=True)]

    def _key(self, state: str) -> str:
        return self._task.key(_QUARANTINE_KEY if state == _QUARANTINE else state)


_QUARANTINE, _QUARANTINE_KEY = "quarantined", "quarantine"
_META = ("id", "state", "n", "bytes", "closed", "start", "reward_sum", "rewarded", "why",
         "assumed", "orphan", "reason")  # fmt: skip


def _info(gid: bytes, score: float, reason: str, meta: list[Any], paused: int) -> GroupInfo:
    instance, _, round_number = gid.decode().rpartition(":")
    name, state, items, size, closed_at, start, total, rewarded, why, assumed, orphan, said = meta
    # The score of what is leased says when its first lease ends, that of what is kept when it goes.
    closed = closed_at and state not in (b"open", b"ready")
    since = float(closed_at) if closed else score
    return GroupInfo(
        json.loads(name) if name else instance,
        int(round_number),
        state.decode() if state else "vanished",
        int(items or 0),
        int(size or 0),
        (since + paused) / 1000 if since else 0.0,
        reason or (said.decode() if said else ""),
        int(start) if start else None,
        float(total) / int(rewarded) if rewarded else None,
        why.decode() if why else "",
        assumed == b"1",
        orphan == b"1",
    )


def _first_absent(numbers: set[int]) -> int:
    return next(number for number in count() if number not in numbers)

"""The trainer's side: versions that the engines have, and what is under way between two of them."""

import logging
import operator
import time
from dataclasses import dataclass
from typing import Any

from buffer.errors import NoPolicy, TrainerReplaced
from buffer.link import deadline_in, scored
from buffer.task import Task
from buffer.versions.policy import Policy
from ground.lua import chunks, fields_of, text_fields
from ground.tasks import cancellations, heed_cancellation

log = logging.getLogger(__name__)

_HIGHEST = 2**31
_AGAIN = 2  # an earlier publication has steps left, which come first; or its epoch was not known
_LOOK_AGAIN = 5.0
_SHOWN = 10
DROPS = (
    "wait",
    "again",
    "drop",
)  # what `when_old` makes of too old groups: `wait` makes them again
_POLICY_AT_HAND = 5.0  # seconds that a take may judge by a policy that was changed meanwhile


@dataclass(frozen=True)
class Published:
    """The result of a publication.

    version   the last one
    line      how often the versions began, at a checkpoint after the first time
    stale     groups that got older than the policy allows
    returned  groups that were trained on in the line before, and are ready again
    gone      groups that were trained on since, and are not kept; of the newest 256 versions
    """

    version: int
    line: int
    stale: int
    returned: int
    gone: int = 0


@dataclass(frozen=True)
class Waited:
    """A slot that holds takes back: its group is the oldest under way."""

    slot: str
    owner: str
    instance_id: str
    start: int


@dataclass(frozen=True)
class Versions:
    """The versions of a task, and what waits for the next.

    version      the last one published, None before the first
    line         how often the versions began
    saved        that of the oldest checkpoint that the trainer may go back to
    taken        groups taken since the last publication
    outstanding  groups under way by age: slots, open and ready ones
    ready        of these, the ready ones by age
    slots        how many slots are out
    parked       open groups that wait for a slot
    again        groups that wait to be made again
    waiting      asks for slots in the line
    held_by      why the first of them waits, and what lets it in; empty if none waits
    waited       seconds that the first of them has waited
    waits_for    the oldest slots, while groups are ready that a take does not get
    dropped      the instances that were discarded or made again most often, by policy
    dropped_by   groups that were discarded or made again, by the `when_old` in force then
    ages         groups taken, by age
    """

    version: int | None
    line: int
    saved: int | None
    taken: int
    outstanding: dict[int, int]
    ready: dict[int, int]
    slots: int
    parked: int
    again: int
    waiting: int
    held_by: str
    waited: float
    waits_for: list[Waited]
    dropped: dict[str, int]
    dropped_by: dict[str, int]
    ages: dict[int, int]

    @property
    def dropped_share(self) -> float:
        """The share of the groups that the policy discarded, or had generated again."""
        dropped = sum(self.dropped_by.values())
        return dropped / max(1, dropped + sum(self.ages.values()))

    @property
    def most_dropped_share(self) -> float:
        """The part of them that the instances in `dropped` account for."""
        return min(1.0, sum(self.dropped.values()) / max(1, sum(self.dropped_by.values())))


class Publishing:
    """A task's policy and its versions."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._seen: tuple[float, Policy | None] = (-_POLICY_AT_HAND, None)
        self._epoch = 0  # of the last publication or reset that is known here

    async def set_policy(self, policy: Policy) -> None:
        if await self._task.call("set_policy", *policy.to_redis()):
            await self._catch_up("")
        self._seen = (time.monotonic(), policy)

    async def policy(self) -> Policy | None:
        found = await self._task.link.command("HGETALL", self._task.key("policy"))
        policy = Policy.from_redis(found)
        self._seen = (time.monotonic(), policy)
        return policy

    async def policy_at_hand(self) -> Policy | None:
        """The policy as it was a moment ago, for what need not be exact."""
        seen, policy = self._seen
        return policy if time.monotonic() - seen < _POLICY_AT_HAND else await self.policy()

    async def publish(
        self, version: int, saved: int | None, owner: str, *, lead: bool, fresh: bool
    ) -> Published:
        version = _version(version, "version")
        saved = None if saved is None else _version(saved, "saved")
        if saved is not None and saved > version:
            raise ValueError(
                f"saved {saved} is above version {version}: a checkpoint holds a version that "
                "was trained already"
            )
        if fresh:
            if await self.policy() is None:
                raise NoPolicy(self._task.name)
            await self._task.forget()
        told = "" if saved is None else saved
        done, lead = _AGAIN, lead or fresh
        while done == _AGAIN:
            reply = await self._task.call("publish", version, told, owner, int(lead), self._epoch)
            done, last, line, self._epoch, more, *counts = map(int, reply)
        if not done:
            raise TrainerReplaced(self._task.name, last)
        published = Published(last, line, *(await self._catch_up(last) if more else counts))
        if published.gone:
            log.warning(
                "groups that were trained on since this version are lost to its checkpoint",
                extra={"task": self._task.name, "version": last, "gone": published.gone},
            )
        return published

    async def _catch_up(self, version: int | str) -> list[int]:
        """Do to all groups what the new version needs, in steps; return what was done: stale,
        returned, gone."""
        more = 1
        while more:
            more, *counts = map(int, await self._task.call("catch_up", version))
        return counts

    async def wait(self, after: int, seconds: float) -> int:
        """Wait for a version, blocked on the stream of versions: nothing is asked again and
        again."""
        deadline, before = deadline_in(seconds), cancellations()
        key, link = self._task.key("versions"), self._task.link
        while True:
            heed_cancellation(before)
            last = await link.command("XREVRANGE", key, "+", "-", "COUNT", 1)
            version = int(fields_of(last[0][1])[b"version"]) if last else -1
            left = deadline - time.monotonic()
            if version != after or left <= 0:
                return version
            seen = last[0][0] if last else "0"
            block = max(0.01, min(left, _LOOK_AGAIN))
            await link.block(
                block, "XREAD", "COUNT", 1, "BLOCK", int(block * 1000), "STREAMS", key, seen
            )

    async def versions(self) -> Versions:
        link, key = self._task.link, self._task.key
        policy = text_fields(await link.command("HGETALL", key("policy")))
        version = int(policy["version"]) if "version" in policy else None
        starts = text_fields(await link.command("HGETALL", key("starts")))
        counted = {
            (version or 0) - int(start): int(
                await link.command("ZCOUNT", key("aged"), start, f"({int(start) + 1}")
            )
            for start in starts
        }
        ready = {age: n for age, n in counted.items() if n}
        dropped = scored(
            await link.command("ZREVRANGE", key("dropped"), 0, _SHOWN - 1, "WITHSCORES")
        )
        counted_by = await link.command("HMGET", key("state"), *(f"dropped_{how}" for how in DROPS))
        ages = text_fields(await link.command("HGETALL", key("ages")))
        sizes = {
            name: int(await link.command("ZCARD", key(name)))
            for name in ("slots", "parked", "again", "waiting")
        }
        held_by, waited = await self._held_by(policy, starts) if sizes["waiting"] else ("", 0.0)
        return Versions(
            held_by=held_by, waited=waited,
            version=version, line=int(policy.get("line", 0)),
            saved=int(policy["saved"]) if "saved" in policy else None,
            taken=int(policy.get("taken", 0)),
            outstanding={(version or 0) - int(start): int(n) for start, n in starts.items()},
            ready=dict(sorted(ready.items())),
            waits_for=await self._waits_for() if ready else [],
            dropped={name.decode(): int(n) for name, n in dropped},
            dropped_by={how: int(n) for how, n in zip(DROPS, counted_by, strict=True) if n},
            ages={int(age): int(n) for age, n in sorted(ages.items(), key=lambda row: int(row[0]))},
            **sizes,
        )  # fmt: skip

    async def _held_by(self, policy: dict[str, str], starts: dict[str, str]) -> tuple[str, float]:
        """The reason why the first ask for slots waits, by the formula of `policy.lua`, and for how
        long."""
        link, key = self._task.link, self._task.key
        first, *_ = await link.command("ZRANGE", key("waiting"), 0, 0) or [b""]
        clock = await link.now()
        since = await link.command("HGET", key("asks"), b"since:" + first)
        paused = await link.command("HGET", key("state"), "paused")
        now = clock - float(paused or 0) / 1000
        waited = max(0.0, now - float(since) / 1000) if since else 0.0
        if "version" not in policy:
            return "no version is published; the trainer's first one lets it in", waited
        if policy.get("todo") and not policy["todo"].startswith("ripen"):
            return "the last publication has steps left, which its trainer does", waited
        depth, each = int(policy["depth"]), int(policy["groups_per_version"])
        taken, outstanding = int(policy.get("taken", 0)), sum(map(int, starts.values()))
        most = (depth + 1) * each
        if taken + outstanding < most:
            return "there is room; it is let in when its generator asks again", waited
        used = f"{taken:,} are taken since version {policy['version']}, {outstanding:,} under way"
        most_said = f"of {most:,} groups ({each:,} per version, depth {depth})"
        opens = "the trainer's next version lets" if taken else "a take, then the next version, let"
        return f"{most_said} {used}; {opens} it in", waited

    async def _waits_for(self) -> list[Waited]:
        if int((await self._task.call("sweep", 200, 0, 0))[2]):
            return []
        reply = await self._task.call("waits_for", _SHOWN)
        return [
            Waited(slot.decode(), owner.decode(), gid.decode().rpartition(":")[0], int(start))
            for slot, owner, gid, start in chunks(reply, 4)
        ]


def _version(value: Any, name: str) -> int:
    """A version may be numpy's or torch's: whatever Python takes for an index."""
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if isinstance(value, bool) or not 0 <= number <= _HIGHEST:
        raise ValueError(f"{name} must be an integer from 0 to 2^31, not {value!r:.100}")
    return number

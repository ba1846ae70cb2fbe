"""The run's rollout buffers, through the buffer's own library."""

import contextlib
import json
from collections.abc import Sequence

from buffer import RolloutBuffer
from buffer.catalog import GroupInfo
from buffer.counters import COUNTERS, STATES, generation_seconds
from buffer.link import Link
from buffer.versions.publishing import Versions
from ground.keys import in_run, tagged
from ground.lua import fields_of
from penstock.fleet.model import Gateway, Group, Task

SHOWN_GROUPS = 50
BIASED = 1.5  # dropped groups may take so many times as long as delivered ones


def open_buffers(link: Link, run: str, names: Sequence[str]) -> list[RolloutBuffer]:
    return [RolloutBuffer(link, name, run=run) for name in names]


async def read_task(buffer: RolloutBuffer, now: float) -> Task:
    stats = await buffer.catalog.stats()
    oldest = await buffer.catalog.groups("ready", limit=1)
    seen = await buffer._task.link.command(
        "HMGET", tagged("buffer", f"{buffer.run}/{buffer.task}", "seen"), "n", "mean"
    )
    return Task(
        name=buffer.task,
        groups={state: stats.get(f"{state}_groups", 0) for state in STATES},
        counters={name: stats.get(name, 0) for name in COUNTERS},
        bytes=stats.get("bytes", 0),
        oldest_ready=max(0.0, now - oldest[0].since) if oldest else 0.0,
        rewards=int(seen[0] or 0),
        reward_counts=await buffer.catalog.rewards(),
        mean_reward=float(seen[1]) if seen[0] and int(seen[0]) else None,
        rollout=await buffer.catalog.rollout(),
        versions=await _versions(buffer),
        generation_seconds=generation_seconds(stats),
        pulse=await buffer.catalog.pulse(),
        gateways=await _gateways(buffer, now),
    )


async def _gateways(buffer: RolloutBuffer, now: float) -> tuple[Gateway, ...]:
    """The gateways of a task's agents; each writes with every sweep that it lives."""
    key = tagged("buffer", in_run(buffer.run, buffer.task), "gateways")
    said = fields_of(await buffer._task.link.command("HGETALL", key))
    found = []
    for name, facts in sorted(said.items()):
        at, _, failing = facts.partition(b" ")
        with contextlib.suppress(ValueError):  # nothing that a gateway wrote
            silent = max(0.0, now - int(at) / 1000)
            found.append(Gateway(name.decode(), silent, json.loads(failing)))
    return tuple(found)


async def _versions(buffer: RolloutBuffer) -> Versions | None:
    if not await buffer.policy():
        return None
    found = await buffer.versions()
    return None if found.version is None else found


async def read_groups(
    buffer: RolloutBuffer, states: Sequence[str], limit: int = SHOWN_GROUPS
) -> list[Group]:
    """Groups of these states, oldest first in each. What is quarantined is kept, too, and counts as
    that alone."""
    found: list[Group] = []
    for state in states:
        listed = (
            await buffer.catalog.quarantined(limit)
            if state == "quarantined"
            else await buffer.catalog.groups(state, limit)
        )
        found += [
            shown(buffer.task, info, state)
            for info in listed
            if state != "kept" or info.state != "quarantined"
        ]
    return found[:limit]


def shown(task: str, info: GroupInfo, state: str) -> Group:
    return Group(
        task=task, instance_id=info.instance_id, round=info.round,
        state=state if state == "quarantined" else info.state, items=info.items,
        bytes=info.bytes, since=info.since, reason=info.reason,
        version=info.version, reward=info.reward,
        why=info.why or ("timeout" if info.state == "expired" else ""),
    )  # fmt: skip


def bias(seconds: dict[str, float]) -> str:
    """How slow problems are trained on too little: what is discarded or made again took longer
    than what is delivered. Empty if it did not."""
    delivered, dropped = seconds["delivered"], seconds["dropped"]
    if not delivered or dropped <= BIASED * delivered:
        return ""
    return (
        f"discarded groups took {dropped:.3g} s on average, and delivered ones "
        f"{delivered:.3g} s: slow problems are trained on less than their share"
    )

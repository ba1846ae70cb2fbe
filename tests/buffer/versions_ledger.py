"""The players of the staleness chaos test, as processes that write down what they saw.

    python -m tests.buffer.versions_ledger generate FILE URL NAME GROUPS
    python -m tests.buffer.versions_ledger lead FILE URL
    python -m tests.buffer.versions_ledger take FILE URL

Each line is on disk before the next step, so that a SIGKILL leaves a true ledger.
"""

import asyncio
import json
import random
import sys
import time
from pathlib import Path
from typing import Any, TextIO

from buffer import Batch, LeaseLost, Policy, RolloutBuffer, SlotLost, TaskConfig
from buffer.settings import BufferSettings
from buffer.versions.slots import Slot
from tests.buffer.ledger import going_on, lines_of, note

TASK = "versions"
SIZE = 2
POLICY = Policy(groups_per_version=4, max_age=3, depth=1, attempts=1000, slot_lease=2.0)
CONFIG = TaskConfig(group_size=SIZE, lease=3, retain=86_400, grace=86_400, late_window=86_400)
_SAVE_EVERY = 3


def main() -> None:
    what, file, url, *rest = sys.argv[1:]
    buffer = RolloutBuffer(url, TASK, CONFIG, settings=BufferSettings(redis_patience=120))
    if what == "generate":
        asyncio.run(generate(buffer, Path(file), rest[0], int(rest[1])))
    elif what == "lead":
        asyncio.run(lead(buffer, Path(file)))
    else:
        asyncio.run(take(buffer, Path(file)))


async def generate(buffer: RolloutBuffer, file: Path, name: str, groups: int) -> None:
    """Every prompt of its list once, and whatever another left behind."""
    done = {line.split()[1] for line in lines_of(file) if line.startswith("began")}
    left = [f"{name}-{n}" for n in range(groups) if f"{name}-{n}" not in done]
    with going_on(file) as ledger:
        while True:
            wishes: list[Any] = [(left[0], 0)] if left else []
            for slot in await buffer.admit(1, instances=wishes, wait=5):
                if slot.instance_id is None:  # this prompt's group is somebody's already
                    await slot.end()
                    await asyncio.sleep(0.1)
                else:
                    await make(buffer, slot)
                if left and slot.instance_id in (None, left[0]):
                    ledger.write(f"began {left.pop(0)}\n")
                    note(ledger)


async def make(buffer: RolloutBuffer, slot: Slot) -> None:
    """Item by item; one in ten is interrupted, and left to another."""
    name, chance = str(slot.instance_id), random.random()
    have = {part["uid"]: part["versions"] for part in slot.partial}
    try:
        for n in range(SIZE - slot.missing, SIZE):
            uid = f"{name}-{n}"
            spans = [*have.get(uid, []), [1, slot.newest]]
            item = {"uid": uid, "instance_id": name, "messages": [], "reward": n,
                    "versions": spans, "version_start": slot.start}  # fmt: skip
            await asyncio.sleep(0.02 if chance < 0.8 else 0.2)
            if chance < 0.1 and len(spans) < 3:
                await slot.park([{**item, "segment": len(spans)}])
                return
            await buffer.write(item, slot=slot)
    except SlotLost:
        return


async def lead(buffer: RolloutBuffer, file: Path) -> None:
    """Publishes, from its newest checkpoint on; a checkpoint every few versions."""
    saved = max((int(line.split()[1]) for line in lines_of(file) if line.startswith("saved")),
                default=0)  # fmt: skip
    version = saved
    with going_on(file) as ledger:
        write(ledger, "line", version)
        await buffer.publish(version, saved=saved, lead=True)
        write(ledger, "began", version)
        while True:
            await consume(buffer, ledger, wait=1.0)
            now = await buffer.versions()
            nothing_more = now.taken and not now.ready and not now.slots
            if now.taken < POLICY.groups_per_version and not nothing_more:
                continue
            while (await buffer.catalog.stats())["leases"]:  # noqa: ASYNC110 - the other one trains on them
                await asyncio.sleep(0.02)
            version += 1
            if version % _SAVE_EVERY == 0:
                write(ledger, "saved", version)
                saved = version
            await buffer.publish(version, saved=saved)


async def take(buffer: RolloutBuffer, file: Path) -> None:
    """The other trainer, which takes beside the one that publishes."""
    with going_on(file) as ledger:
        while True:
            await consume(buffer, ledger, wait=1.0)


async def consume(buffer: RolloutBuffer, ledger: TextIO, wait: float) -> None:
    try:
        batch = await buffer.take(2, wait=wait)
    except LeaseLost:
        return
    if batch is None:
        return
    write(ledger, "took", seen(batch))
    try:
        await buffer.ack(batch)
    except LeaseLost:
        write(ledger, "lost", {"receipt": batch.receipt})


def seen(batch: Batch) -> dict[str, Any]:
    return {
        "receipt": batch.receipt,
        "version": batch.version,
        "ages": batch.ages,
        "groups": {
            str(name): {
                "start": min(item["version_start"] for item in items),
                "spans": [item["versions"] for item in items],
            }
            for name, items in batch.groups
        },
    }


def write(ledger: TextIO, what: str, said: Any) -> None:
    text = said if isinstance(said, int) else json.dumps(said)
    ledger.write(f"{what} {text} {time.time():.6f}\n")
    note(ledger)


if __name__ == "__main__":
    main()

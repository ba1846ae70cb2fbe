"""What processes of a fleet do, of this release or of the last one: only by public names of both.

    python parts.py jobs|writes|reads|boxes URL LEDGER NAME COUNT

Each writes down the answers that it got before it goes on. So it may be killed and started again.
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

SIZE = 4


class Ledger:
    """A line is on disk before the next step. One that a kill has cut is taken off."""

    def __init__(self, file: str) -> None:
        path = Path(file)
        whole = path.read_text().rpartition("\n")[0] if path.exists() else ""
        self.lines = [json.loads(line) for line in whole.splitlines()]
        path.write_text(f"{whole}\n" if whole else "")
        self._file = path.open("a")

    def note(self, *lines: Any) -> None:
        self._file.writelines(json.dumps(line) + "\n" for line in lines)
        self._file.flush()
        os.fsync(self._file.fileno())


async def jobs(url: str, ledger: Ledger, name: str, count: int) -> None:
    """Programs under tokens of their own, a hundred at a time: who comes again asks again."""
    from worker import CodeQueue

    queue = CodeQueue(url, "code", no_workers_after=600, abandon="keep")
    done = {line[0] for line in ledger.lines}
    left = [number for number in range(count) if number not in done]

    async def one(number: int) -> None:
        result = await queue.run(f"print({number} * 3)", token=f"{name}-{number}")
        ledger.note([number, result.error_kind, (result.stdout or "").strip()])

    for start in range(0, len(left), 100):
        await asyncio.gather(*(one(number) for number in left[start : start + 100]))


async def writes(url: str, ledger: Ledger, name: str, count: int) -> None:
    from buffer import RolloutBuffer, TaskConfig

    buffer = RolloutBuffer(url, "both", TaskConfig(group_size=SIZE, lease=3, retain=86_400))
    done = {line[0] for line in ledger.lines}
    for group in range(count):
        items = [_item(name, group, n) for n in range(SIZE)]
        left = [item for item in items if item["uid"] not in done]
        if left:
            outcomes = await buffer.write_many(left)
            answered = zip(left, outcomes, strict=True)
            ledger.note(*([item["uid"], str(outcome)] for item, outcome in answered))
    await buffer.aclose()


def _item(name: str, group: int, n: int) -> dict[str, Any]:
    messages = [{"role": "assistant", "content": "x" * 200}]
    return {
        "uid": f"{name}-{group}-{n}", "instance_id": f"{name}-{group}", "messages": messages,
        "reward": n % 2, "extra_info": {},
    }  # fmt: skip


async def reads(url: str, ledger: Ledger, _: str, count: int) -> None:
    """It goes on until it is ended. A batch is written down before it is acknowledged."""
    from buffer import LeaseLost, RolloutBuffer

    buffer = RolloutBuffer(url, "both")
    while True:
        try:
            batch = await buffer.take(count, wait=2.0)
            if batch is None:
                continue
            uids = [item["uid"] for _, items in batch.groups for item in items]
            ledger.note([batch.receipt, uids])
            await buffer.ack(batch)
        except LeaseLost:  # it ended, perhaps on the way here, and another has the batch
            continue


async def boxes(url: str, ledger: Ledger, name: str, count: int) -> None:
    """Session sandboxes, two at a time, each with a file that it reads again."""
    from worker.lifecycle import SandboxLifecycle

    lifecycle = SandboxLifecycle(url, "local", run=name)
    done = {line[0] for line in ledger.lines}

    async def one(number: int) -> None:
        async with lifecycle.open() as box:
            await box.write_file("said.txt", f"{name} {number}")
            read = await box.exec(["cat", "said.txt"], timeout=60)
            ledger.note([number, read.exit_code, read.stdout.decode()])

    for start in range(0, count, 2):
        await asyncio.gather(*(one(n) for n in range(start, start + 2) if n not in done))
    await lifecycle.close()


if __name__ == "__main__":
    what, url, file, name, count = sys.argv[1:]
    asyncio.run(globals()[what](url, Ledger(file), name, int(count)))

"""Whether a task's policy on versions leaves slow problems their share of the training."""

import asyncio
from collections.abc import Iterator

from buffer.metrics import generation_seconds
from ground import RedisTarget
from penstock.doctor.finding import Finding, warn
from penstock.fleet.reader import FleetReader
from penstock.fleet.verdicts import bias

_REMEDY = (
    "`penstock groups versions` names the problems; set when_old to wait or mask, or raise max_age"
)


def check_tasks(target: RedisTarget, run: str) -> Iterator[Finding]:
    """A warning for each task of the run whose discarded groups took longer than the others."""
    for task, seconds in asyncio.run(_read(target, run)).items():
        if said := bias(seconds):
            yield warn(f"task {task}", said, _REMEDY)


async def _read(target: RedisTarget, run: str) -> dict[str, dict[str, float]]:
    async with FleetReader(target, run) as reader:
        buffers = await reader.open_buffers()
        return {one.task: generation_seconds(await one.stats()) for one in buffers}

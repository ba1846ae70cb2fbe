"""What the page and `top` compute for 1,000 workers, 10,000 groups and 100,000 jobs.

    python -m docs.tools.large_fleet       keeps it in docs/tools/kept/large_fleet.json

Milliseconds of processor time of the looking process; Redis' own are not in it.
"""

import asyncio
import json
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from buffer import RolloutBuffer, TaskConfig
from ground import EmbeddedServer, connect
from limiter import TokenBucket, engine
from penstock.changes import Author
from penstock.fleet import FleetReader
from penstock.fleet.jobs import JobFilter, jobs_of
from penstock.monitor.answers import as_json
from penstock.monitor.watch import shown
from penstock.top.program import Program

KEPT = Path(__file__).parent / "kept" / "large_fleet.json"
WORKERS, GROUPS, JOBS = 1_000, 10_000, 100_000
TIMES = 20
STATES = {"finished": 0.6, "queued": 0.3, "failed": 0.09, "started": 0.01}
OUTCOMES = ("finished", "finished", "wrong", "error", "timeout")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, EmbeddedServer(folder) as server:
        fill(server.url)
        found = asyncio.run(measured(server.url))
        engine.stop_all()
    KEPT.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


# The fleet, as its keys in Redis


def fill(url: str) -> None:
    client: Any = connect(url)
    moments = [_stamp(time.time() - ago) for ago in range(3600)]
    pipe, ids = client.pipeline(transaction=False), dict[str, list[str]]()
    for n in range(JOBS):
        state, id = _state_of(n), f"job-{n:06}"
        ids.setdefault(state, []).append(id)
        ended = {"ended_at": moments[n % 3000]} if state in ("finished", "failed") else {}
        pipe.hset(f"rq:job:{id}", mapping={
            "status": state, "origin": "code", "description": f"run python, of step {n // 512}",
            "worker_name": f"node-{n % WORKERS:04}", "enqueued_at": moments[n % 3000 + 20],
            "started_at": moments[n % 3000 + 10], "data": "[]", "penstock_attempts": "1",
            "penstock_outcome": OUTCOMES[n % 5] if state == "finished" else "", **ended,
        })  # fmt: skip
        if n % 5000 == 0:
            pipe.execute()
    pipe.sadd("rq:queues", "rq:queue:code")
    pipe.rpush("rq:queue:code", *ids["queued"])
    for state in ("finished", "failed"):
        pipe.zadd(f"rq:{state}:code", {id: time.time() + n for n, id in enumerate(ids[state])})
    pipe.zadd("rq:wip:code", {f"{id}:{n}": 2e9 for n, id in enumerate(ids["started"])})
    for n, id in enumerate(ids["started"][:WORKERS]):
        _worker(pipe, f"node-{n:04}", moments[0], f"{id}:{time.time_ns() // 1000}")
    pipe.execute()
    client.close()
    TokenBucket(url, "code", limit=WORKERS).sync.configure(limit=WORKERS)
    buffer = RolloutBuffer(url, "math", TaskConfig(group_size=1)).sync
    for begin in range(0, GROUPS, 500):
        buffer.write_many([
            {"instance_id": f"problem-{n}", "uid": "0", "messages": [], "reward": n % 2}
            for n in range(begin, begin + 500)
        ])  # fmt: skip
    buffer.close()


def _state_of(n: int) -> str:
    place = n % 100 / 100
    for state, part in STATES.items():
        if place < part - 1e-9:
            return state
        place -= part
    return "started"


def _worker(pipe: Any, name: str, moment: str, execution: str) -> None:
    pipe.sadd("rq:workers", f"rq:worker:{name}")
    pipe.sadd("rq:workers:code", f"rq:worker:{name}")
    pipe.zadd("penstock:work:{code}:workers", {name: (time.time() + 86_400) * 1e6})
    pipe.sadd(f"rq:worker:{name}:executions", execution)
    pipe.hset(f"rq:worker:{name}", mapping={
        "state": "busy", "queues": "code", "birth": moment, "last_heartbeat": moment,
        "hostname": name, "pid": "7", "penstock_gate": "code", "successful_job_count": "60",
        "failed_job_count": "9", "penstock_timeout": "12",
    })  # fmt: skip


def _stamp(moment: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime(moment))


# What is measured


async def measured(url: str) -> dict[str, Any]:
    async with FleetReader(url) as reader:
        return {"page": await _page(reader), "top": await _top(reader)}


async def _page(reader: FleetReader) -> dict[str, float]:
    async def look() -> None:
        as_json(shown(await reader.read()))

    async def jobs() -> None:
        await jobs_of(reader.client, "code", "finished")

    async def filtered() -> None:
        await jobs_of(reader.client, "code", "finished", JobFilter(find="not one of them"))

    found = {"look": await _cost(look), "jobs": await _cost(jobs), "filter": await _cost(filtered)}
    return found | {"kB": len(as_json(shown(await reader.read()))) / 1000}


async def _top(reader: FleetReader) -> dict[str, dict[str, dict[str, float]]]:
    found: dict[str, dict[str, dict[str, float]]] = {}
    for size in ((80, 24), (160, 40)):
        program = Program(reader, Author("", ""), every=3600)
        async with program.run_test(size=size) as pilot:

            async def redraw(program: Program = program, pilot: Any = pilot) -> None:
                await program.show()
                await pilot.pause()

            async def press(program: Program = program, pilot: Any = pilot) -> None:
                await program.press("down")
                await program.show()
                await pilot.pause()

            for key, name in (("1", "overview"), ("3", "jobs"), ("4", "workers"), ("6", "groups")):
                await program.refresh_fleet()
                await program.press(key)
                await redraw()
                found.setdefault(f"{size[0]}x{size[1]}", {})[name] = {
                    "look": await _cost(program.refresh_fleet), "draw": await _cost(redraw),
                    "key": await _cost(press),
                }  # fmt: skip
    return found


async def _cost(work: Callable[[], Awaitable[object]]) -> float:
    """The least in milliseconds: other work on the machine only adds to it."""
    took = []
    for _ in range(TIMES):
        began = time.process_time()
        await work()
        took.append((time.process_time() - began) * 1e3)
    return round(min(took), 2)


if __name__ == "__main__":
    main()

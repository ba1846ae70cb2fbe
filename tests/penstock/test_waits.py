"""Whatever waits says why, at which place, and what lets it in: jobs, permits, slots, sandboxes."""

import asyncio
import os
import re
import subprocess
from dataclasses import replace
from typing import Any

import pytest

import ground
from buffer import Policy, RolloutBuffer, TaskConfig
from ground.redis.connect import target_of
from limiter import GateStatus, TokenBucket
from penstock.fleet import FleetReader
from penstock.fleet.jobs import jobs_of
from penstock.fleet.lines import line_of, line_says
from tests.harness.servers import until, url_of
from tests.penstock.commands import run
from tests.worker.concurrent.crew import at_work
from tests.worker.lifecycle.conftest import quick
from worker import CodeQueue, CodeRequest
from worker.lifecycle import SandboxLifecycle

TAKES_ITS_TIME = "import time\n\ntime.sleep(600)"


async def penstock(client: Any, *words: str) -> "subprocess.CompletedProcess[str]":
    """The command as a user calls it, while this loop goes on."""
    return await asyncio.to_thread(run, "--redis-url", url_of(client), *words)


async def line(client: Any, name: str) -> tuple[str, list[str]]:
    """What is said of a gate's line, and why each in it waits."""
    async with FleetReader(target_of(client)) as reader:
        found = await reader.gate(name)
        assert found is not None
        status, workers = await found.status(), await reader.workers()
        waiters = await line_of(reader.client, status, await reader.now(), workers)
        assert [one.place for one in waiters] == [*range(1, len(waiters) + 1)]
        return line_says(status, workers), [one.waits for one in waiters]


async def test_a_permit_is_waited_for_with_place_reason_and_what_lets_the_first_in(
    real_redis: ground.Client,
) -> None:
    gate = TokenBucket(real_redis, "api", limit=1)
    held = await gate.acquire()
    asking = [asyncio.create_task(gate.acquire()) for _ in range(2)]
    while (await gate.status()).waiting < 2:  # noqa: ASYNC110 - they wait on connections of theirs
        await asyncio.sleep(0.01)
    said, each = await line(real_redis, "api")
    assert said.startswith("2 wait: gate 'api' is full, 1 of 1 permits in flight; the next permit")
    assert " has held the oldest for " in said
    assert "see who holds them: penstock limits permits api; then wait" in said
    assert said.endswith("or raise it: penstock limits set api --gate-limit N")
    assert each[1] == "1 before it"
    listed = await penstock(real_redis, "limits", "ls")
    assert "api: 2 wait: gate 'api' is full" in listed.stdout
    waiting = await penstock(real_redis, "limits", "waiting", "api")
    assert [row.split()[0] for row in waiting.stdout.splitlines()] == ["place", "1", "2"]
    await gate.pause()
    said, _ = await line(real_redis, "api")
    assert said == "2 wait: gate 'api' is paused; `penstock limits resume api` ends that"
    await gate.resume()
    held.release()
    for one in asking:
        (await one).release()
    nobody = await penstock(real_redis, "limits", "waiting", "api")
    assert (nobody.returncode, nobody.stderr) == (0, "api: nobody waits\n")
    none = await penstock(real_redis, "limits", "waiting", "absent")
    assert (none.returncode, "there is no gate 'absent'" in none.stderr) == (1, True)


async def test_a_worker_has_one_name_among_holders_and_in_line(real_redis: ground.Client) -> None:
    gate = TokenBucket(real_redis, "code", limit=1)
    queue = CodeQueue(real_redis, "code", abandon="keep").sync
    held = gate.sync.acquire()
    with at_work(real_redis, sandbox="local", gate="code", name="one"):
        queue.submit("print(1)")
        await asyncio.to_thread(until, lambda: gate.sync.status().waiting, "the worker in line")
        async with FleetReader(target_of(real_redis)) as reader:
            found = await reader.gate("code")
            assert found is not None
            (waiter,) = await line_of(
                reader.client, await found.status(), await reader.now(), await reader.workers()
            )
        assert waiter.process == "one"
        held.release()


async def test_a_job_that_waits_has_a_place_and_lists_show_its_first_line(
    real_redis: ground.Client,
) -> None:
    queue = CodeQueue(real_redis, "code", abandon="keep").sync
    jobs = [queue.submit(f"\n# sample {n}\nprint({n})") for n in range(3)]
    shared = queue.submit("print(9)", share="eval")
    large = queue.submit(CodeRequest(code="print(1)", files={"a": os.urandom(60_000).hex()}))
    async with FleetReader(target_of(real_redis)) as reader:
        places = [(await reader.job(one.id) or {})["place"] for one in (*jobs, shared)]
        assert places == [f"number {n} of 4" for n in (1, 2, 3)] + ["number 1 of 1 of its share"]
        page = await jobs_of(reader.client, "code", "waiting")
        programs = {one.id: one.program for one in page.jobs}
    assert [programs[one.id] for one in jobs] == ["# sample 0", "# sample 1", "# sample 2"]
    assert (programs[shared.id], programs[large.id]) == ("print(9)", "")


async def test_a_slot_is_waited_for_with_its_reason(real_redis: ground.Client) -> None:
    buffer = RolloutBuffer(real_redis, "math", TaskConfig(group_size=2))
    await buffer.set_policy(Policy(groups_per_version=2, max_age=1, depth=1))

    async def held_by() -> str:
        while not (found := await buffer.versions()).waiting:  # noqa: ASYNC110 - another waits
            await asyncio.sleep(0.01)
        return found.held_by

    early = asyncio.create_task(buffer.admit(4, wait=100))
    assert await held_by() == "no version is published; the trainer's first one lets it in"
    await buffer.publish(3)
    assert len(await early) == 4
    late = asyncio.create_task(buffer.admit(1, wait=100))
    assert await held_by() == (
        "of 4 groups (2 per version, depth 1) 0 are taken since version 3, 4 under way; "
        "a take, then the next version, let it in"
    )
    listed = await penstock(real_redis, "groups", "versions")
    assert re.search(
        r"math: 1 ask for slots waits, the first for \d+ s: of 4 groups", listed.stdout
    )
    late.cancel()
    await buffer.aclose()


async def test_a_sandbox_in_line_for_its_start_says_so_with_its_place(
    real_redis: ground.Client, cloud: Any
) -> None:
    settings = quick(sandbox_lease=60.0)
    gate = TokenBucket(real_redis, "starting", limit=1)
    held = await gate.acquire()
    life = SandboxLifecycle(real_redis, cloud.provider, settings=settings, max_starting=1)
    opening = asyncio.create_task(life.session("sample-7").__aenter__())
    while not (await gate.status()).waiting:  # noqa: ASYNC110 - it waits on a connection of its own
        await asyncio.sleep(0.01)
    async with FleetReader(target_of(real_redis)) as reader:
        (box,) = await reader.sandboxes()
    assert (box.state, box.session) == ("WAITING", "sample-7")
    assert box.waits.startswith("its opener is 1 of 1 in line at gate 'starting': gate 'starting'")
    listed = await penstock(real_redis, "sandbox", "ls")
    assert "1 start waits at gate 'starting': gate 'starting' is full" in listed.stdout
    shown = await penstock(real_redis, "why", "sample-7")
    assert "its opener waits for a STARTING permit: its opener is 1 of 1" in shown.stdout
    held.release()
    await opening
    async with FleetReader(target_of(real_redis)) as reader:
        (box,) = await reader.sandboxes()
    assert (box.state, box.waits) == ("READY", "")
    await life.end_session("sample-7")


async def test_a_line_that_empties_while_it_is_read_is_left_out(
    redis: ground.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    stands = await TokenBucket(redis, "starting", limit=1).status()
    async with FleetReader(target_of(redis)) as reader:

        async def before(names: list[str]) -> tuple[tuple[GateStatus, ...], dict[str, str]]:
            return (replace(stands, waiting=1),), {}

        monkeypatch.setattr(reader, "_stand", before)
        assert await reader.starting_lines() == {}

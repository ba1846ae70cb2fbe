"""A process killed at every line between the grant and its return leaves nothing behind."""

import asyncio
import os
import signal
import sys
import threading

import pytest

from ground.redis import answers, engine, inbox, shortcut, unit
from limiter import TokenBucket, client, exchange, gate, ledger, permit, sync_gate
from tests.harness import killing
from tests.harness.selection import turn
from tests.limiter.by_shortcut import on_its_shortcut

LEASE = 2.0
SOON = 100.0
AT_ONCE = 4  # they mostly wait for Redis

# All that runs from Redis's grant to the caller's permit, and from its release to Redis.
WATCHED = {
    module.__file__
    for module in (
        answers, client, engine, exchange, gate, inbox, ledger, permit, shortcut, sync_gate, unit,
    )
}  # fmt: skip


async def both_ways(url, name, way):
    """Permits granted at once and permits handed over, to a coroutine and to a thread."""
    door = TokenBucket(url, name, limit=1, lease=LEASE)
    if way == "shortcut":
        shortcut.WORTH_IT = 1
        await on_its_shortcut(door)
    async with door.hold():
        waiting = asyncio.create_task(door.acquire())
        while (await door.status()).waiting != 1:  # noqa: ASYNC110 - Redis tells nobody
            await asyncio.sleep(0.002)
    (await waiting).release()

    def hold_in_a_thread():
        with door.hold():
            pass

    await asyncio.to_thread(hold_in_a_thread)


def watch(reached):
    """Call `reached(code, line)` as a watched line is about to run."""

    def trace(frame, event, _):
        if frame.f_code.co_filename not in WATCHED:
            return None
        if event == "line":
            reached(frame.f_code, frame.f_lineno)
        return trace

    threading.settrace(trace)
    sys.settrace(trace)


def killed_at_every_line(url, way, every):
    """Fork once for each line and each of its first two runs, or for every so many-th of these,
    others at each commit; the names of the gates they held."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        runs = {}

        def note(code, line):
            place = (code.co_qualname, line)
            runs[place] = min(2, runs.get(place, 0) + 1)

        watch(note)
        asyncio.run(both_ways(url, "rehearsal", way))
        sys.settrace(None)
        os.write(writing, repr(sorted(runs.items())).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as report:
        places = [(place, nth) for place, runs in eval(report.read()) for nth in range(1, runs + 1)]
    places = places[turn() % every :: every]
    os.wait()
    running = {}

    def one_ends():
        child, status = os.wait()
        (where, line), _ = running.pop(child)
        if status not in (0, signal.SIGKILL):
            raise RuntimeError(f"{where}, line {line}: ended with {status}")

    for n, place in enumerate(places):
        child = os.fork()
        if child == 0:
            (where, line), nth = place
            die_at(where, line, nth)
            asyncio.run(both_ways(url, f"line-{n}", way))
            os._exit(0)
        running[child] = place
        if len(running) == AT_ONCE:
            one_ends()
    while running:
        one_ends()
    return [f"{where}, line {line}, time {nth}" for (where, line), nth in places]


def die_at(where, number, nth):
    left = [nth]

    def maybe_die(code, line):
        if (code.co_qualname, line) == (where, number):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    watch(maybe_die)


@pytest.mark.skipif(sys.platform != "linux", reason="forks a process that has loaded everything")
@pytest.mark.parametrize(
    "every", [pytest.param(10, id="a tenth"), pytest.param(1, id="all", marks=pytest.mark.soak)]
)
@pytest.mark.parametrize("way", ["engine", "shortcut"])
async def test_a_kill_at_any_line_leaks_nothing_past_the_lease(
    real_redis, shared_server, way, every
):
    places = (
        await asyncio.to_thread(killing.run, killed_at_every_line, shared_server.url, way, every)
    ).returned
    assert len(places) > 20
    gates = [
        TokenBucket(shared_server.target, f"line-{n}", limit=1, lease=LEASE)
        for n in range(len(places))
    ]

    async def is_served(gate, place):
        try:
            (await gate.acquire(timeout=SOON)).release()
        except Exception as failure:
            raise AssertionError(f"killed at {place}, nobody gets in") from failure
        return await gate.status()

    statuses = await asyncio.gather(*map(is_served, gates, places))
    assert all(status.waiting == 0 for status in statuses)
    assert sum(status.expired for status in statuses) > 0

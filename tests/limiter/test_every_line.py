"""A process killed at every line between the grant and its return leaves nothing behind."""

import asyncio
import inspect
import os
import signal
import sys
import threading

import pytest

from ground.redis import answers, inbox, shortcut, unit
from ground.redis import engine as engines
from limiter import (
    TokenBucket,
    client,
    exchange,
    gate,
    ledger,
    permit,
    sync_gate,
)
from limiter import gate as hold
from tests.harness import killing
from tests.limiter.by_shortcut import on_its_shortcut

LEASE = 2.0
SOON = 100.0
AT_ONCE = 4  # they mostly wait for Redis

# What runs from Redis's grant to the caller's permit, and from its release to Redis.
BOTH = [
    unit.Batch.end, engines.Engine.deliver, exchange.GateUnit.read_asks,
    exchange.GateUnit.read_release, ledger.Ledger.granted, ledger.Ledger.release,
    ledger.Ledger.hand_back, answers.deliver, unit.what_is_due, unit.take_up,
    permit.HeldPermit.__init__, permit.HeldPermit.release,
    gate.Gate._granted, gate.Gate.acquire, client.GateClient.ask,
]  # fmt: skip

BY_THE_ENGINE = [
    *BOTH, engines.Engine._turn, engines.Engine._exchange, engines.Engine._read,
    engines.Engine._received, exchange.GateUnit._read_entry, inbox.Inbox._read, inbox.read_streams,
    sync_gate.SyncGate._granted, sync_gate.SyncGate.acquire,
    hold.Hold.__aenter__, hold.Hold.__aexit__, hold.Hold.__enter__,
]  # fmt: skip

BY_SHORTCUT = [
    *BOTH, shortcut.Shortcut.touch, shortcut.Shortcut._flush, shortcut.Shortcut._send,
    shortcut.Shortcut._readable, shortcut.Shortcut._read, shortcut.Shortcut._guarded,
]  # fmt: skip


async def both_ways(url, name, stations):
    """Permits granted at once and permits handed over, to a coroutine and to a thread."""
    door = TokenBucket(url, name, limit=1, lease=LEASE)
    if stations is BY_SHORTCUT:
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


def codes(function):
    """Of a function and of those defined inside it."""
    found = [inspect.unwrap(function).__code__]
    for code in found:
        found.extend(const for const in code.co_consts if inspect.iscode(const))
    return found


def watch(reached, stations):
    """Call `reached(code, line)` as a line of a station is about to run."""
    watched = {code for station in stations for code in codes(station)}

    def trace(frame, event, _):
        if frame.f_code not in watched:
            return None
        if event == "line":
            reached(frame.f_code, frame.f_lineno)
        return trace

    threading.settrace(trace)
    sys.settrace(trace)


def killed_at_every_line(url, way, every):
    """Fork once for each line and each of its first two runs, or for every so many-th of these;
    the names of the gates they held."""
    stations = {"engine": BY_THE_ENGINE, "shortcut": BY_SHORTCUT}[way]
    reading, writing = os.pipe()
    if os.fork() == 0:
        runs = {}

        def note(code, line):
            place = (code.co_qualname, line)
            runs[place] = min(2, runs.get(place, 0) + 1)

        watch(note, stations)
        asyncio.run(both_ways(url, "rehearsal", stations))
        sys.settrace(None)
        os.write(writing, repr(sorted(runs.items())).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as report:
        places = [(place, nth) for place, runs in eval(report.read()) for nth in range(1, runs + 1)]
    places = places[::every]
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
            die_at(where, line, nth, stations)
            asyncio.run(both_ways(url, f"line-{n}", stations))
            os._exit(0)
        running[child] = place
        if len(running) == AT_ONCE:
            one_ends()
    while running:
        one_ends()
    return [f"{where}, line {line}, time {nth}" for (where, line), nth in places]


def die_at(where, number, nth, stations):
    left = [nth]

    def maybe_die(code, line):
        if (code.co_qualname, line) == (where, number):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    watch(maybe_die, stations)


@pytest.mark.skipif(sys.platform != "linux", reason="forks a process that has loaded everything")
@pytest.mark.parametrize(
    "every", [pytest.param(3, id="a third"), pytest.param(1, id="all", marks=pytest.mark.soak)]
)
@pytest.mark.parametrize("way", ["engine", "shortcut"])
async def test_a_kill_at_any_line_leaks_nothing_past_the_lease(
    real_redis, shared_server, way, every
):
    places = (
        await asyncio.to_thread(killing.run, killed_at_every_line, shared_server.url, way, every)
    ).returned
    assert len(places) > 50
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
    assert sum(status.expired for status in statuses) > 10

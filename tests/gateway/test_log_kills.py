"""The log when its Redis, or a process before it, is killed."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import pytest

import ground
from gateway.calls import Sent
from gateway.log import Asked, Fresh
from gateway.training_rows import rows_of
from tests.gateway.conftest import Bench
from tests.gateway.turns import answer, asked, drains, one_turn
from tests.harness.cluster import Cluster
from tests.harness.servers import PrivateRedis

Start = Callable[..., PrivateRedis]


async def reopened(server: PrivateRedis) -> Bench:
    bench = Bench(ground.connect(server.target))
    await bench.start()
    return bench


async def ask_behind(bench: Bench, session: Any, reached: bytes) -> Fresh:
    begun = await bench.log.begin(session, Asked(b"n" * 16, (reached,)))
    assert isinstance(begun, Fresh)
    await bench.log.commit(session, begun.fence, answer(begun), b"m" * 16)
    bench.log.sent(session, begun.call, Sent.WHOLE)
    return begun


async def test_a_turn_that_redis_lost_is_a_hole_and_masks_its_session(private_redis: Start) -> None:
    """After a power cut before an fsync. The agent goes on with an answer that the log lacks."""
    server = private_redis(aof=True)
    bench = await reopened(server)
    session = await bench.open()
    await one_turn(bench.log, session)
    await bench.log._notes.flush()
    written = server.written()
    await one_turn(bench.log, session, 2)
    server.lose_since(written)
    begun = await ask_behind(bench, session, (2).to_bytes(16))
    assert begun.foreign == 1
    log = await bench.log.freeze(session)
    rows = rows_of(log)
    assert (log.hole, rows.masked, rows.cause, len(rows.rows)) == (True, True, "hole", 2)
    await bench.aclose()


async def test_a_full_redis_renews_the_leases_of_calls(private_redis: Start) -> None:
    server = private_redis(aof=False)
    bench = await reopened(server)
    session = await bench.open()
    begun = await bench.log.begin(session, asked(1))
    assert isinstance(begun, Fresh)
    server.ask("ZADD", f"{session.key()}:open", 1, 1)
    server.ask("CONFIG", "SET", "maxmemory", 1)
    notes = bench.log._notes
    await notes._send([(session.root, session.sid, begun.call, begun.fence, "r")])
    assert float(server.ask("ZSCORE", f"{session.key()}:open", 1)) > 1
    server.ask("CONFIG", "SET", "maxmemory", 0)
    await bench.aclose()


async def test_a_redis_that_lost_nothing_makes_no_hole(private_redis: Start) -> None:
    server = private_redis(aof=True)
    bench = await reopened(server)
    session = await bench.open()
    await one_turn(bench.log, session)
    server.kill()
    server.start()
    begun = await ask_behind(bench, session, (1).to_bytes(16))
    assert begun.hits == (1,)
    log = await bench.log.freeze(session)
    assert (log.hole, sorted(log.calls), rows_of(log).masked) == (False, [1, 2], False)
    await bench.aclose()


async def test_an_edit_is_no_hole_while_redis_lives(bench: Bench) -> None:
    session = await bench.open()
    await one_turn(bench.log, session)
    await ask_behind(bench, session, b"edited" + b"." * 10)
    assert not (await bench.log.freeze(session)).hole


async def test_a_commit_outlasts_a_restart_of_redis(private_redis: Start) -> None:
    server = private_redis(aof=True)
    bench = await reopened(server)
    session = await bench.open()
    begun = await bench.log.begin(session, asked(1))
    assert isinstance(begun, Fresh)
    server.kill()
    committing = asyncio.create_task(
        bench.log.commit(session, begun.fence, answer(begun), b"r" * 16)
    )
    await asyncio.sleep(0)
    server.start()
    await committing
    assert (await bench.log.finalize(session, 1.0)).counts["trained"] == 3
    await bench.aclose()


SERVING = """
import asyncio, sys
from gateway.log import Asked, SessionLog
from gateway.calls import Call, Sent
from gateway.packing import floats_of, ids_of

async def main():
    url, key = sys.argv[1:]
    log = SessionLog(url, "default")
    session = await log.find(key)
    for request in range(1, 10**6):
        asked = Asked(request.to_bytes(16))
        begun = await log.begin(session, asked)
        call = Call(
            begun.call, None, 0, ids_of([1, request]), ids_of([request, begun.call]),
            floats_of([-1, -2]), ((2, 7),), req_digest=asked.digest,
        )
        await log.commit(session, begun.fence, call, asked.digest, b"said")
        print(request, begun.call, flush=True)  # its client has the answer
        log.sent(session, begun.call, Sent.WHOLE)

asyncio.run(main())
"""


@pytest.mark.parametrize("turns", [1, 40])
async def test_no_committed_turn_of_a_killed_process_is_lost(
    private_redis: Start, turns: int
) -> None:
    """SIGKILL in the middle of its work; another process answers retries, and finalizes."""
    server = private_redis(aof=True)
    bench = await reopened(server)
    opened = await bench.log.open("math", "u1", "i1")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVING, server.url, opened.key, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    heard: dict[int, int] = {}
    while len(heard) < turns:
        request, call = map(int, (await process.stdout.readline()).split())
        heard[request] = call
    os.kill(process.pid, signal.SIGKILL)
    await process.wait()
    for line in (await process.stdout.read()).splitlines():
        request, call = map(int, line.split())
        heard[request] = call
    server.kill()
    server.start()
    for request, call in heard.items():
        again = await bench.log.begin(opened.session, asked(request, retry=True))
        assert not isinstance(again, Fresh), "it is sampled twice"
        assert getattr(again.call, "id", 0) == call
    ended = await bench.log.finalize(opened.session, 1.0, drain=0)
    log_calls = ended.counts["calls"]
    assert log_calls in (len(heard), len(heard) + 1)
    assert ended.counts["sampled"] >= 2 * len(heard)
    await bench.aclose()


async def test_a_session_lives_on_a_cluster(redis_cluster: Cluster) -> None:
    bench = Bench(redis_cluster.target)
    await bench.start()
    opened = await bench.log.open("math", "u1", "i1")
    assert await bench.another().find(opened.key) == opened.session
    begun = await bench.log.begin(opened.session, asked(1))
    assert isinstance(begun, Fresh)
    ending = asyncio.create_task(bench.another().finalize(opened.session, 1.0, drain=100))
    await drains(bench)
    await bench.log.commit(opened.session, begun.fence, answer(begun), b"r" * 16)
    assert (await ending).counts["trained"] == 3
    await bench.aclose()

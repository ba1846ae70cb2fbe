"""Who reads the notices of jobs' ends: a loop its own, by its shortcut; the inbox all others.

Nothing is ever checked here of itself: whom no notice reaches waits for ever.
"""

import asyncio
import multiprocessing
import threading
from collections.abc import Callable
from typing import Any

import pytest

import ground
from ground.redis import engine as ground_engine
from ground.redis.engine import Engine
from ground.redis.inbox import SILENCE
from ground.redis.loop_wire import LoopWire
from ground.redis.shortcut import LATE, Shortcut
from penstock.in_process import run_queued
from tests.harness.servers import until
from tests.worker.queue.by_shortcut import (
    a_forked_child_submits,
    deaf,
    eventually,
    on_its_shortcut,
    queued,
    shortcut_of,
)
from tests.worker.queue.interruptions import is_interrupted_at_every_statement
from worker import CodeQueue, DeadlineExceeded
from worker.queue import client_orders
from worker.queue.client_orders import Orders, Waiting
from worker.queue.engine import JobEngine, JobShortcut
from worker.queue.engine import client_engine as engine_of

PATIENCE = 100.0
NEVER = 3600.0


@pytest.fixture(autouse=True)
def no_checks(monkeypatch) -> None:
    monkeypatch.setattr(client_orders, "CHECK_EVERY", NEVER)
    monkeypatch.setattr(client_orders, "_BEAT", NEVER)
    monkeypatch.setattr(client_orders, "_ALIVE", int(4 * NEVER))


@pytest.fixture
async def queue(real_redis, fusion) -> CodeQueue:
    return await on_its_shortcut(new_queue(real_redis))


def new_queue(where: Any, **options: Any) -> CodeQueue:
    return CodeQueue(where, "code", no_workers_after=2 * NEVER, **options)


async def begun(queue: CodeQueue, redis: Any, *codes: str, **options: Any) -> list[asyncio.Task]:
    """Programs that wait for a worker."""
    running = [asyncio.create_task(queue.run(code, **options)) for code in codes]
    await eventually(lambda: len(queued(redis)) == len(codes), "all of them to be queued")
    return running


async def work(redis: Any) -> None:
    await asyncio.to_thread(run_queued, redis)


def work_while_the_loop_stands_still(redis: Any) -> None:
    Elsewhere(lambda: run_queued(redis)).join()


def orders_of(queue: CodeQueue) -> Orders:
    """Those that the running loop hears of itself."""
    return shortcut_of(queue).orders


def nobody_waits(queue: CodeQueue) -> bool:
    return not any(client.waiting for client in engine_of(queue.target)._clients)


def reads_itself(queue: CodeQueue) -> bool:
    shortcut = shortcut_of(queue)
    return shortcut is not None and shortcut.reads


def too_long_passes(queue: CodeQueue, monkeypatch: Any, seconds: float = SILENCE) -> None:
    engine = engine_of(queue.target)
    late = engine.clock() + seconds
    monkeypatch.setattr(engine, "clock", lambda: late)
    engine.wake()


def blocked(redis: Any) -> list[int]:
    return [int(each["id"]) for each in redis.client_list() if "b" in each["flags"]]


def reader_of(queue: CodeQueue, redis: Any) -> int:
    """The server's id of the connection by which the running loop reads."""
    host, port = shortcut_of(queue)._reader._socket.getsockname()
    (found,) = [each for each in redis.client_list() if each["addr"] == f"{host}:{port}"]
    return int(found["id"])


@pytest.fixture
def readers(monkeypatch) -> list[str]:
    """Who read notices, each time."""
    seen: list[str] = []
    read = Orders.read_entries

    def noted(self: Orders, notices: Any) -> None:
        by_inbox = threading.current_thread().name == "penstock-inbox"
        seen.append("inbox" if by_inbox else "loop")
        read(self, notices)

    monkeypatch.setattr(Orders, "read_entries", noted)
    return seen


class Elsewhere:
    """A program that a thread of its own waits for."""

    def __init__(self, run: Callable[[], Any]) -> None:
        self.outcome: Any = None

        def wait() -> None:
            self.outcome = run()

        self._thread = threading.Thread(target=wait)
        self._thread.start()

    def join(self) -> Any:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "it still waits"
        return self.outcome


# A loop that waits


async def test_it_reads_its_notices_itself(real_redis, readers, queue):
    readers.clear()
    for n in range(3):
        (running,) = await begun(queue, real_redis, f"{n}")
        await work(real_redis)
        assert (await asyncio.wait_for(running, PATIENCE)).ok
    assert readers == ["loop"] * 3
    assert reads_itself(queue)


async def test_many_calls_of_it_are_told_by_one_blocked_connection(real_redis, queue):
    running = await begun(queue, real_redis, *map(str, range(20)))
    reader = reader_of(queue, real_redis)
    await eventually(lambda: reader in blocked(real_redis), "them to be asked for")
    assert len(blocked(real_redis)) <= 2  # the inbox has read for the warm-up, perhaps
    await work(real_redis)
    results = await asyncio.wait_for(asyncio.gather(*running), PATIENCE)
    assert all(result.ok for result in results)


async def test_who_only_submits_is_told_by_the_inbox(real_redis, readers, queue):
    handle = await queue.submit("1")
    readers.clear()
    await work(real_redis)
    until(lambda: handle.done, "a loop that stands still to be no hindrance")
    assert readers == ["inbox"]
    assert (await handle.result()).ok


async def test_a_cancelled_call_leaves_it_reading(real_redis, queue):
    (gone,) = await begun(queue, real_redis, "1", token="gone")
    gone.cancel()
    await eventually(lambda: queued(real_redis) == [], "it to be taken back")
    (running,) = await begun(queue, real_redis, "2")
    await work(real_redis)
    assert (await asyncio.wait_for(running, PATIENCE)).ok
    assert reads_itself(queue)


# A loop that stands still, with notices of its own before it


async def test_a_thread_is_told_meanwhile(real_redis, queue):
    (running,) = await begun(queue, real_redis, "1")
    work_while_the_loop_stands_still(real_redis)
    thread = Elsewhere(lambda: queue.sync.run("2"))
    until(lambda: len(queued(real_redis)) == 1, "its program to be queued")
    work_while_the_loop_stands_still(real_redis)
    assert thread.join().ok
    assert (await asyncio.wait_for(running, PATIENCE)).ok


async def test_a_thread_that_waits_for_the_same_job_is_told_meanwhile(real_redis, queue):
    (running,) = await begun(queue, real_redis, "1", token="same")
    thread = Elsewhere(lambda: queue.sync.run("1", token="same"))
    until(lambda: len(list(engine_of(queue.target).orders.waiting)) == 2, "it to be asked for")
    work_while_the_loop_stands_still(real_redis)
    assert thread.join().ok
    assert (await asyncio.wait_for(running, PATIENCE)).ok


async def test_another_loop_is_told_meanwhile(real_redis, queue):
    (running,) = await begun(queue, real_redis, "1")
    work_while_the_loop_stands_still(real_redis)

    async def elsewhere() -> Any:
        await on_its_shortcut(queue)
        return await queue.run("2", token="other")

    other = Elsewhere(lambda: asyncio.run(elsewhere()))
    until(lambda: real_redis.exists("rq:job:other") == 1, "its program to be queued")
    work_while_the_loop_stands_still(real_redis)
    assert other.join().ok
    assert (await asyncio.wait_for(running, PATIENCE)).ok


@pytest.mark.parametrize("deafened", [True, False], ids=["its enqueue too", "its enqueue answered"])
async def test_a_result_that_was_there_at_the_deadline_counts(
    real_redis, queue, monkeypatch, deafened
):
    if deafened:
        deaf(queue)
    (running,) = await begun(queue, real_redis, "1", timeout=PATIENCE)
    work_while_the_loop_stands_still(real_redis)
    too_long_passes(queue, monkeypatch, PATIENCE)
    until(lambda: nobody_waits(queue), "its deadline to pass")
    assert (await asyncio.wait_for(running, PATIENCE)).ok


async def test_a_deadline_is_kept_where_there_is_no_result(real_redis, queue):
    with pytest.raises(DeadlineExceeded):
        await asyncio.wait_for(queue.run("1", token="late", timeout=0.05), PATIENCE)
    await eventually(lambda: queued(real_redis) == [], "it to be taken back")


# Several loops


async def test_two_loops_that_wait_read_their_own(real_redis, readers, queue):
    (running,) = await begun(queue, real_redis, "1")
    waits = threading.Event()

    async def elsewhere() -> Any:
        await on_its_shortcut(queue)
        running = asyncio.create_task(queue.run("2"))
        await eventually(lambda: len(queued(real_redis)) == 2, "both to be queued")
        waits.set()
        return await running

    other = Elsewhere(lambda: asyncio.run(elsewhere()))
    await asyncio.to_thread(waits.wait, PATIENCE)
    readers.clear()
    await work(real_redis)
    assert (await asyncio.wait_for(running, PATIENCE)).ok
    assert (await asyncio.to_thread(other.join)).ok
    assert set(readers) == {"loop"}


def test_the_end_of_a_loop_that_read_for_itself_leaves_nobody_untold(real_redis, fusion):
    async def plays(queue: CodeQueue) -> None:
        await on_its_shortcut(queue)

    queue = new_queue(real_redis)
    for _ in range(2):
        asyncio.run(plays(queue))
        thread = Elsewhere(lambda: queue.sync.run("1"))
        until(lambda: len(queued(real_redis)) == 1, "its program to be queued")
        run_queued(real_redis)
        assert thread.join().ok


def test_a_thread_is_told_though_the_loop_that_asked_for_the_same_is_closed(real_redis, fusion):
    queue, loop = new_queue(real_redis), asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # of a task that never ends
    loop.run_until_complete(on_its_shortcut(queue))
    (never_ends,) = loop.run_until_complete(begun(queue, real_redis, "1", token="same"))
    thread = Elsewhere(lambda: queue.sync.run("1", token="same"))
    until(lambda: len(list(engine_of(queue.target).orders.waiting)) == 2, "it to be asked for")
    loop.close()
    run_queued(real_redis)
    assert thread.join().ok
    assert not never_ends.done()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
async def test_a_forked_child_leaves_its_parents_reading_alone(real_redis, queue, shared_server):
    (waiting,) = await begun(queue, real_redis, "1")
    await a_forked_child_submits(shared_server.target)
    await work(real_redis)
    assert (await asyncio.wait_for(waiting, PATIENCE)).ok
    assert reads_itself(queue)


# Connections


async def test_what_a_cut_connection_did_not_bring_the_inbox_does(real_redis, proxy, fusion):
    queue = await on_its_shortcut(new_queue(proxy.target))
    (running,) = await begun(queue, real_redis, "1")
    proxy.cut()
    await work(real_redis)
    assert (await asyncio.wait_for(running, PATIENCE)).ok
    await asyncio.wait_for(on_its_shortcut(queue), PATIENCE)


async def test_a_reader_that_meets_an_error_is_left(real_redis, queue):
    shortcut = shortcut_of(queue)
    (running,) = await begun(queue, real_redis, "1")
    reader = reader_of(queue, real_redis)
    await eventually(lambda: reader in blocked(real_redis), "it to be asked for")
    real_redis.client_unblock(reader, error=True)
    await eventually(lambda: not shortcut.reads, "it to be left")
    await work(real_redis)
    assert (await asyncio.wait_for(running, PATIENCE)).ok


def falls_silent(queue: CodeQueue, monkeypatch: Any) -> None:
    """As if the reader's connection had been dropped without a word."""
    reader = shortcut_of(queue)._reader
    asyncio.get_running_loop().remove_reader(reader._socket.fileno())
    monkeypatch.setattr(reader, "received", lambda: ())


async def test_a_reader_that_fell_silent_is_left(real_redis, queue, monkeypatch):
    shortcut = shortcut_of(queue)
    (running,) = await begun(queue, real_redis, "1")
    falls_silent(queue, monkeypatch)
    await work(real_redis)
    too_long_passes(queue, monkeypatch)
    assert (await asyncio.wait_for(running, PATIENCE)).ok
    assert not shortcut.reads


async def test_a_loop_that_was_idle_for_long_goes_on_with_its_reader(
    real_redis, readers, queue, monkeypatch
):
    reader = shortcut_of(queue)._reader
    too_long_passes(queue, monkeypatch, SILENCE + 1)
    readers.clear()
    (running,) = await begun(queue, real_redis, "1")
    await work(real_redis)
    assert (await asyncio.wait_for(running, PATIENCE)).ok
    assert readers == ["loop"]
    assert shortcut_of(queue)._reader is reader


async def test_a_reader_that_died_while_it_was_idle_is_left_soon(real_redis, queue, monkeypatch):
    shortcut = shortcut_of(queue)
    falls_silent(queue, monkeypatch)
    too_long_passes(queue, monkeypatch, SILENCE + 1)
    (running,) = await begun(queue, real_redis, "1")
    too_long_passes(queue, monkeypatch, LATE)
    await eventually(lambda: not shortcut.reads, "it to be left")
    await work(real_redis)
    assert (await asyncio.wait_for(running, PATIENCE)).ok


# A signal's handler may raise anywhere


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (JobShortcut, "_read_notices"),
        (JobShortcut, "_ask"),
        (Shortcut, "_go_on"),
        (Orders, "read_entries"),
        (Orders, "_settle"),
        (Orders, "_acknowledge"),
        (Waiting, "remove"),
        (Engine, "deliver"),
        (ground_engine, "deliver"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
async def test_an_interrupted_notice_is_told_all_the_same(
    real_redis, queue, raises_once, owner, name
):
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    running = await begun(queue, real_redis, "1", "2")
    raises_once(owner, name)
    await work(real_redis)
    results = await asyncio.wait_for(asyncio.gather(*running), PATIENCE)
    assert all(result.ok for result in results)
    await eventually(lambda: nobody_waits(queue), "nothing to be left")


@pytest.fixture
async def watched(monkeypatch) -> set[int]:
    """The sockets that the running loop reads."""
    loop, sockets = asyncio.get_running_loop(), set[int]()
    add, remove = loop.add_reader, loop.remove_reader

    def adds(socket: int, *callback: Any) -> None:
        add(socket, *callback)
        sockets.add(socket)

    def removes(socket: int) -> bool:
        sockets.discard(socket)
        return remove(socket)

    monkeypatch.setattr(loop, "add_reader", adds)
    monkeypatch.setattr(loop, "remove_reader", removes)
    loop.set_exception_handler(lambda *_: None)
    return sockets


def sockets_of(queue: CodeQueue) -> set[int]:
    shortcut = shortcut_of(queue)
    return {each._socket.fileno() for each in (shortcut._connection, shortcut._reader)}


def cut(queue: CodeQueue) -> None:
    with engine_of(queue.target).lock:
        shortcut_of(queue).cut()


async def test_an_interrupted_end_leaves_no_reader(real_redis, watched, queue, raises_once):
    old = shortcut_of(queue)._reader
    raises_once(LoopWire, "hang_up")
    with pytest.raises(KeyError):
        cut(queue)
    cut(queue)  # as the engine does that finds it late
    await on_its_shortcut(queue)
    assert shortcut_of(queue)._reader is not old
    assert watched == sockets_of(queue)


async def test_an_interrupted_beginning_leaves_no_reader(real_redis, watched, queue, monkeypatch):
    made, real = [], LoopWire.watch

    def fails_at_the_second(*args: Any) -> bool:
        made.append(1)
        if len(made) == 2:
            raise KeyError("a signal's handler")
        return real(*args)

    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    monkeypatch.setattr(LoopWire, "watch", fails_at_the_second)
    cut(queue)
    await asyncio.wait_for(on_its_shortcut(queue), PATIENCE)
    assert len(made) == 4
    assert watched == sockets_of(queue)


def test_a_loop_interrupted_at_any_statement_of_its_reading_waits_for_nothing(shared_server):
    """In an interpreter of its own, where what is interrupted is made again."""
    child = multiprocessing.get_context("spawn").Process(
        target=is_interrupted_at_every_statement, args=(shared_server.url,)
    )
    child.start()
    child.join(2 * PATIENCE)
    assert child.exitcode == 0


# What is told to whom


async def test_thousands_of_jobs_wait_on_one_blocked_connection(private_redis):
    server = private_redis(aof=False)
    redis = ground.connect(server.target)
    queue = CodeQueue(server.target, "code")
    running = asyncio.create_task(queue.run_many([f"{n}" for n in range(2000)], timeout=100))
    while redis.llen("rq:queue:code") < 2000:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.01)
    while not (blocked := [each for each in redis.client_list() if "b" in each["flags"]]):  # noqa: ASYNC110 - the reader is starting
        await asyncio.sleep(0.01)
    assert len(blocked) == 1
    assert len(redis.client_list()) <= 5  # this test's own, the engine's, the loop's line and ear
    for id in redis.lrange("rq:queue:code", 0, -1):
        _finish(redis, id.decode())
    assert len(await running) == 2000
    redis.close()


def _finish(redis, id: str) -> None:
    """As a worker of ours tells: with the result in the notice."""
    stream = redis.hget(f"rq:job:{id}", "penstock_reply_to")
    result = '{"status": "Success", "run_result": {"status": "Finished"}}'
    redis.xadd(stream, {"job": id, "status": "finished", "result": result})


async def test_two_clients_do_not_get_each_others_notices(real_redis, shared_server):
    # By another way to the same server: an engine, a stream and a reader of its own.
    ours = CodeQueue(shared_server.target, "code")
    theirs = CodeQueue(shared_server.socket_target, "code")
    mine, yours = await ours.submit("1", timeout=60), await theirs.submit("2", timeout=60)
    streams = real_redis.keys("penstock:client:*:done")
    _finish(real_redis, mine.id)
    assert (await mine.result()).ok
    assert not yours.done
    told = [real_redis.hget(f"rq:job:{h.id}", "penstock_reply_to") for h in (mine, yours)]
    assert told[0] != told[1]
    assert len(streams) <= 1
    _finish(real_redis, yours.id)
    assert (await yours.result()).ok


# Its end


def test_the_inbox_ends_with_its_engine_and_no_key_is_left(real_redis) -> None:
    queue = new_queue(real_redis)
    queue.sync.submit("1")
    engine: JobEngine = engine_of(queue.target)
    until(lambda: engine._inbox and engine._inbox._reading, "it to read")
    inbox = engine._inbox
    engine.stop()
    assert inbox is not None
    assert not inbox._thread.is_alive()
    assert real_redis.keys("penstock:client:*") == []

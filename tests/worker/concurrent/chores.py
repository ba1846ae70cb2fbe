"""What the tests of the worker have it do. Each tells in Redis what it was made to run."""

import asyncio
import functools
import multiprocessing
import os
import threading
import time
from typing import Any
from weakref import WeakKeyDictionary

import redis
import rq
from rq import Retry
from rq.job import Job

from tests.harness import doomed


def add(a: int, b: int) -> int:
    return a + b


async def add_later(a: int, b: int) -> int:
    await asyncio.sleep(0.01)
    return a + b


def told(url: str, name: str) -> None:
    """Counts its executions."""
    client: Any = redis.Redis.from_url(url)
    client.rpush("order", name)  # first: tests wait for the count
    client.hincrby("ran", name, 1)
    client.close()


async def reaches_running(url: str, name: str) -> str:
    told(url, name)
    doomed.reached("running")
    await asyncio.sleep(0)
    return name


async def takes(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds


async def lasts(url: str, name: str) -> None:
    """Until it is ended, and says when it is."""
    told(url, name)
    try:
        await asyncio.sleep(3600)
    finally:
        told(url, f"{name} ended")


def blocks(url: str, name: str) -> None:
    """As `lasts`, in a thread that only Python code can interrupt."""
    told(url, name)
    try:
        while True:
            time.sleep(0.01)
    finally:
        told(url, f"{name} ended")


def waits_for(url: str, key: str) -> None:
    """Until something is pushed there."""
    client: Any = redis.Redis.from_url(url, socket_timeout=None)
    client.blpop(key)
    client.close()


def ends_a_child() -> int | None:
    """The exit code of a child process that was told to end."""
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(3600,))
    child.start()
    child.terminate()
    child.join(100)
    return child.exitcode


def uses_a_pool() -> list[int]:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return pool.map(abs, [-1, -2])


def which_thread() -> int:
    return threading.get_ident()


_meetings: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Barrier] = WeakKeyDictionary()


async def meets(count: int) -> None:
    """Returns when so many of them run in one worker."""
    here = asyncio.get_running_loop()
    await _meetings.setdefault(here, asyncio.Barrier(count)).wait()


async def overlap(url: str, name: str) -> int:
    """How many of its kind ran at once, at most."""
    client: Any = redis.Redis.from_url(url)
    most = client.incr("overlap")
    try:
        await asyncio.sleep(0.05)
    finally:
        client.decr("overlap")
        client.close()
    return int(most)


def who_am_i() -> Any:
    job = rq.get_current_job()
    return job and job.id


async def who_am_i_later() -> Any:
    await asyncio.sleep(0.01)
    return who_am_i()


def nothing() -> None: ...


def fail(words: str) -> None:
    raise ValueError(words)


def told_and_fails_once(url: str, name: str) -> None:
    told(url, name)
    client: Any = redis.Redis.from_url(url)
    ran = int(client.hget("ran", name))
    client.close()
    if ran == 1:
        raise ValueError("once")


async def fail_until(url: str, name: str, times: int) -> int:
    client: Any = redis.Redis.from_url(url)
    tries = int(client.incr(f"tries:{name}"))
    client.close()
    if tries <= times:
        raise ValueError(f"try {tries}")
    return tries


def fails_once_then_returns_its_ttl(url: str) -> int:
    job: Any = rq.get_current_job()
    client: Any = redis.Redis.from_url(url)
    tries, ttl = client.incr("tries"), client.ttl(job.key)
    client.close()
    if tries == 1:
        raise ValueError("it")
    return int(ttl)


def asks_for_retries(url: str, name: str) -> Any:
    client: Any = redis.Redis.from_url(url)
    tries = int(client.incr(f"tries:{name}"))
    client.close()
    return Retry(max=2) if tries < 3 else tries


def always_asks_for_a_retry(url: str, name: str) -> Any:
    told(url, name)
    return Retry(max=2)


def on_success(job: Any, connection: Any, result: Any) -> None:
    connection.rpush("called back", f"success {job.id} {result}")


def on_failure(job: Any, connection: Any, kind: Any, error: Any, trace: Any) -> None:
    connection.rpush("called back", f"failure {job.id} {error}")


def on_stopped(job: Any, connection: Any) -> None:
    connection.rpush("called back", f"stopped {job.id}")


def on_any_end(job: Any, connection: Any, *_: Any) -> None:
    connection.rpush("called back", job.id)


def callback_that_raises(*_: Any) -> None:
    raise ValueError("in the callback")


def callback_that_exits(*_: Any) -> None:
    raise SystemExit(3)


def callback_that_lasts(*_: Any) -> None:
    while True:
        time.sleep(0.01)


class OwnJob(Job):
    """A user's own job class."""


def on_exception(job: Job, *_: Any) -> None:
    job.connection.rpush("handled", f"{type(job).__name__} {job.id}")


def is_kept_for(ttl: int, fails: bool) -> None:
    job: Any = rq.get_current_job()
    job.result_ttl = job.failure_ttl = ttl
    if fails:
        raise ValueError("it")


def save_meta(words: str) -> str:
    job = rq.get_current_job()
    assert job is not None
    job.meta["said"] = words
    job.save_meta()
    return words


def pid() -> int:
    return os.getpid()


def unreadable_result() -> Any:
    return object()


async def blocks_the_loop(url: str, key: str) -> None:
    waits_for(url, key)


def fail_unwritably() -> None:
    raise ValueError("half of a pair: \udcff")


class Unprintable(Exception):
    """Nobody can say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("it has no words")


def fail_unprintably() -> None:
    raise Unprintable


def leaves_by(kind: str) -> None:
    """Raises what is not meant for functions to raise."""
    raise {
        "GeneratorExit": GeneratorExit, "SystemExit": SystemExit, "StopIteration": StopIteration,
        "KeyboardInterrupt": KeyboardInterrupt, "CancelledError": asyncio.CancelledError,
    }[kind]("its words")  # fmt: skip


async def leaves_later_by(kind: str) -> None:
    await asyncio.sleep(0)
    leaves_by(kind)


async def awaits_what_leaves_by(kind: str) -> None:
    """As one does who waits for a future of another library's."""
    future = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(_settle, future, kind)
    await future


def _settle(future: Any, kind: str) -> None:
    try:
        leaves_by(kind)
    except BaseException as error:  # noqa: BLE001 - any of them is given on
        if isinstance(error, StopIteration):  # asyncio refuses it
            error = RuntimeError(*error.args)
        future.set_exception(error)


async def a_part_of_it_is_cancelled() -> None:
    part = asyncio.create_task(asyncio.sleep(3600))
    await asyncio.sleep(0)
    part.cancel()
    await part


async def swallows_its_cancellation(url: str, name: str) -> str:
    told(url, name)
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        told(url, f"{name} ended")
    return name


class Here:
    """A function that waits for its test, in the same process; and who was called back."""

    def __init__(self) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()
        self.ends: list[str] = []


HERE = Here()


def waits_here() -> None:
    HERE.reached.set()
    HERE.go_on.wait()


def waits_here_and_fails() -> None:
    waits_here()
    raise ValueError("it was let go")


def on_an_end_that_waits_here(job: Any, *_: Any) -> None:
    waits_here()
    HERE.ends.append(job.id)


def on_an_end_here(job: Any, *_: Any) -> None:
    HERE.ends.append(job.id)


async def has_a_part_that_exits(kind: str) -> None:
    async def part() -> None:
        leaves_by(kind)

    await asyncio.create_task(part())


class RaisesIt(dict[str, int]):
    """A result that cannot be written: it raises what is not meant for functions to raise."""

    def __init__(self, kind: str) -> None:
        super().__init__(a=1)
        self.kind = kind

    def items(self) -> Any:
        leaves_by(self.kind)


def returns_what_raises(kind: str) -> Any:
    return RaisesIt(kind)


class Indescribable(Exception):
    """Its traceback cannot be written: it raises the same."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind

    @property
    def __notes__(self) -> Any:
        leaves_by(self.kind)


def fails_indescribably(kind: str) -> None:
    raise Indescribable(kind)


@functools.cache
def _client_of(url: str) -> Any:
    return redis.Redis.from_url(url)


_openings: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Future[Any]] = WeakKeyDictionary()


async def runs_until_the_gates_open(url: str) -> None:
    """Counts its execution; ends when anything is in the stream `gates`, as all of its kind do."""
    _client_of(url).hincrby("ran", rq.get_current_job().id, 1)
    here = asyncio.get_running_loop()
    if here not in _openings:
        opening = asyncio.to_thread(_client_of(url).xread, {"gates": "0"}, block=0)
        _openings[here] = asyncio.ensure_future(opening)
    await asyncio.shield(_openings[here])


def gives(value: Any) -> Any:
    return value


def setting(name: str) -> str:
    return os.environ.get(name, "")

"""How far a program's judging has got, for those who listen meanwhile. Nothing of it is kept.

A request that asks for it has its worker publish now and then which case it is at. That costs
Redis a command or two a second, however many cases there are.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

from redis.exceptions import RedisError

from ground import connect
from ground.redis.url import RedisTarget
from jail.judge.suite import Case, Suite

log = logging.getLogger("penstock.worker")

_EVERY = 0.5  # seconds
_PATIENCE = 10.0  # seconds, for the thread that listens to end
_LOOKS = 1.0  # seconds after which it looks whether its end is wanted, if Redis says nothing


def channel_of(correlation_id: str) -> str:
    """The channel on which a job's progress is published."""
    return f"penstock:judging:{correlation_id}"


class Watched:
    """A `Suite` that says which case is asked for, at most twice a second."""

    def __init__(self, suite: Suite, client: Any, correlation_id: str) -> None:
        self._suite, self._client = suite, client
        self._channel = channel_of(correlation_id)
        self._next = 0.0
        self._saying: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._suite)

    async def case(self, index: int) -> Case:
        now = asyncio.get_running_loop().time()
        if now >= self._next and (self._saying is None or self._saying.done()):
            self._next = now + _EVERY
            self._saying = asyncio.create_task(self._say(index))  # no case waits for it
        return await self._suite.case(index)

    async def _say(self, index: int) -> None:
        try:
            await self._client.publish(self._channel, index)
        except (RedisError, OSError) as problem:
            log.debug("the progress of a judging was not published: %s", problem)

    async def close(self) -> None:
        if self._saying is not None:
            await self._saying  # at most as long as Redis may take to answer
        await self._suite.close()


@contextlib.contextmanager
def listening(
    target: RedisTarget | str, correlation_id: str, tell: Callable[[int], None]
) -> Iterator[None]:
    """Meanwhile, `tell` is called with the case that the worker is at, in a thread of its own.

    Where the channel may not be read, it is never called.
    """
    with connect(target) as client, client.pubsub() as channel:
        try:
            channel.subscribe(channel_of(correlation_id))
        except (RedisError, OSError) as problem:
            log.debug("the progress of judging is not known: %s", problem)
            yield
            return
        over = threading.Event()
        thread = threading.Thread(target=_hear, args=(channel, tell, over), daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            with contextlib.suppress(RedisError, OSError):  # the connection has ended: so does it
                channel.unsubscribe()  # whose reply wakes it
            thread.join(_PATIENCE)


def _hear(channel: Any, tell: Callable[[int], None], over: threading.Event) -> None:
    try:
        while channel.subscribed and not over.is_set():
            message = channel.get_message(timeout=_LOOKS)
            if message and message["type"] == "message":
                tell(int(message["data"]))
    except (RedisError, OSError) as problem:
        log.debug("the progress of judging is no longer known: %s", problem)

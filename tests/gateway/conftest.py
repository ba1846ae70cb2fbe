"""Sessions on the Redis of the test."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

import ground
from buffer import RolloutBuffer, TaskConfig
from gateway.calls import Call, Sent
from gateway.log import Asked, Fresh, Join, Replay, Session, SessionLog
from gateway.packing import Ids
from ground.redis.connect import AnyRedis


class Bench:
    """A task of the buffer, and its sessions: `await bench.open("u1")`."""

    def __init__(self, redis: AnyRedis, **config: Any) -> None:
        self.redis: Any = redis
        config = {"group_size": 1, "dialect": "v1"} | config
        self.buffer = RolloutBuffer(redis, "math", TaskConfig(**config))
        self.log = SessionLog(redis, "default")
        self.logs = [self.log]

    async def start(self) -> None:
        await self.buffer.config()

    def another(self) -> SessionLog:
        """The same log in another process."""
        self.logs.append(SessionLog(self.redis, "default"))
        return self.logs[-1]

    async def open(self, uid: str = "u1", instance: str = "i1", **more: Any) -> Session:
        return (await self.log.open("math", uid, instance, **more)).session

    async def aclose(self) -> None:
        for log in self.logs:
            await log.aclose()
        await self.buffer.aclose()


class OneSession:
    """One session of a log, as `World` uses it."""

    def __init__(self, log: SessionLog, session: Session, redis: Any) -> None:
        self.log, self.session, self.redis = log, session, redis

    async def begin(self, asked: Asked) -> Fresh | Replay | Join:
        return await self.log.begin(self.session, asked)

    async def ids(self, call: int) -> Ids:
        return await self.log.ids(self.session, call)

    async def commit(self, fence: str, call: Call, reached: bytes, answer: bytes = b"") -> None:
        await self.log.commit(self.session, fence, call, reached, answer)

    def sent(self, call: int, sent: Sent) -> None:
        self.log.sent(self.session, call, sent)

    def broke(self, call: int, fence: str, sent: Sent = Sent.NOTHING) -> None:
        self.log.broke(self.session, call, fence, sent)

    def die(self, call: int) -> None:
        """Its lease ends now, as if its process had been gone for long."""
        self.log._notes.forget(self.session.root, self.session.sid, call)
        self.redis.zadd(f"{self.session.key()}:open", {str(call): 1}, xx=True)


@pytest.fixture
async def bench(redis: ground.Client) -> AsyncIterator[Bench]:
    made = Bench(redis)
    await made.start()
    yield made
    await made.aclose()

"""Buffers on the Redis of the test, and a clock that can be moved."""

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import ground
from buffer import RolloutBuffer, TaskConfig
from buffer.group_functions import GroupFunctions
from buffer.settings import BufferSettings
from tests.buffer.serving import ServerProcess
from tests.harness.servers import PrivateRedis


class Bench:
    """What a test of the buffer works with: `await bench.buffer.take()`, `bench.advance(301)`."""

    def __init__(self, redis: ground.Client, buffer: RolloutBuffer) -> None:
        self.redis: Any = redis
        self.buffer = buffer

    def key(self, part: str) -> str:
        return f"penstock:buffer:{{{self.buffer.run}/{self.buffer.task}}}:{part}"

    def advance(self, seconds: float) -> None:
        """Move the task's clock: its servers lived that much longer."""
        self.redis.hincrby(self.key("state"), "paused", -int(seconds * 1000))

    def beats(self) -> bool:
        """Whether a server has looked at the task."""
        return bool(self.redis.hexists(self.key("state"), "beat"))

    async def fill(self, instance_id: str | int, rewards: list[Any], **more: Any) -> None:
        await self.buffer.write_many(
            [item(instance_id, f"{instance_id}-u{n}", r, **more) for n, r in enumerate(rewards)]
        )


@pytest.fixture
async def make(redis: ground.Client) -> AsyncIterator[Callable[..., Bench]]:
    """Makes a bench: `make(group_size=4, functions=…)`."""
    made: list[Bench] = []

    def make_bench(
        task: str = "math",
        run: str = "default",
        functions: GroupFunctions | None = None,
        function_timeout: float = 30.0,
        longest_wait: float = 90.0,
        **config: Any,
    ) -> Bench:
        config.setdefault("group_size", 4)
        settings = BufferSettings(function_timeout=function_timeout, longest_wait=longest_wait)
        buffer = RolloutBuffer(
            redis, task, TaskConfig(**config), run=run, functions=functions, settings=settings
        )
        made.append(Bench(redis, buffer))
        return made[-1]

    yield make_bench
    for bench in made:
        await bench.buffer.aclose()


@pytest.fixture
def bench(make: Callable[..., Bench]) -> Bench:
    return make()


def item(instance_id: str | int, uid: str | None, reward: Any = 1, **more: Any) -> dict[str, Any]:
    """A trajectory as slime's generators write it."""
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    found = {"instance_id": instance_id, "messages": messages, "reward": reward, "extra_info": {}}
    return found | ({"uid": uid} if uid else {}) | more


@pytest.fixture(scope="module")
def running(
    shared_server: PrivateRedis, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """A buffer server. It keeps no state, so that one serves every test that does not end it."""
    with ServerProcess(shared_server.url, tmp_path_factory.mktemp("server")) as server:
        yield server

"""What is held stays held while Redis has no memory left."""

import pytest

from buffer import Policy, RolloutBuffer, TaskConfig
from buffer.http.desk import Desk
from buffer.http.rollouts import Rollouts
from buffer.settings import BufferSettings
from ground import Client, RedisFull
from ground.lua import load_script
from ground.redis.connect import target_of
from tests.buffer.conftest import item
from tests.buffer.serving import served


async def test_a_full_redis_renews_what_is_held(private_redis) -> None:
    server = private_redis(aof=False)
    buffer = RolloutBuffer(server.target, "math", TaskConfig(group_size=2))
    try:
        await buffer.set_policy(Policy(groups_per_version=2, max_age=2, depth=2))
        await buffer.publish(10)
        done, held = await buffer.admit(2)
        await buffer.write_many([item("a", f"u{n}", n) for n in range(2)], slot=done)
        batch = await buffer.take()
        assert batch is not None
        rollout = buffer._task.key("rollout")
        server.ask("HSET", rollout, "owner", "me", "state", "running", "until", 0, "digest", "d")
        server.ask("CONFIG", "SET", "maxmemory", 1)
        await buffer.extend(batch, 500)
        assert await buffer.slots.renew([(held.id, held.fence)]) == (10, [0])
        watch = load_script("buffer", "watch")
        running = await buffer._task.link.run(watch, [rollout], ["me", 60_000, "", 1, 0])
        assert running == [b"d", b""]
        assert int(server.ask("HGET", rollout, "until")) > 0
    finally:
        await buffer.aclose()


async def test_a_start_in_a_full_redis_is_refused_with_what_to_raise(private_redis) -> None:
    server = private_redis(aof=False)
    async with served(server.target) as client:
        server.ask("CONFIG", "SET", "maxmemory", 1)
        asked = {"task_type": "outside", "num_repeat_per_sample": 2}
        refused = await client.post("/start_rollout", json=asked)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        full = f"maxmemory: {server.target} is out of memory; raise maxmemory"
        assert refused.json()["message"].startswith(full)


async def test_a_call_of_the_library_in_a_full_redis_says_what_to_raise(private_redis) -> None:
    server = private_redis(aof=False)
    buffer = RolloutBuffer(server.target, "math", TaskConfig(group_size=2))
    try:
        server.ask("CONFIG", "SET", "maxmemory", 1)
        with pytest.raises(RedisFull, match=r"maxmemory: .* is out of memory; raise maxmemory"):
            await buffer.write(item("a", "u1", 1))
        server.ask("CONFIG", "SET", "maxmemory", 0)
        assert await buffer.write(item("a", "u1", 1)) == "stored"
    finally:
        await buffer.aclose()


async def test_a_full_redis_ends_no_look_at_the_other_tasks(
    redis: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: object, **__: object) -> None:
        raise RedisFull("maxmemory: it is out of memory")

    monkeypatch.setattr(RolloutBuffer, "sweep", full)
    monkeypatch.setattr(Rollouts, "_watch", full)
    desk = Desk(target_of(redis), "default", BufferSettings())
    await desk._sweep("math")
    await Rollouts(desk, "http://127.0.0.1:1")._watch_or_report("math")
    await desk.aclose()

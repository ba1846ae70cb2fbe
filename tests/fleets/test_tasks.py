"""Fleets whose tasks, gateways, session sandboxes or monitor are broken."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import httpx
import pytest

from buffer import Policy, RolloutBuffer, TaskConfig
from buffer.errors import BufferFull
from buffer.group_functions import GroupFunctions
from ground.redis.url import parse_redis_url
from tests.fleets.surfaces import Fleet, note
from tests.gateway.fleet import Process
from tests.harness.servers import free_port, until
from tests.penstock.serving import monitor
from tests.worker.lifecycle.cloud import CloudThread
from tests.worker.lifecycle.conftest import quick
from worker.lifecycle import SandboxLifecycle


def item(name: str, n: int = 0, size: int = 0) -> dict[str, Any]:
    said = {"instance_id": name, "uid": f"{name}-{n}", "messages": [], "reward": float(n)}
    return said | {"extra_info": {"padding": "x" * size}}


def of(fleet: Fleet, work: Any, **config: Any) -> Any:
    """What comes of some work on the buffer of the task `math`."""

    async def done() -> Any:
        functions = config.pop("functions", None)
        more = {"functions": functions} if functions else {}
        config.setdefault("group_size", 1)
        target = parse_redis_url(fleet.url)
        buffer = RolloutBuffer(target, "math", TaskConfig(**config), **more)
        try:
            await buffer.config()
            found: Awaitable[Any] = work(buffer)
            return await found
        finally:
            await buffer.aclose()

    return asyncio.run(done())


def serve(fleet: Fleet, port: int) -> Any:
    process = fleet.start("buffer", "serve", "--port", str(port))
    url = f"http://127.0.0.1:{port}"
    until(lambda: fleet.run("health", url).returncode == 0, "the buffer server")
    return process


def test_a_dead_buffer_server(fleet: Fleet) -> None:
    port = free_port()
    server = serve(fleet, port)
    of(fleet, lambda buffer: buffer.write(item("a")), group_size=4)
    key = "penstock:buffer:{default/math}:state"
    until(lambda: fleet.client.hexists(key, "beat"), "the server's beat")
    server.kill()
    server.wait()
    name = "a dead buffer server"
    said = "task 'math': no buffer server has looked after it"
    fleet.names(name, "buffer_unserved", said, "penstock buffer serve")
    serve(fleet, port)
    fleet.is_well(name)


def test_a_buffer_at_its_limit(fleet: Fleet) -> None:
    async def fill(buffer: RolloutBuffer) -> None:
        with contextlib.suppress(BufferFull):
            for n in range(100):
                await buffer.write(item(f"i{n}", size=2000))

    of(fleet, fill, max_bytes=10_000)
    name = "a buffer at max_bytes"
    fleet.names(name, "buffer_full", "task 'math': it is full", "take batches faster")

    async def take(buffer: RolloutBuffer) -> None:
        await buffer.take()  # one of a kind gives no signal: these are discarded

    of(fleet, take, max_bytes=10_000)
    fleet.is_well(name)


def test_no_trainer_takes(fleet: Fleet) -> None:
    times = {"group_timeout_seconds": 1.0, "group_size": 2}
    of(fleet, lambda buffer: buffer.write_many([item("a", 0), item("a", 1)]), **times)
    name = "no trainer takes"
    said = "task 'math': 1 group is ready, and no trainer ever took one"
    fleet.names(name, "not_taken", said, "see whether the trainer lives")

    async def take(buffer: RolloutBuffer) -> None:
        await buffer.ack(await buffer.take())

    of(fleet, take, **times)
    fleet.is_well(name)


def test_a_function_that_raises(fleet: Fleet) -> None:
    def broken(*_: object) -> None:
        raise KeyError("score")

    async def take(buffer: RolloutBuffer) -> None:
        await buffer.write_many([item("a", 0), item("a", 1)])
        await buffer.take()

    functions = GroupFunctions(normalize_group_data=broken)
    of(fleet, take, functions=functions, group_size=2)
    name = "a function that raises on groups"
    said = "task 'math': 1 group in quarantine"
    fleet.names(name, "quarantined", said, "penstock groups requeue")
    fleet.do("groups", "requeue", "a")
    fleet.is_well(name)


def test_stale_groups(fleet: Fleet) -> None:
    async def fall_behind(buffer: RolloutBuffer) -> None:
        await buffer.set_policy(Policy(groups_per_version=1, max_age=1, when_old="drop"))
        await buffer.publish(1)
        for version in range(2, 14):
            [slot] = await buffer.admit(1, instances=[f"i{version}"])
            await buffer.write(item(f"i{version}"), slot=slot)
            await buffer.publish(10 * version)

    of(fleet, fall_behind)
    name = "stale groups"
    fleet.names(name, "stale", "of its groups got too old", "raise max_age")


def test_a_trainer_that_stopped_publishing(fleet: Fleet) -> None:
    times = {"group_timeout_seconds": 1.0}

    async def ask_in_vain(buffer: RolloutBuffer) -> None:
        await buffer.set_policy(Policy(groups_per_version=1, max_age=1))
        await buffer.publish(1)
        held = [*await buffer.admit(1, instances=["a"]), *await buffer.admit(1, instances=["b"])]
        asking = asyncio.create_task(buffer.admit(1, instances=["c"], wait=90))
        name = "a trainer that stopped publishing"
        said = "task 'math': 1 ask waits for the version after 1"
        remedy = "it publishes after each step"
        await asyncio.to_thread(fleet.names, name, "not_published", said, remedy)
        assert held
        await buffer.publish(2)
        await asking
        await asyncio.to_thread(fleet.is_well, name)

    of(fleet, ask_in_vain, **times)


@pytest.fixture
def engine(tmp_path: Path) -> Any:
    made = Process(tmp_path, "-m", "tests.gateway.scripted.vllm", "{port}", '{{"version": 3}}',
                   healthy="/v1/models")  # fmt: skip
    made.start()
    yield made
    made.kill()


def gateway(fleet: Fleet, engine: Process) -> tuple[Any, str]:
    port = free_port()
    words = ("gateway", "serve", "--port", str(port), "--engines", f"vllm={engine.url}")
    process = fleet.start(*words)
    url = f"http://127.0.0.1:{port}"
    until(lambda: fleet.run("health", url).returncode == 0, "the gateway")
    return process, url


def test_a_dead_engine(fleet: Fleet, engine: Process) -> None:
    of(fleet, lambda buffer: buffer.config())
    _, url = gateway(fleet, engine)
    opened = httpx.post(f"{url}/tasks/math/sessions", json={"uid": "u", "instance_id": "i"})
    key = opened.json()["key"]
    engine.kill()
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    headers = {"authorization": f"Bearer {key}"}
    httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=100)
    name = "a gateway whose engine is dead"
    said = f"task 'math': engine {engine.url} fails gateway"
    fleet.names(name, "engine_failing", said, "start that engine again")
    engine.start()
    fleet.is_well(name)


def test_a_dead_gateway(fleet: Fleet, engine: Process) -> None:
    of(fleet, lambda buffer: buffer.config())
    process, _ = gateway(fleet, engine)
    key = "penstock:buffer:{default/math}:gateways"
    until(lambda: fleet.client.exists(key) == 1, "the gateway's sweep")
    process.kill()
    process.wait()
    name = "a dead gateway"
    fleet.names(name, "gateway_silent", "has been silent for", "penstock gateway serve")


def sandboxes(fleet: Fleet, cloud: CloudThread) -> SandboxLifecycle:
    target = parse_redis_url(fleet.url)
    return SandboxLifecycle(target, cloud.provider, run="exp7", settings=quick())


def test_sandboxes_that_cannot_be_ended(fleet: Fleet, tmp_path: Path) -> None:
    with CloudThread(tmp_path) as cloud:
        life = sandboxes(fleet, cloud)
        reaper = reap(fleet, cloud)

        async def fail() -> None:
            box = await life.start()
            cloud.set(down=True)
            assert not await life.stop(box)

        asyncio.run(fail())
        name = "sandboxes that cannot be ended"
        said = "run 'exp7': 1 sandbox could not be ended"
        fleet.names(name, "sandboxes_failing", said, "end them at their provider")
        cloud.set(down=False)
        fleet.is_well(name)  # the reaper tries again by itself, at the latest after a minute
        assert cloud.live == 0
        reaper.kill()
        life.registry.close()


def reap(fleet: Fleet, cloud: CloudThread) -> Any:
    given = {
        "TEST_CLOUD": cloud.address, "PENSTOCK_ALLOW": cloud.provider.name,
        "PENSTOCK_SANDBOX_LEASE": "2", "PENSTOCK_REAP_INTERVAL": "0.2",
        "PENSTOCK_SANDBOX_GRACE": "0.5",
    }  # fmt: skip
    return fleet.start("reap", "--run", "exp7", **given)


def test_a_stuck_reaper(fleet: Fleet, tmp_path: Path) -> None:
    with CloudThread(tmp_path) as cloud:
        life = sandboxes(fleet, cloud)
        reaper = reap(fleet, cloud)
        asyncio.run(life.start())
        office = "penstock:sandbox:{exp7}:office:*"
        until(lambda: bool(fleet.client.keys(office)), "the reaper's election")
        reaper.send_signal(signal.SIGSTOP)
        name = "a stuck reaper"
        said = "run 'exp7': 1 sandbox, and no reaper watches them"
        fleet.names(name, "sandboxes_unwatched", said, "penstock reap")
        reaper.send_signal(signal.SIGCONT)
        fleet.is_well(name)
        life.registry.close()


def test_a_frozen_monitor(fleet: Fleet) -> None:
    """Another run's, since the module's monitor looks on at its own."""
    fleet.client.sadd("rq:queues", "rq:queue:code")
    with monitor(fleet.url, PENSTOCK_RUN="exp7") as page:
        seen = "penstock:monitor:{exp7}:seen"
        until(lambda: fleet.client.exists(seen) == 1, "its first look")
        [pid] = [httpx.get(f"{page}/healthz").json()["pid"]]
        os.kill(pid, signal.SIGSTOP)
        try:
            said = "the monitor of run 'exp7' has not looked for"
            until(lambda: said in fleet.run("status", "--run", "exp7").stdout, "its silence")
            assert said in fleet.run("top", "--once", "--run", "exp7").stdout
            assert said in fleet.run("doctor", "--json", "--run", "exp7").stdout
            with pytest.raises(httpx.TransportError):
                httpx.get(f"{page}/metrics", timeout=3)
        finally:
            os.kill(pid, signal.SIGCONT)
        until(lambda: said not in fleet.run("status", "--run", "exp7").stdout, "its next look")
    note("a frozen monitor", verdict="monitor_silent", level="warn", seconds=10, well=True,
         page="it says how old its figures are", alert="PenstockMonitorDown, 2m",
         status=True, top=True, doctor=True)  # fmt: skip

"""Many creations, forks and ready sandboxes on two machines, while clients, servers, fork servers
and hubs are killed."""

import asyncio
import contextlib
import json
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from ground.process import aside
from jail.images.settings import ImageSettings
from jail.images.store import ImageStore
from limiter import StartingGate
from tests.harness import doomed, killing
from tests.harness.remains import processes_in
from tests.harness.servers import PrivateRedis
from tests.jail.images.archives import oci
from tests.jail.images.roots import base
from tests.worker.e2b.serving import KEY, E2bServer
from worker.lifecycle.local import LocalProvider
from worker.lifecycle.reaper.reaper import Reaper
from worker.lifecycle.registry.registry import Registry
from worker.lifecycle.settings import LifecycleSettings

CAP = 6
LEASE = 3.0
FORKED = 0.3  # of the sandboxes; nobody ends their children
RUN = "chaos"
IMAGE = "task:1"
QUICK = {"sandbox_lease": LEASE, "sandbox_grace": 1.0, "reap_interval": 0.2}


def creates(urls: list[str], templates: list[str], starts: int, seed: int) -> None:
    """A process: sandboxes that are created, used, forked and mostly killed again."""
    draw = random.Random(seed)
    with httpx.Client(headers={"x-api-key": KEY}, timeout=60) as client:
        done = 0
        while done < starts:
            with contextlib.suppress(httpx.HTTPError):
                asked = {"templateID": draw.choice(templates), "timeout": 900}
                made = client.post(f"{draw.choice(urls)}/sandboxes", json=asked)
                if made.status_code == 201:
                    done += 1
                    doomed.reached("made")
                    name = made.json()["sandboxID"]
                    headers = {"e2b-sandbox-id": name}
                    client.get(f"{draw.choice(urls)}/health", headers=headers)
                    if draw.random() < FORKED:
                        asked = {"count": draw.randint(1, 3), "timeout": 900}
                        client.post(f"{draw.choice(urls)}/sandboxes/{name}/fork", json=asked)
                    if draw.random() < 0.9:  # else it is forgotten
                        client.delete(f"{draw.choice(urls)}/sandboxes/{name}")
                else:
                    assert made.status_code in (502, 503), made.text
                    time.sleep(0.1)


class Eye:
    """How many are starting, looked at again and again: as the registry has it, and as the gate
    does, which knows of those too that are kept ready. And what machines have of processes and
    cgroups meanwhile."""

    def __init__(self, redis: PrivateRedis, folders: list[Path]) -> None:
        self.peak = 0
        self.machines = [Machine(folder) for folder in folders]
        self._registry = Registry(redis.target, RUN)
        self._gate = StartingGate(redis.target, limit=CAP).sync
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        looks = 0
        while not self._over.wait(0.01):
            looks += 1
            states = self._registry.look(0).states
            starting = states.get("CREATING", 0) + states.get("STARTING", 0)
            self.peak = max(self.peak, starting, self._gate.status().in_flight)
            for machine in self.machines if looks % 25 == 0 else ():
                machine.look()

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._registry.close()


def children_of(process: int) -> list[int]:
    with contextlib.suppress(OSError):  # it has ended
        return list(map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split()))
    return []


def fork_servers(folder: Path) -> Iterator[int]:
    for hub in processes_in(folder):
        yield from children_of(hub)


def began(process: int) -> str:
    """When, by which it is told from a later one with its number; empty if it is dead."""
    with contextlib.suppress(OSError):
        state, *rest = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return "" if state in "ZX" else rest[18]
    return ""


class Machine:
    """What one had, and may have left: fork servers with their jails, and cgroups."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._processes: set[tuple[int, str]] = set()
        self._marks: set[Path] = set()

    def look(self) -> None:
        for server in fork_servers(self.folder):
            found = [server, *children_of(server)]
            self._processes |= {(process, began(process)) for process in found}
        for about in self.folder.glob(".hub-*.cgroups"):
            with contextlib.suppress(OSError, ValueError):  # it is being written, or has gone
                self._marks |= set(map(Path, json.loads(about.read_text())))

    def left(self) -> list[object]:
        alive = [one for one, since in self._processes if since and began(one) == since]
        groups = [path for mark in self._marks for path in mark.parent.glob(f"{mark.name}*")]
        notes = [*self.folder.glob("i*"), *self.folder.glob("*.cgroups")]
        return [*processes_in(self.folder), *alive, *groups, *notes]


def storm(
    servers: list[E2bServer], templates: list[str], clients: int, starts: int, kills: int,
    victims: int,
) -> int:  # fmt: skip
    """Until all starts were made, or their processes killed. How many were made."""
    draw, seeds = random.Random(11), iter(range(10_000))
    urls = [server.url for server in servers]
    share = starts // clients
    made = 0

    def client(starts: int) -> killing.Child:
        return killing.Child(creates, urls, templates, starts, next(seeds))

    children = [client(share) for _ in range(clients)]
    try:
        for number in range(kills):
            time.sleep(draw.uniform(0.3, 1.0))  # how often something happens, not a wait for it
            match number % victims:
                case 0:
                    slot = draw.randrange(clients)
                    children[slot].kill()
                    done = len(children[slot].outcome().reports)
                    made += done
                    children[slot].__exit__(None, None, None)
                    children[slot] = client(max(2, share - done))
                case 1:
                    server = draw.choice(servers)
                    port = server.port
                    server.kill()
                    server.start(port)
                case 2 | 3:
                    found = fork_servers if number % victims == 2 else processes_in
                    for process in found(draw.choice(servers).folder):
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(process, signal.SIGKILL)
        for child in children:
            made += len(child.outcome(400).reports)
    finally:
        for child in children:
            child.__exit__(None, None, None)
    return made


async def nothing_left(redis: PrivateRedis, machines: list[Machine], within: float) -> float:
    """Until nothing of all that is left, with a reaper on each machine. How long that took."""
    start = time.monotonic()
    settings = LifecycleSettings.load(**QUICK)
    reapers = [
        Reaper(redis.target, settings=settings, ours=LocalProvider(machine.folder))
        for machine in machines
    ]
    at_work = [asyncio.ensure_future(reaper.work()) for reaper in reapers]
    registry, gate = Registry(redis.target, RUN), StartingGate(redis.target, limit=CAP)

    async def left() -> object:
        return (
            (await aside(lambda: registry.look(0))).count
            or (await gate.status()).in_flight
            or await aside(lambda: [what for machine in machines for what in machine.left()])
        )

    while rest := await left():
        assert time.monotonic() - start < within, rest
        await asyncio.sleep(0.1)
        if not isinstance(rest, int):  # else each look of a reaper would keep a hub awake
            for task in at_work:
                task.cancel()
    for reaper in reapers:
        await reaper.close()
    registry.close()
    return time.monotonic() - start


async def chaos(
    redis: PrivateRedis, folder: Path, layer: bytes | None = None, within: float = 120, **sizes: int
) -> tuple[int, int, float]:
    settings = {
        "PENSTOCK_REDIS_URL": redis.url,
        "PENSTOCK_RUN": RUN,
        "PENSTOCK_MAX_STARTING": str(CAP),
        "PENSTOCK_E2B_WARM": f"base=2,{IMAGE}=2" if layer else "2",
        **{f"PENSTOCK_{name.upper()}": str(value) for name, value in QUICK.items()},
    }
    mounts = len(Path("/proc/self/mountinfo").read_text().splitlines())
    servers = [E2bServer(folder / name, **settings) for name in ("one", "other")]
    for name in ("one", "other") if layer else ():
        store = ImageStore.of(ImageSettings(images=folder / name / "images"), 65534)
        store.add(oci(folder / name / "oci", [layer], name=IMAGE, packed=bytes))
    for server in servers:
        server.start()
    try:
        with Eye(redis, [server.folder for server in servers]) as eye:
            made = storm(servers, ["base", IMAGE] if layer else ["base"], **sizes)
    finally:
        for server in servers:
            server.kill()
    took = await nothing_left(redis, eye.machines, within)
    assert len(Path("/proc/self/mountinfo").read_text().splitlines()) <= mounts
    return made, eye.peak, took


@pytest.mark.timeout(300)
async def test_the_cap_holds_and_nothing_is_left_whatever_is_killed(private_redis, tmp_path):
    redis = private_redis(aof=False)
    _, peak, _ = await chaos(redis, tmp_path, clients=2, starts=24, kills=3, victims=3)
    assert 0 < peak <= CAP


@pytest.mark.soak
@pytest.mark.timeout(1800)
async def test_five_hundred_starts_on_two_machines(private_redis, tmp_path):
    redis = private_redis(aof=False)
    sizes = {"clients": 8, "starts": 504, "kills": 40, "victims": 4}
    made, peak, took = await chaos(redis, tmp_path, base(), within=600, **sizes)
    print(f"made {made}, peak {peak}, empty after {took:.1f} s")
    assert made >= 400
    assert 0 < peak <= CAP

"""The limiter that verl's Sandbox Fusion tool is documented with: one Ray actor for the cluster.

Its `acquire` and `release` are as there. Pairs a second are the better of the two ways to
call it, of threads in `ray.get` as there, and of coroutines that await.
"""

import json
import os
import sys
import tempfile
import threading
import time
from typing import Any

import ray
import workload

CPUS = 64  # actors are placed by it; what runs is for the machine to decide


@ray.remote(concurrency_groups={"acquire": 1, "release": 10})
class TokenBucketWorker:
    def __init__(self, rate_limit: int):
        self.rate_limit = rate_limit
        self.current_count = 0
        self._semaphore = threading.Semaphore(rate_limit)

    @ray.method(concurrency_group="acquire")
    def acquire(self) -> None:
        self._semaphore.acquire()
        self.current_count += 1

    @ray.method(concurrency_group="release")
    def release(self) -> None:
        self._semaphore.release()
        self.current_count -= 1


class RayActor:
    def __init__(self, address: str, name: str, limit: int) -> None:
        self.actor = TokenBucketWorker.options(name=name, get_if_exists=True).remote(limit)

    def acquire(self) -> None:
        ray.get(self.actor.acquire.remote())

    def release(self, held: None) -> None:
        self.actor.release.remote()

    async def pair(self) -> None:
        await self.actor.acquire.remote()
        self.actor.release.remote()


@ray.remote
class Member:
    """Another process of the cluster."""

    def __init__(self, name: str, limit: int):
        self._limiter = RayActor("", name, limit)
        self._limiter.release(self._limiter.acquire())

    def await_turn(self) -> float:
        return workload.await_turn(self._limiter)

    def play_rounds(self) -> None:
        workload.play_rounds(self._limiter)


def fleet() -> workload.Metrics:
    name = workload.new_name()
    members = [Member.remote(name, workload.LIMIT) for _ in range(workload.PROCESSES)]
    ray.get([member.__ray_ready__.remote() for member in members])
    began = time.monotonic()
    ray.get([member.play_rounds.remote() for member in members])
    taken = time.monotonic() - began
    return {"8 x 16 threads, s": taken}


def between_processes(times: int) -> workload.Metrics:
    name = workload.new_name()
    limiter = RayActor("", name, 1)
    member = Member.remote(name, 1)
    ray.get(member.__ray_ready__.remote())
    turns: list[Any] = []
    return workload.hand_overs(
        limiter,
        lambda: turns.append(member.await_turn.remote()),
        lambda: ray.get(turns.pop()),
        times,
    )


def pairs(seconds: float) -> workload.Metrics:
    limiters = workload.new_limiters(RayActor, "")
    awaited = workload.pairs(limiters, seconds)

    def in_threads(threads: int, limit: int) -> float:
        return workload.rate_of_threads(limiters[limit], threads, seconds)

    threaded = {
        "pairs/s, 1 task": in_threads(1, workload.AMPLE),
        "pairs/s, 32 tasks": awaited["pairs/s, 32 threads"],
        "pairs/s, 256 tasks": in_threads(256, workload.AMPLE),
        "pairs/s, 32 tasks at 4 permits": in_threads(32, 4),
        "pairs/s, 256 tasks at 16 permits": in_threads(256, 16),
    }
    return awaited | {metric: max(rate, awaited[metric]) for metric, rate in threaded.items()}


def main() -> None:
    _, seconds, hand_overs, *_ = sys.argv[1:]
    os.environ["PYTHONPATH"] = os.path.dirname(__file__)  # where the actors find `workload`
    # Nobody but us comes near this cluster: no token, which would be written to the home.
    os.environ["RAY_AUTH_MODE"] = "disabled"
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        ray.init(
            num_cpus=CPUS, include_dashboard=False, log_to_driver=False,
            _node_ip_address="127.0.0.1", _temp_dir=folder,
        )  # fmt: skip
        metrics = fleet() | between_processes(int(hand_overs)) | pairs(float(seconds))
        ray.shutdown()
    print(json.dumps(metrics))


if __name__ == "__main__":
    main()

"""The demo's worker processes: RQ workers of ours, started, killed and replaced.

Run as `python -m penstock.demo.crew QUEUE NAME`, with the Redis in PENSTOCK_REDIS_URL;
it ends when its stdin closes, so that no worker outlives the demo, however that ends.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import redis
from rq.serializers import JSONSerializer

from ground import PenstockError, connect, tagged
from ground.redis_url import SETTING
from limiter import Gate

AT_ONCE = 4
LEASE = 2.0
_BEGUN_US = 75_000


class DemoFailed(PenstockError):
    """The demo did not come to its end."""


class Crew:
    """The worker processes of one queue, whose jobs pass one gate."""

    def __init__(self, url: str, queue: str, gate: Gate, logs: Path) -> None:
        self._url = url
        self._queue = queue
        self._gate = gate
        self._logs = logs
        self._client: Any = connect(url)
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def hire(self, name: str) -> None:
        """Start one worker."""
        with (self._logs / f"{name}.log").open("wb") as log:
            self.running[name] = subprocess.Popen(  # noqa: S603
                [sys.executable, "-m", __name__, self._queue, f"{self._queue}-{name}"],
                env={"PENSTOCK_SANDBOX": "local"} | os.environ | {SETTING: self._url},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the demo, which then ends us in order
            )

    def kill_one_at_work(self) -> tuple[str, str, int] | None:
        """End a worker with SIGKILL in the middle of a job: its name, a job's id, how it ended."""
        for name, process in self.running.items():
            # Frozen first, then looked at: what we see is what it dies with.
            process.send_signal(signal.SIGSTOP)
            if job := self._job_in_hand(name):
                process.kill()
                ended = process.wait()
                del self.running[name]
                return name, job, ended
            process.send_signal(signal.SIGCONT)
        return None

    def ready(self) -> bool:
        """Whether all that were started wait for jobs."""
        key = tagged("work", self._queue, "workers")
        return bool(self._client.zcard(key) == len(self.running))

    def ledger(self) -> dict[str, int]:
        """What the queue's scripts have counted: claimed, finished, requeued, …"""
        flat = self._client.hgetall(tagged("work", self._queue))
        return {name.decode(): int(value) for name, value in flat.items()}

    def waiting(self) -> int:
        return int(self._client.llen(f"rq:queue:{self._queue}"))

    def check(self) -> None:
        """Raise `DemoFailed` if a worker ended that nobody ended."""
        for name, process in self.running.items():
            if process.poll() is not None:
                words = self._last_words(name)
                raise DemoFailed(f"worker {name} ended by itself ({process.returncode}); {words}")

    def dismiss(self) -> None:
        """End them all, and wait until they are gone."""
        for process in self.running.values():
            process.kill()
        for process in self.running.values():
            process.wait()
        self.running.clear()
        self._client.close()

    def _job_in_hand(self, name: str) -> str:
        """A job that this worker is in the middle of: leased, and holding a permit."""
        worker = f"{self._queue}-{name}"
        permits = {lease.id for lease in self._gate.sync.status().leases
                   if lease.process == worker}  # fmt: skip
        seconds, micros = self._client.time()
        for member in self._client.smembers(f"rq:worker:{worker}:executions"):
            job, _, claimed = member.decode().partition(":")  # numbered by the moment of the claim
            if member.decode() in permits and seconds * 10**6 + micros - int(claimed) > _BEGUN_US:
                return str(job)
        return ""

    def _last_words(self, name: str) -> str:
        lines = (self._logs / f"{name}.log").read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"


def work(queue: str, name: str) -> None:
    from worker import ConcurrentWorker, WorkerSettings

    client = connect(os.environ[SETTING])
    assert isinstance(client, redis.Redis)  # noqa: S101 - the demo refuses a cluster at its door
    threading.Thread(target=_end_with_the_demo, daemon=True).start()
    settings = WorkerSettings.load(
        gate=queue, gate_limit=AT_ONCE, job_lease=LEASE, concurrency=AT_ONCE
    )  # fmt: skip
    worker = ConcurrentWorker(
        [queue], name=name, connection=client, serializer=JSONSerializer, settings=settings
    )
    worker.work(logging_level="WARNING")


def _end_with_the_demo() -> None:
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)  # so that its sandbox ends in order
    time.sleep(10)
    os._exit(0)


if __name__ == "__main__":
    work(*sys.argv[1:])

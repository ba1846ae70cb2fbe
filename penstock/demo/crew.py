"""The demo's worker processes: stock RQ workers, started, killed and replaced.

Run as `python -m penstock.demo.crew QUEUE NAME`, with the Redis in
PENSTOCK_REDIS_URL; it ends when its stdin closes, so that no worker outlives
the demo, however that ends.
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
from rq import Queue, SimpleWorker
from rq.job import Job
from rq.serializers import JSONSerializer

from ground import PenstockError, connect
from ground.redis_url import SETTING
from limiter.gate import Gate

LEASE = 4


class DemoFailed(PenstockError):
    """The demo did not come to its end."""


class _Worker(SimpleWorker):
    def get_heartbeat_ttl(self, job: Job, working_time: float = 0.0) -> int:
        # Stock RQ waits a minute or more before it takes a dead worker's job for lost.
        return LEASE


class Crew:
    """The worker processes of one queue, whose jobs pass one gate."""

    def __init__(self, url: str, queue: Queue, gate: Gate, logs: Path) -> None:
        self._url = url
        self._queue = queue
        self._gate = gate
        self._logs = logs
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def hire(self, name: str) -> None:
        """Start one worker."""
        worker = f"{self._queue.name}-{name}"
        with (self._logs / f"{name}.log").open("wb") as log:
            self.running[name] = subprocess.Popen(  # noqa: S603
                [sys.executable, "-m", __name__, self._queue.name, worker],
                env=os.environ | {SETTING: self._url},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the demo, which then ends us in order
            )

    def kill_one_at_work(self, *, within: float = 30.0) -> tuple[str, str]:
        """End a worker with SIGKILL in the middle of a job; returns its name and the job's id."""
        deadline = time.monotonic() + within
        while time.monotonic() < deadline:
            for name, process in self.running.items():
                # Frozen first, then looked at: what we see is what it dies with.
                process.send_signal(signal.SIGSTOP)
                if job := self._job_in_hand(name):
                    process.kill()
                    process.wait()
                    del self.running[name]
                    return name, job
                process.send_signal(signal.SIGCONT)
            self.check()
        raise DemoFailed(f"no worker was seen with a job and a permit within {within:.0f} s")

    def ready(self) -> bool:
        """Whether all that were started wait for jobs."""
        client: Any = self._queue.connection
        return bool(client.scard(f"rq:workers:{self._queue.name}") == len(self.running))

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

    def _job_in_hand(self, name: str) -> str:
        """The job that this worker is in the middle of: leased, and holding a permit."""
        client: Any = self._queue.connection
        holding = {permit.id for permit in self._gate.sync.status().leases}
        for execution in client.zrange(f"rq:wip:{self._queue.name}", 0, -1):
            job = self._queue.fetch_job(execution.decode().partition(":")[0])
            mine = job is not None and job.worker_name == f"{self._queue.name}-{name}"
            if job is not None and mine and job.meta.get("permit") in holding:
                return job.id
        return ""

    def _last_words(self, name: str) -> str:
        lines = (self._logs / f"{name}.log").read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"


def work(queue_name: str, name: str) -> None:
    client = connect(os.environ[SETTING], timeout=None)
    assert isinstance(client, redis.Redis)  # noqa: S101 - the demo refuses a cluster at its door
    threading.Thread(target=_end_with_the_demo, daemon=True).start()
    queue = Queue(queue_name, connection=client, serializer=JSONSerializer)
    _Worker([queue], name=name, connection=client, serializer=JSONSerializer).work(
        logging_level="WARNING"
    )


def _end_with_the_demo() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    work(*sys.argv[1:])

"""The demo's worker processes: Penstock's RQ workers, started, killed and replaced.

Run as `python -m penstock.demo.crew QUEUE NAME`, with the Redis in PENSTOCK_REDIS_URL.
It ends when its stdin closes, so that no worker outlives the demo, however that ends.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
from rq.serializers import JSONSerializer

from ground import connect
from ground.keys import tagged
from ground.redis.url import SETTING
from limiter import Gate
from penstock.demo.record import DemoFailed
from penstock.interrupts import Loading

AT_ONCE = 4
LEASE = 2.0
_UNFIT = 69  # how a worker ends whose sandbox cannot work here
_BEGUN_US = 800_000


@dataclass(frozen=True)
class Accident:
    """An accident: which worker was killed, how it ended, when, and how many jobs had come back by
    then."""

    victim: str
    ended: int
    at: float
    requeued_before: int


class Crew:
    """The worker processes of one queue, whose jobs pass one gate."""

    def __init__(self, url: str, queue: str, gate: Gate, folder: Path) -> None:
        self._url = url
        self._queue = queue
        self._gate = gate
        self._folder = folder
        self._client: Any = connect(url)
        self.most_permits = 0
        """In flight at once, as often as it was looked at."""
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def hire(self, name: str) -> None:
        """Start one worker."""
        # A worker that is killed removes nothing: so its temporary files are in the demo's folder.
        temporary = _for_every_user(self._folder)
        with (self._folder / f"{name}.log").open("wb") as log:
            self.running[name] = subprocess.Popen(  # noqa: S603
                [sys.executable, "-P", "-m", __name__, self._queue, f"{self._queue}-{name}"],
                env={"PENSTOCK_SANDBOX": "local"}
                | os.environ
                | {SETTING: self._url, "TMPDIR": str(temporary)},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the demo, which then ends us in order
            )

    def kill_in_the_middle_of(self, job: str) -> Accident | None:
        """Wait for a worker to run this job, and end it with SIGKILL."""
        while self.running and not self._is_over(job):
            for name, process in list(self.running.items()):
                if not self._runs(name, job):
                    continue
                # Frozen, then looked at again: what we see is what it dies with.
                process.send_signal(signal.SIGSTOP)
                if self._runs(name, job):
                    self.running.pop(name, None)  # first: `check` does not expect its end
                    before = self.ledger().get("requeued", 0)
                    process.kill()
                    return Accident(name, process.wait(), time.monotonic(), before)
                process.send_signal(signal.SIGCONT)
            time.sleep(0.02)
        return None

    def ready(self) -> bool:
        """Whether all that were started wait for jobs."""
        key = tagged("work", self._queue, "workers")
        return bool(self._client.zcard(key) == len(self.running))

    def ledger(self) -> dict[str, int]:
        """The counts of the queue's scripts: claimed, finished, requeued, …"""
        flat = self._client.hgetall(tagged("work", self._queue))
        return {name.decode(): int(value) for name, value in flat.items()}

    def waiting(self) -> int:
        return int(self._client.llen(f"rq:queue:{self._queue}"))

    def check(self) -> None:
        """Raise `DemoFailed` if a worker ended that nobody ended."""
        for name, process in list(self.running.items()):
            if process.poll() is not None:
                words = self._last_words(name)
                if process.returncode == _UNFIT:
                    raise DemoFailed(
                        f"no sandbox could run a program here ({words}); "
                        "`penstock doctor` says what to do"
                    )
                raise DemoFailed(f"worker {name} ended by itself ({process.returncode}); {words}")

    def dismiss(self) -> None:
        """End them all, and wait until they are gone."""
        ending, self.running = self.running, {}  # another thread may be about to strike
        for process in ending.values():
            process.kill()
        for process in ending.values():
            process.wait()
        self._client.close()

    def _runs(self, name: str, wanted: str) -> bool:
        """Whether this worker is in the middle of the job: leased, and holding a permit."""
        worker = f"{self._queue}-{name}"
        gate = self._gate.sync.status()
        self.most_permits = max(self.most_permits, gate.in_flight)
        permits = {lease.id for lease in gate.leases if lease.process == worker}
        seconds, micros = self._client.time()
        for member in self._client.smembers(f"rq:worker:{worker}:executions"):
            job, _, claimed = member.decode().partition(":")  # numbered by the moment of the claim
            if job == wanted and member.decode() in permits:
                return bool(seconds * 10**6 + micros - int(claimed) > _BEGUN_US)
        return False

    def _is_over(self, job: str) -> bool:
        return self._client.hget(f"rq:job:{job}", "status") in (b"finished", b"failed")

    def _last_words(self, name: str) -> str:
        lines = (self._folder / f"{name}.log").read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it printed nothing"


def _for_every_user(folder: Path) -> Path:
    """A folder in it as /tmp is one: the sandbox of root's worker runs as another user."""
    folder.chmod(0o711)
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    temporary.chmod(0o1777)
    return temporary


def work(queue: str, name: str) -> None:
    with Loading():
        from worker import ConcurrentWorker, SandboxUnfit, WorkerSettings

    client = connect(os.environ[SETTING])
    assert isinstance(client, redis.Redis)  # noqa: S101 - the demo refuses a cluster at its door
    threading.Thread(target=_end_with_the_demo, daemon=True).start()
    settings = WorkerSettings.load(
        gate=queue, gate_limit=AT_ONCE, job_lease=LEASE, concurrency=AT_ONCE, allow=""
    )  # fmt: skip
    worker = ConcurrentWorker(
        [queue], name=name, connection=client, serializer=JSONSerializer, settings=settings
    )
    try:
        worker.work(logging_level="WARNING")
    except SandboxUnfit as unfit:
        sys.stderr.write(f"{unfit}\n")
        sys.stderr.flush()
        os._exit(_UNFIT)  # a thread reads stdin, with which Python would abort


def _end_with_the_demo() -> None:
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)  # so that its sandbox ends in order
    time.sleep(10)
    os._exit(0)


if __name__ == "__main__":
    work(*sys.argv[1:])

"""A queue with shares, without clients or workers: the test enqueues, claims and gives back."""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from rq import Queue
from rq.serializers import JSONSerializer

from ground.lua import fields_of
from jail.models import CodeRequest
from worker.concurrent.commands import SCRIPTS as WORK
from worker.concurrent.commands import WorkCommands, read_claim
from worker.queue.order import SCRIPTS, JobHash, Order, withdraw
from worker.queue.shares import Charge, QueueShares

_HASH = JobHash(
    "code", result_ttl=60, failure_ttl=60, retries=0, abandon=False, spare=0.0,
    patience=60.0, no_workers_after=60.0,
)  # fmt: skip


class SharesAlone:
    def __init__(self, client: Any, target: Any) -> None:
        self.client = client
        self.of_jobs: dict[str, str] = {}
        self._shares = QueueShares(target, "code")
        self.read = self._shares.read
        self._work = WorkCommands("code", "me", 3000.0, None)
        client.zadd("penstock:work:{code}:workers", {"me": 9e15})  # a worker of ours lives
        client.sadd("rq:workers:code", "rq:worker:me")
        for script in (*SCRIPTS.values(), *WORK.values()):
            client.script_load(script.source)

    def weigh(self, weights: Mapping[str, float | None], by: Charge | None = None) -> None:
        self._shares.set_weights(weights, by)

    def enqueue(self, share: str, jobs: int = 1) -> list[Order]:
        orders = []
        for _ in range(jobs):
            id = f"{share or 'none'}_{len(self.of_jobs)}"
            self.of_jobs[id] = share
            order = Order(None, _HASH, id, CodeRequest(code=""), 0.0, math.inf, share)  # type: ignore[arg-type]
            orders.append(order)
        for at in range(0, jobs, 200):
            self._do(_HASH.enqueue("me", "", orders[at : at + 200]))
        return orders

    def claim(self, want: int = 1) -> list[str]:
        """The ids that were claimed."""
        jobs = read_claim(self._do(self._work.claim(want)), sent=0.0).jobs
        self.held = [(id, execution, 0) for id, execution, _ in jobs]
        return [id.decode() for id, *_ in jobs]

    def claimed_by_share(self, jobs: int, at_once: int = 1) -> Counter[str]:
        ids = [id for _ in range(jobs // at_once) for id in self.claim(at_once)]
        return Counter(self.of_jobs[id] for id in ids)

    def give_back(self) -> None:
        """What was claimed last."""
        self._do(self._work.give_back(self.held, leaving=False))

    def run_again(self) -> None:
        """What was claimed last has failed, and RQ enqueues it for another try."""
        queue = Queue("code", connection=self.client, serializer=JSONSerializer)
        for id, execution, _ in self.held:
            row = (id, execution, "", "", "", "1", "", 0)
            self._do(self._work.drop(row))
            queue._enqueue_job(queue.fetch_job(id.decode()))

    def stop(self, seconds: float) -> None:
        """What was claimed last has run for so long, and was cancelled."""
        for id, execution, _ in self.held:
            row = (id, execution, "", "stopped", "", self._ago(seconds), "", 0)
            self._do(self._work.drop(row))

    def _ago(self, seconds: float) -> str:
        now, micros = self.client.time()
        return f"{now + micros / 1e6 - seconds:.6f}"

    def finish(self, seconds: float) -> None:
        """What was claimed last has run for so long."""
        started = self._ago(seconds)
        rows = [
            (id, execution, "1", 60, "1", started, "", "1", 0) for id, execution, _ in self.held
        ]
        self._do(self._work.finish(rows))

    def reap(self) -> None:
        """As a worker's heartbeat does."""
        self._do(self._work.reap(3))

    def withdraw(self, orders: list[Order]) -> None:
        self._do(withdraw(_HASH, "me", [(order, "cancel") for order in orders]))

    def listed(self) -> dict[str, list[str]]:
        """As RQ's commands see the queues: each with the ids that wait there."""
        queues = sorted(key.decode() for key in self.client.smembers("rq:queues"))
        return {
            key.removeprefix("rq:queue:"): [id.decode() for id in self.client.lrange(key, 0, -1)]
            for key in queues
        }

    def waiting(self) -> int:
        return sum(map(len, self.listed().values()))

    def share_of(self, id: str) -> str:
        fields = fields_of(self.client.hgetall(f"rq:job:{id}"))
        return fields.get(b"penstock_share", b"").decode()

    def _do(self, command: Any) -> Any:
        return self.client.execute_command(*command)

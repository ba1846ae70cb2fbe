"""A worker's own /livez, /healthz and /metrics, on a thread of their own."""

import asyncio
import threading
from typing import TYPE_CHECKING, Any

from prometheus_client import Metric
from pydantic import SecretStr

from ground import RedisUnavailable
from ground.http import HttpGuard, Sheet, listen, require_token, serve_until_stopped
from ground.http.guard import Receive, Scope, Send
from ground.redis.connect import UNWELL

if TYPE_CHECKING:
    from worker import ConcurrentWorker

_TURNS_WITHIN = 5.0  # seconds; the loop of a worker turns hundreds of times in one


def open_door(
    worker: "ConcurrentWorker", host: str, port: int, token: SecretStr | None
) -> tuple[str, int]:
    """Serve until the process ends; says where."""

    async def alive() -> None:
        """Ask the worker's own event loop. This thread would answer even if the worker were
        stuck."""
        if (shift := worker._shift) is None:
            return
        turned = asyncio.Event()
        shift.call(asyncio.get_running_loop().call_soon_threadsafe, turned.set)
        try:
            await asyncio.wait_for(turned.wait(), _TURNS_WITHIN)
        except TimeoutError:
            raise TimeoutError(f"the loop of worker {worker.name} does not turn") from None

    async def health() -> dict[str, Any]:
        state: Any = worker.connection.hget(worker.key, "state")
        if state is None:
            raise RedisUnavailable(f"worker {worker.name} is not known to Redis")
        return {"worker": worker.name, "state": state.decode()}

    async def figures() -> list[Metric]:
        shift, sheet = worker._shift, Sheet("worker")
        sheet.gauge("penstock_worker_running", "Jobs that this worker runs now.",
                    len(shift.jobs) if shift else 0, worker.name)  # fmt: skip
        sheet.count("penstock_worker_started_total", "Jobs that this worker has started.",
                    shift.started if shift else 0, worker.name)  # fmt: skip
        return sheet.families()

    require_token(host, token, "PENSTOCK_METRICS_TOKEN")
    listener = listen(host, port, "--metrics-port")
    guard = HttpGuard(
        _nothing, alive=alive, health=health, figures=figures, token=token, host=host, unwell=UNWELL
    )
    threading.Thread(
        target=serve_until_stopped, args=(listener, guard), name="penstock-door", daemon=True
    ).start()
    address: tuple[str, int] = listener.getsockname()[:2]
    return address


async def _nothing(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer any other path: there is nothing else behind the door."""
    if scope["type"] == "lifespan":
        while True:
            phase = (await receive())["type"]
            await send({"type": f"{phase}.complete"})
            if phase == "lifespan.shutdown":
                return
    await send({"type": "http.response.start", "status": 404, "headers": []})
    await send({"type": "http.response.body", "body": b""})

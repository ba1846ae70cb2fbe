"""Which services `penstock up` runs, and where they find each other."""

import asyncio
import contextlib
import os
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from buffer import BufferSettings
from ground import GroundSettings, connect, tagged
from ground.redis_url import SETTING
from penstock.settings import MonitorSettings
from penstock.up.redis import Redis
from penstock.up.service import Service, own_environment
from worker.settings import WorkerSettings

GATE = "code"


@dataclass(frozen=True)
class Plan:
    """What was asked for."""

    workers: int
    permits: int
    queue: str = "code"


class Home:
    """The folder that `up` keeps its state in: logs, the monitor's token, where things are."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.logs = folder / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)

    def log(self, name: str) -> Path:
        file = self.logs / f"{name}.log"
        file.write_bytes(b"")
        return file

    def monitor_token(self) -> Path:
        """A file with a token of our own, the same over restarts."""
        file = self.folder / "monitor-token"
        if not file.exists() or not file.read_text().strip():
            file.touch(mode=0o600)
            file.write_text(secrets.token_urlsafe(24) + "\n")
        return file.resolve()


def services(
    plan: Plan, settings: GroundSettings, redis: Redis, home: Home, say: Callable[[str], None]
) -> list[Service]:
    """In the order of their start."""
    worker, buffer, monitor = WorkerSettings.load(), BufferSettings.load(), MonitorSettings.load()
    common = ["--run", settings.run, "--log-format", settings.log_format]
    found: list[Service] = []
    sandbox_url = worker.sandbox_fusion_url
    if not sandbox_url and worker.sandbox == "fusion":
        port = _free_port()
        sandbox_url = f"http://127.0.0.1:{port}"
        arguments = ["sandbox", "serve", "--port", str(port)]
        found.append(
            Service("sandbox", arguments, _without_redis, home.log("sandbox"), say, sandbox_url)
        )

    def at_work() -> dict[str, str]:
        chosen = {"PENSTOCK_SANDBOX_FUSION_URL": sandbox_url, "PENSTOCK_GATE": GATE,
                  "PENSTOCK_GATE_LIMIT": str(plan.permits)}  # fmt: skip
        return with_redis() | {name: os.environ.get(name) or chosen[name] for name in chosen}

    def with_redis() -> dict[str, str]:
        return own_environment() | {SETTING: redis.url}

    def watching() -> dict[str, str]:
        given = {} if monitor.monitor_token else {
            "PENSTOCK_MONITOR_TOKEN_FILE": str(home.monitor_token())
        }  # fmt: skip
        return with_redis() | given

    def beats(name: str) -> bool:
        client = connect(redis.url)
        with contextlib.closing(client):
            return client.zscore(tagged("work", plan.queue, "workers"), name) is not None

    async def listens(name: str) -> bool:
        return await asyncio.to_thread(beats, name)

    for number in range(1, plan.workers + 1):
        name = f"worker-{number}"
        arguments = [*common, "worker", plan.queue, "--with-scheduler"]
        found.append(Service(name, arguments, at_work, home.log(name), say, listens=listens))
    for name, arguments, env, url in (
        ("buffer", ["buffer", "serve"], with_redis, _url(buffer.buffer_host, buffer.buffer_port)),
        ("monitor", ["monitor"], watching, _url(monitor.monitor_host, monitor.monitor_port)),
    ):
        found.append(Service(name, [*common, *arguments], env, home.log(name), say, url))
    return found


def monitor_address(home: Home, service: Service) -> str:
    """What to open in a browser. The token stands behind the #: it is sent to no server."""
    if MonitorSettings.load().monitor_token:
        return service.url
    return f"{service.url}/#token={home.monitor_token().read_text().strip()}"


def _without_redis() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(SETTING)}


def _url(host: str, port: int) -> str:
    reached = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
    return f"http://[{reached}]:{port}" if ":" in reached else f"http://{reached}:{port}"


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])

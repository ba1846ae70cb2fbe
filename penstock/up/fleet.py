"""The fleet of `penstock up`: which services it runs, and where they find each other."""

import asyncio
import contextlib
import os
import secrets
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from pydantic import SecretStr

from buffer.settings import BufferSettings
from gateway.settings import GatewaySettings
from ground import SettingError, connect
from ground.keys import tagged
from ground.redis.url import SETTING
from ground.server.server import make_private
from ground.settings import GroundSettings
from penstock.settings import MonitorSettings
from penstock.up.redis import Redis
from penstock.up.service import Service
from worker.settings import WorkerSettings

GATE = "code"
LARGEST_LOG = 16 * 1024**2


@dataclass(frozen=True)
class Plan:
    """The plan: what was asked for."""

    workers: int
    gate_limit: int
    queue: str = "code"


class Home:
    """The folder that `up` keeps its state in: logs, the services' tokens, where things are."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.logs = folder / "logs"
        try:
            make_private(folder)
            self.logs.mkdir(exist_ok=True)
            (folder / "up.lock").touch()
        except OSError as refusal:
            raise SettingError(
                "PENSTOCK_DATA_DIR",
                f"{folder} cannot hold the state of `penstock up`: {refusal.strerror}; "
                "name a folder that you may write to",
            ) from None

    def log(self, name: str) -> Path:
        """Grows over many an `up`; one that is large is put aside, and the one before it lost."""
        file = self.logs / f"{name}.log"
        if file.exists() and file.stat().st_size > LARGEST_LOG:
            file.replace(self.logs / f"{name}.log.before")
        return file

    def token(self, service: str) -> Path:
        """A file with a token of our own, the same over restarts."""
        file = self._secret(f"{service}-token")
        if not file.read_text().strip():
            file.write_text(secrets.token_urlsafe(24) + "\n")
        return file.resolve()

    def token_for(self, service: str, given: SecretStr | None) -> dict[str, str]:
        """The environment with a service's token, for it and those who ask it: the user's, which is
        there, or the file of our own."""
        return {} if given else {f"PENSTOCK_{service.upper()}_TOKEN_FILE": str(self.token(service))}

    def note_url(self, service: str, url: str, given: SecretStr | None) -> None:
        """Write a file with the address and the token in it, for clients that take only a URL."""
        token = given.get_secret_value() if given else self.token(service).read_text().strip()
        shown = url.replace("//", f"//any:{quote(token, safe='')}@", 1)
        self._secret(f"{service}-url").write_text(shown + "\n")

    def _secret(self, name: str) -> Path:
        file = self.folder / name
        file.touch(mode=0o600)
        file.chmod(0o600)
        return file


class Services:
    """The plan's services are made here. What Redis's URL is, each learns at each of its starts."""

    def __init__(
        self,
        plan: Plan,
        settings: GroundSettings,
        redis: Redis,
        home: Home,
        say: Callable[[str], None],
        changed: Callable[[Service], None],
    ) -> None:
        self._plan = plan
        self._redis = redis
        self._home = home
        self._say = say
        self._changed = changed
        self._common = ["--run", settings.run, "--log-format", settings.log_format]

    def in_order(self) -> list[Service]:
        """The services in the order of their start."""
        worker = WorkerSettings.load()
        sandboxes, reached = [], {"PENSTOCK_SANDBOX_FUSION_URL": worker.sandbox_fusion_url}
        if worker.sandbox == "fusion" and not worker.sandbox_fusion_url:
            token = self._home.token_for("sandbox", worker.sandbox_token)
            sandboxes.append(self._sandbox(_free_port(), token))
            reached = {"PENSTOCK_SANDBOX_FUSION_URL": sandboxes[0].url, **token}
        workers = [self._worker(number, reached) for number in range(1, self._plan.workers + 1)]
        gateways = [self._gateway()] if GatewaySettings.load().gateway_engines else []
        return [*sandboxes, *workers, self._buffer(), *gateways, self._monitor()]

    def _sandbox(self, port: int, token: dict[str, str]) -> Service:
        arguments, url = ["sandbox", "serve", "--port", str(port)], f"http://127.0.0.1:{port}"
        return self._service("sandbox", arguments, _without_redis() | token, url=url)

    def _worker(self, number: int, sandbox: dict[str, str]) -> Service:
        chosen = {**sandbox, "PENSTOCK_GATE": GATE}
        named = {name: os.environ.get(name) or value for name, value in chosen.items()}
        limit = {"PENSTOCK_GATE_LIMIT": str(self._plan.gate_limit)}
        env = self._with_redis() | named | limit
        arguments = [*self._common, "worker", self._plan.queue, "--with-scheduler"]
        return self._service(f"worker-{number}", arguments, env, listens=self._listens)

    def _buffer(self) -> Service:
        settings = BufferSettings.load()
        port = settings.buffer_port or _free_port()
        url = _url(settings.buffer_host, port)
        arguments = [*self._common, "buffer", "serve", "--port", str(port)]
        token = self._home.token_for("buffer", settings.buffer_token)
        self._home.note_url("buffer", url, settings.buffer_token)
        return self._service("buffer", arguments, self._with_redis() | token, url=url)

    def _gateway(self) -> Service:
        """The gateway, if engines are named. It is up when they are."""
        settings = GatewaySettings.load()
        port = settings.gateway_port or _free_port()
        url = _url(settings.gateway_host, port)
        arguments = [*self._common, "gateway", "serve", "--port", str(port)]
        token = self._home.token_for("gateway", settings.gateway_token)
        self._home.note_url("gateway", url, settings.gateway_token)
        return self._service("gateway", arguments, self._with_redis() | token, url=url)

    def _monitor(self) -> Service:
        settings = MonitorSettings.load()
        token = self._home.token_for("monitor", settings.monitor_token)
        port = settings.monitor_port or _free_port()
        url = _url(settings.monitor_host, port)
        arguments = [*self._common, "monitor", "--port", str(port)]
        return self._service("monitor", arguments, self._with_redis() | token, url=url)

    def _service(
        self,
        name: str,
        arguments: list[str],
        env: dict[str, str],
        *,
        url: str = "",
        listens: Callable[[str], Awaitable[bool]] | None = None,
    ) -> Service:
        log = self._home.log(name)
        return Service(name, arguments, env, log, self._say, url, listens, self._changed)

    def _with_redis(self) -> dict[str, str]:
        return _without_redis() | {SETTING: self._redis.url}

    async def _listens(self, worker: str) -> bool:
        return await asyncio.to_thread(self._beats, worker)

    def _beats(self, worker: str) -> bool:
        with contextlib.closing(connect(self._redis.url)) as client:
            beats = tagged("work", self._plan.queue, "workers")
            return client.zscore(beats, worker) is not None


def monitor_address(home: Home, service: Service) -> str:
    """The address to open in a browser. The token stands behind the #: it is sent to no server."""
    if MonitorSettings.load().monitor_token:
        return service.url
    return f"{service.url}/#token={home.token('monitor').read_text().strip()}"


def _without_redis() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(SETTING)}


def _url(host: str, port: int) -> str:
    reached = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
    return f"http://[{reached}]:{port}" if ":" in reached else f"http://{reached}:{port}"


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])

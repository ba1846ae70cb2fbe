"""Every HTTP service: on loopback unless told otherwise, and shut to all without its token."""

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

import ground
from penstock.commands import worker_door
from tests.architecture.source import PACKAGES
from tests.gateway.scripted.engine import Served
from tests.gateway.scripted.vllm import ScriptedVllm
from tests.harness import commands, fuzzing, patient
from tests.harness.servers import PrivateRedis, free_port, until


@dataclass(frozen=True)
class Service:
    """How it is started on a port, which variable has its token, and what it serves."""

    command: tuple[str, ...]
    token: str
    port: str = ""
    paths: tuple[tuple[str, str], ...] = ()


SERVICES = {
    "buffer serve": Service(
        ("buffer", "serve"), "PENSTOCK_BUFFER_TOKEN", "PENSTOCK_BUFFER_PORT",
        (("POST", "/buffer/write"), ("POST", "/get_rollout_data"), ("GET", "/openapi.json"),
         ("GET", "/v1/stats"), ("POST", "/start_rollout")),
    ),
    "gateway serve": Service(
        ("gateway", "serve", "--engines", "vllm={engine}"), "PENSTOCK_GATEWAY_TOKEN",
        "PENSTOCK_GATEWAY_PORT",
        (("POST", "/tasks/math/sessions"), ("GET", "/tasks/math/sessions"),
         ("GET", "/openapi.json"), ("POST", "/tasks/math/sessions/x/finalize")),
    ),
    "monitor": Service(
        ("monitor",), "PENSTOCK_MONITOR_TOKEN", "PENSTOCK_MONITOR_PORT",
        (("GET", "/"), ("GET", "/api/fleet"), ("GET", "/api/events"), ("POST", "/api/gates/code"),
         ("POST", "/api/jobs/x/requeue")),
    ),
    "sandbox serve": Service(
        ("sandbox", "serve", "--port", "{port}"), "PENSTOCK_SANDBOX_TOKEN", "",
        (("POST", "/run_code"), ("POST", "/run_jupyter"), ("GET", "/v1/ping")),
    ),
    "worker": Service(
        ("worker", "--sandbox", "local", "--metrics-port", "{port}"), "PENSTOCK_METRICS_TOKEN",
    ),
}  # fmt: skip


ENGINE = Served(ScriptedVllm())


@pytest.fixture(scope="module", autouse=True)
def engine() -> Iterator[None]:
    """What a gateway stands in front of."""
    with ENGINE:
        yield


@contextmanager
def served(service: Service, redis_url: str, **environment: str) -> Iterator[tuple[str, int]]:
    """Its address, and its process."""
    port = str(free_port())
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
    env = clean | {"PENSTOCK_REDIS_URL": redis_url} | environment
    words = [word.format(port=port, engine=ENGINE.url) for word in service.command]
    process = commands.start(
        words, env=env | ({service.port: port} if service.port else {}), stdout=subprocess.DEVNULL
    )
    url = f"http://127.0.0.1:{port}"

    def well() -> bool:
        assert process.poll() is None, "it did not start"
        try:
            return httpx.get(f"{url}/healthz", timeout=10).status_code == 200
        except httpx.TransportError:
            return False

    try:
        until(well, url, within=100)
        yield url, process.pid
    finally:
        process.terminate()
        process.wait(100)


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_shut_to_all_without_its_token_and_listens_on_loopback(
    name: str, shared_server: PrivateRedis, real_redis: ground.Client
) -> None:
    service = SERVICES[name]
    with served(service, shared_server.url, **{service.token: "right"}) as (url, pid):
        assert listens_on(pid) == {"127.0.0.1"}
        wrong = ("Bearer wrong", "Bearer", "Bearer rightx", "right", "Basic right")
        with httpx.Client(base_url=url, timeout=150) as client:
            for method, path in (*service.paths, ("GET", "/metrics"), ("GET", "/no/such/path")):
                for said in (None, *wrong):
                    headers = {} if said is None else {"Authorization": said}
                    answer = client.request(method, path, headers=headers)
                    assert answer.status_code == 401, f"{method} {path} with {said!r}"
                    assert answer.headers["www-authenticate"].startswith("Bearer")
            told = client.get("/metrics", headers={"Authorization": "Bearer right"})
            assert told.status_code == 200
            assert "process_cpu_seconds_total" in told.text
            assert client.get("/healthz").status_code == 200
            assert client.get("/livez").json() == {"status": "alive", "pid": pid}


@pytest.mark.parametrize("name", [name for name in SERVICES if name != "sandbox serve"])
def test_a_service_without_its_redis_is_alive_and_not_ready(
    name: str, private_redis: Callable[..., PrivateRedis]
) -> None:
    redis = private_redis(aof=True)
    with served(SERVICES[name], redis.url) as (url, _):
        redis.stop()
        until(lambda: patient.get(f"{url}/healthz").status_code == 503, "it notices", within=100)
        assert patient.get(f"{url}/livez").status_code == 200
        redis.start()
        until(lambda: patient.get(f"{url}/healthz").status_code == 200, "it is back", within=100)


@pytest.mark.parametrize("turns", [True, False])
def test_a_worker_is_alive_only_while_its_loop_turns(
    turns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_door, "_TURNS_WITHIN", 100 if turns else 0.1)

    def call(function: Callable[..., object], *args: object) -> None:
        if turns:
            function(*args)

    stuck: Any = SimpleNamespace(name="w1", _shift=SimpleNamespace(call=call))
    host, port = worker_door.open_door(stuck, "127.0.0.1", 0, None)
    answer = patient.get(f"http://{host}:{port}/livez")
    assert answer.status_code == (200 if turns else 503)
    assert turns or answer.json()["reason"] == "the loop of worker w1 does not turn"


@pytest.mark.parametrize("name", [name for name in SERVICES if name != "worker"])
def test_the_token_of_figures_reads_figures_and_nothing_else(
    name: str, shared_server: PrivateRedis, real_redis: ground.Client
) -> None:
    service = SERVICES[name]
    tokens = {service.token: "right", "PENSTOCK_METRICS_TOKEN": "figures"}
    with served(service, shared_server.url, **tokens) as (url, _):
        known = {"Authorization": "Bearer figures"}
        with httpx.Client(base_url=url, timeout=150, headers=known) as client:
            for method, path in (*service.paths, ("GET", "/metrics/"), ("GET", "//metrics")):
                assert client.request(method, path).status_code == 401, f"{method} {path}"
            assert client.get("/metrics").status_code == 200


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_without_a_token_is_shut_to_web_pages(
    name: str, shared_server: PrivateRedis, real_redis: ground.Client
) -> None:
    with served(SERVICES[name], shared_server.url) as (url, _), httpx.Client(timeout=150) as client:
        for method, path in (*SERVICES[name].paths, ("GET", "/metrics"), ("GET", "/healthz")):
            rebound = client.request(method, url + path, headers={"Host": "evil.example"})
            assert rebound.status_code == 421
            foreign = client.request(method, url + path, headers={"Origin": "http://evil.example"})
            assert foreign.status_code == 403
            if method == "POST":
                plain = {"Content-Type": "text/plain"}
                simple = client.request(method, url + path, content="{}", headers=plain)
                assert simple.status_code == 415
        assert client.get(f"{url}/metrics").status_code == 200


@pytest.mark.parametrize("name", SERVICES)
def test_no_service_listens_beyond_loopback_without_a_token(
    name: str, shared_server: PrivateRedis, real_redis: ground.Client
) -> None:
    service = SERVICES[name]
    host = () if service.port else ("--metrics-host" if name == "worker" else "--host", "0.0.0.0")
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
    env = clean | {"PENSTOCK_REDIS_URL": shared_server.url} | (
        {service.port.replace("PORT", "HOST"): "0.0.0.0", service.port: "0"} if service.port else {}
    )  # fmt: skip
    words = [word.format(port="0", engine=ENGINE.url) for word in (*service.command, *host)]
    refused = commands.run(words, env=env)
    assert refused.returncode == 2
    assert refused.stderr.startswith(f"penstock: {service.token}: is not set")
    assert "PENSTOCK_WITHOUT_TOKEN=1" in refused.stderr


# Whether a request that the document does not foresee is refused is each service's own to say;
# a stream of events has no end.
FUZZ = ("--exclude-checks", "negative_data_rejection,positive_data_acceptance",
        "--exclude-path", "/api/events", *fuzzing.SEEDED)  # fmt: skip


@pytest.mark.timeout(600)  # a busy machine is no finding
@pytest.mark.parametrize("name", ["monitor", "sandbox serve"])
def test_nothing_that_can_be_sent_breaks_a_service_or_its_openapi_document(
    name: str, shared_server: PrivateRedis, real_redis: ground.Client, tmp_path: Path
) -> None:
    token = {SERVICES[name].token: "right"}
    with served(SERVICES[name], shared_server.url, **token) as (url, _):
        known = {"Authorization": "Bearer right"}
        document = patient.get(f"{url}/openapi.json", headers=known).raise_for_status().json()
        assert {"/healthz", "/metrics"} < set(document["paths"])
        given = ("-H", "Authorization: Bearer right", *FUZZ)
        fuzzing.nothing_breaks(f"{url}/openapi.json", tmp_path, 3, *given)
        assert patient.get(f"{url}/healthz").status_code == 200


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("name", [name for name in SERVICES if name != "worker"])
def test_a_service_ends_in_order_and_its_exit_code_says_by_what(
    shared_server: PrivateRedis, tmp_path: Path, name: str, number: signal.Signals
) -> None:
    service, port, log = SERVICES[name], str(free_port()), tmp_path / "log"
    env = os.environ | {"PENSTOCK_REDIS_URL": shared_server.url}
    words = [word.format(port=port, engine=ENGINE.url) for word in service.command]
    with log.open("wb") as said:
        process = commands.start(
            words, env=env | ({service.port: port} if service.port else {}),
            stdout=subprocess.DEVNULL, stderr=said,
        )  # fmt: skip
    try:
        until(lambda: _well(port), name, within=100)
        process.send_signal(number)
        assert process.wait(100) == 128 + number
    finally:
        process.kill()
    assert "Traceback" not in log.read_text()


def _well(port: str) -> bool:
    with suppress(httpx.TransportError):
        return httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=10).status_code == 200
    return False


def test_every_subcommand_that_serves_is_among_these() -> None:
    """What listens calls `listen`; nothing else in our code does."""
    rooms = [Path(ground.__file__).parents[1] / room for room in PACKAGES]
    found = {
        file.relative_to(room.parent).as_posix()
        for room in rooms
        for file in room.rglob("*.py")
        if re.search(r"(?<![\w.])(?<!def )listen\(", file.read_text())
    }
    assert found == {
        "buffer/http/app.py", "penstock/monitor/command.py", "penstock/commands/sandbox.py",
        "penstock/commands/worker_door.py", "gateway/server/app.py",
        "penstock/openenv.py",  # tests/worker/hosts starts it
    }  # fmt: skip


def listens_on(pid: int) -> set[str]:
    """The addresses of TCP on which a process or a child of its takes callers."""
    family = [pid, *descendants(pid)]
    sockets = {file for one in family for file in open_files(one)}
    found = set()
    for table, width in (("tcp", 8), ("tcp6", 32)):
        for row in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = row.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                found.add(address(fields[1][:width]))
    return found


def address(text: str) -> str:
    if len(text) > 8:
        return f"IPv6 {text}"
    return ".".join(str(byte) for byte in reversed(bytes.fromhex(text)))


def descendants(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with gone:
            for child in map(int, task.read_text().split()):
                found += [child, *descendants(child)]
    return found


def open_files(pid: int) -> list[str]:
    found = []
    with gone:
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            with gone:
                found.append(os.readlink(fd))
    return found


gone = suppress(FileNotFoundError, ProcessLookupError)  # a process, or what it had open

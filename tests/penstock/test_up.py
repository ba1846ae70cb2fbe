"""`penstock up`: all of it, restarted when a part dies, and gone when it ends."""

import asyncio
import errno
import fcntl
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from ground import SettingError
from ground.settings import GroundSettings
from penstock.options import console
from penstock.up import service
from penstock.up.command import _alone_in, _Up
from penstock.up.fleet import Home, Plan, Services
from penstock.up.screen import Screen
from tests.gateway.scripted.engine import Served
from tests.gateway.scripted.vllm import ScriptedVllm
from tests.harness import leash, patient
from tests.harness.commands import PENSTOCK
from tests.harness.servers import PrivateRedis, free_port, until
from tests.penstock import promql
from tests.penstock.commands import parsed, processes_of, run


class Up:
    """One `penstock up` in a folder of its own."""

    def __init__(self, folder: Path, workers: int = 1, **env: str) -> None:
        self.folder = folder / "state"
        clean = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
        self.monitor = f"http://127.0.0.1:{(monitor := free_port())}"
        self.env = {
            "PENSTOCK_DATA_DIR": str(self.folder), "PENSTOCK_BUFFER_PORT": str(free_port()),
            "PENSTOCK_MONITOR_PORT": str(monitor), "PENSTOCK_JOB_LEASE": "2", **env,
        }  # fmt: skip
        self.process = leash.start(
            [PENSTOCK, "up", "--workers", str(workers)], env=clean | self.env,
            stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.said: list[str] = []
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        for line in self.process.stderr or ():
            self.said.append(line)

    def wait(self) -> None:
        self.process.wait()
        self._listener.join()
        self.process.stderr.close()

    def hears(self, words: str, times: int = 1) -> None:
        def heard() -> bool:
            assert self.process.poll() is None, "".join(self.said)
            return sum(words in line for line in self.said) >= times

        until(heard, f"{words!r} in {self.said}", within=100)

    def services(self) -> dict[str, Any]:
        state = json.loads((self.folder / "up.json").read_text())
        return {one["name"]: one for one in state["services"]}

    def runs(self, program: str, *options: str) -> str:
        file = self.folder.parent / "program.py"
        file.write_text(program)
        result = run("run", *options, str(file), **self.env)
        assert result.returncode == 0, result
        return result.stdout


@contextmanager
def started(folder: Path, *, workers: int = 1, **env: str) -> Iterator[Up]:
    folder.mkdir(exist_ok=True)
    up = Up(folder, workers, **env)
    try:
        up.hears("all is up")
        yield up
    finally:
        if up.process.poll() is None:
            up.process.kill()
        up.wait()
        until(lambda: processes_of(folder) == [], "nothing left", within=100)


@pytest.mark.timeout(600)  # some twenty processes, one after the other
def test_what_dies_is_started_again_and_nothing_is_left_at_the_end(tmp_path: Path) -> None:
    with started(tmp_path) as up:
        assert up.runs("print(6 * 7)") == "42\n"
        for name, service in up.services().items():
            os.kill(service["pid"], signal.SIGKILL)
            up.hears(f"{name} ended (killed by SIGKILL)")
        until(lambda: _answers(up.monitor), "the monitor is back", within=100)
        assert up.runs("print('again')", "--wait") == "again\n"
        [server] = _server_pids(up.folder)
        known = (up.folder / "url").read_text()
        os.kill(server, signal.SIGKILL)
        up.hears("redis ended; it is started again with its data")
        until(lambda: bool(set(_server_pids(up.folder)) - {server}), "another server", within=100)
        assert up.runs("print('after redis')", "--wait") == "after redis\n"
        assert (up.folder / "url").read_text() == known  # a trainer's connections find it again
        [server] = _server_pids(up.folder)
        os.kill(_parent(server), signal.SIGKILL)  # the server's keeper
        up.hears("redis ended; it is started again with its data", times=2)
        until(lambda: bool(set(_server_pids(up.folder)) - {server}), "a third server", within=100)
        assert up.runs("print('after its keeper')", "--wait") == "after its keeper\n"
        up.process.send_signal(signal.SIGINT)
        assert up.process.wait(100) == 0
        assert not (up.folder / "up.json").exists()


class Sleeper(service.Service):
    """A process that is there, and does nothing."""

    async def _start(self) -> asyncio.subprocess.Process:
        self._process = await asyncio.create_subprocess_exec("sleep", "60")
        return self._process


async def test_a_service_that_is_slow_to_listen_is_up_once_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count(0, 3600)  # each look comes an hour after the one before
    monkeypatch.setattr(service, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    answers = itertools.chain([False] * 3, itertools.repeat(True))

    async def listens(_: str) -> bool:
        return next(answers)

    ready = asyncio.Event()

    def changed(of: service.Service) -> None:
        if of.state == "up":
            ready.set()

    slow = Sleeper("slow", [], {}, tmp_path / "log", print, listens=listens, changed=changed)
    keeping = asyncio.create_task(slow.keep())
    await asyncio.wait_for(ready.wait(), 100)
    await slow.end()
    await keeping


async def test_a_service_that_is_to_end_while_it_is_started_is_ended_too(tmp_path: Path) -> None:
    begun = asyncio.Event()

    class Slow(Sleeper):
        async def _start(self) -> asyncio.subprocess.Process:
            begun.set()
            await asyncio.sleep(0.1)  # it is told to end meanwhile
            return await super()._start()

    slow = Slow("slow", [], {}, tmp_path / "log", print)
    keeping = asyncio.create_task(slow.keep())
    await begun.wait()
    await slow.end()
    assert slow._process is not None
    assert slow._process.returncode == -signal.SIGTERM
    await keeping


def test_a_gateway_is_up_with_it_if_engines_are_named(tmp_path: Path) -> None:
    with Served(ScriptedVllm()) as engine:
        named = {
            "PENSTOCK_GATEWAY_ENGINES": f"vllm={engine.url}",
            "PENSTOCK_GATEWAY_PORT": str(free_port()),
        }  # fmt: skip
        with started(tmp_path, **named) as up:
            gateway = up.services()["gateway"]["url"]
            token = (up.folder / "gateway-token").read_text().strip()
            control = {"headers": {"Authorization": f"Bearer {token}"}}
            tasks = f"{up.services()['buffer']['url']}/v1/tasks/math"
            known = (up.folder / "buffer-token").read_text().strip()
            made = patient.request(
                "PUT", tasks, json={"group_size": 1}, headers={"Authorization": f"Bearer {known}"}
            )
            assert made.status_code == 200, made.text
            sessions = f"{gateway}/tasks/math/sessions"
            asked = {"uid": "u1", "instance_id": "i1"}
            assert patient.request("POST", sessions, json=asked).status_code == 401
            opened = patient.request("POST", sessions, json=asked, **control).json()
            said = patient.request(
                "POST", f"{gateway}/v1/chat/completions",
                json={"model": "m", "messages": [{"role": "user", "content": "hello"}]},
                headers={"Authorization": f"Bearer {opened['key']}"},
            )  # fmt: skip
            assert said.json()["usage"]["completion_tokens"] > 0
            done = patient.request(
                "POST", f"{sessions}/{opened['session']}/finalize", json={"reward": 1.0}, **control
            )
            assert done.json()["outcome"] == "stored"


def test_its_servers_are_shut_to_whoever_has_no_token_and_its_own_have_theirs(
    tmp_path: Path,
) -> None:
    (tmp_path / "state").mkdir()  # whose .gitignore would be its owner's
    with started(tmp_path) as up:
        services, secrets = up.services(), up.folder
        for name, method, path in (
            ("buffer", "POST", "/get_rollout_data"), ("monitor", "GET", "/api/fleet"),
            ("sandbox", "POST", "/run_code"),
        ):  # fmt: skip
            url, token = services[name]["url"], secrets / f"{name}-token"
            assert patient.request(method, url + path).status_code == 401
            known = {"Authorization": f"Bearer {token.read_text().strip()}"}
            assert patient.request(method, url + path, headers=known).status_code in (200, 422)
            assert token.stat().st_mode & 0o777 == 0o600
            said = [line for line in up.said if name != "monitor" or "open http" not in line]
            assert token.read_text().strip() not in "".join(said)
        scraped = promql.samples(_metrics(up, name) for name in ("monitor", "sandbox"))
        assert [text for text in promql.shown() if not promql.gives(text, scraped)] == []
        shown = secrets / "buffer-url"
        assert shown.stat().st_mode & 0o777 == 0o600
        assert patient.get(f"{shown.read_text().strip()}/v1/tasks").status_code == 200
        assert up.runs("print('a worker knows its sandbox')") == "a worker knows its sandbox\n"
        assert not (secrets / ".gitignore").exists()


def _metrics(up: Up, name: str) -> str:
    known = {"Authorization": f"Bearer {(up.folder / f'{name}-token').read_text().strip()}"}
    return patient.get(f"{up.services()[name]['url']}/metrics", headers=known).text


def test_ctrl_c_ends_it_in_order_if_whoever_read_its_words_went_away(tmp_path: Path) -> None:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
    env = clean | {"PENSTOCK_DATA_DIR": str(tmp_path / "state"), "PENSTOCK_BUFFER_PORT": "0",
                   "PENSTOCK_MONITOR_PORT": "0", "PENSTOCK_SANDBOX": "local"}  # fmt: skip
    up = leash.start([PENSTOCK, "up", "--workers", "0"], env=env, stdin=subprocess.DEVNULL,
                     stderr=subprocess.PIPE, text=True)  # fmt: skip
    try:
        assert any("all is up" in line for line in up.stderr)
        up.stderr.close()  # as `| tee` does, which Ctrl-C ends too
        up.send_signal(signal.SIGINT)
        assert up.wait(100) == 0
    finally:
        up.kill()
    assert not (tmp_path / "state" / "up.json").exists()
    until(lambda: processes_of(tmp_path) == [], "nothing left", within=100)


def test_ctrl_c_ends_it_while_its_redis_loads(tmp_path: Path) -> None:
    never_ready = tmp_path / "never-ready"
    never_ready.write_text("#!/bin/sh\nexec sleep 1000\n")
    never_ready.chmod(0o755)
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
    state = tmp_path / "state"
    env = clean | {"PENSTOCK_DATA_DIR": str(state), "PENSTOCK_REDIS_SERVER": str(never_ready)}
    up = leash.start([PENSTOCK, "up"], env=env, stdin=subprocess.DEVNULL,
                     stderr=subprocess.PIPE, text=True)  # fmt: skip
    try:
        until((state / "server.log").exists, "the server to load", within=100)
        up.send_signal(signal.SIGINT)
        _, said = up.communicate(timeout=40)  # it would try for 60 s
        assert (up.returncode, said.split()) == (130, ["penstock:", "interrupted"])
    finally:
        up.kill()
    until(lambda: processes_of(tmp_path) == [], "nothing left", within=100)


def test_a_url_in_a_file_is_that_of_all_services(
    tmp_path: Path, private_redis: Callable[[], PrivateRedis]
) -> None:
    named = tmp_path / "url"
    named.write_text(private_redis().url)
    with started(
        tmp_path / "up", PENSTOCK_REDIS_URL_FILE=str(named), PENSTOCK_SANDBOX="local"
    ) as up:
        assert up.runs("print(6 * 7)") == "42\n"


def test_killed_itself_it_leaves_nothing(tmp_path: Path) -> None:
    with started(tmp_path) as up:
        second = run("up", **up.env)
        assert second.returncode == 2
        assert "another `penstock up` runs in" in second.stderr
        up.process.kill()


@pytest.mark.timeout(600)  # two fleets
def test_a_second_one_elsewhere_does_not_take_the_firsts_services_for_its_own(
    tmp_path: Path,
) -> None:
    with started(tmp_path / "one", workers=0) as first:
        where = tmp_path / "two"
        second = run("up", "--workers", "0", **first.env | {"PENSTOCK_DATA_DIR": str(where)})
        assert second.returncode == 2
        assert "all is up" not in second.stderr
        said = second.stderr.splitlines()[-1]
        assert "Address already in use by process " in said
        assert "penstock.up.child" in said
        assert re.search(r"(buffer|monitor): --port \(PENSTOCK_(BUFFER|MONITOR)_PORT\)", said), said


@pytest.mark.timeout(600)
def test_it_is_up_among_files_named_as_modules_on_ports_that_it_chooses_past_a_proxy(
    tmp_path: Path,
) -> None:
    """The files stand in the folder that it is started in, and would break whatever took them."""
    (tmp_path / "worker").mkdir()
    for name in ("worker/__init__", "redis", "json", "ground", "logging"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('the wrong module')\n")
    proxy = "http://127.0.0.1:9"  # nobody listens there
    free = {"PENSTOCK_BUFFER_PORT": "0", "PENSTOCK_MONITOR_PORT": "0", "HTTP_PROXY": proxy}
    with started(tmp_path, **free) as up:
        assert up.runs("print(6 * 7)") == "42\n"
        before = up.services()
        assert all(_answers(before[name]["url"]) for name in ("buffer", "monitor"))
        os.kill(before["buffer"]["pid"], signal.SIGKILL)
        up.hears("buffer is up", times=2)
        after = up.services()
        assert after["buffer"]["pid"] != before["buffer"]["pid"], "up.json is out of date"
        assert (after["buffer"]["restarts"], after["buffer"]["state"]) == (1, "up")
        up.process.send_signal(signal.SIGTERM)
        assert up.process.wait(100) == 128 + signal.SIGTERM
    assert (up.folder / "logs" / "buffer.log").read_text()


def test_logs_outlast_the_next_start_and_a_large_one_is_put_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.up.fleet.LARGEST_LOG", 10)
    home = Home(tmp_path)
    home.log("buffer").write_text("short\n")
    assert home.log("buffer").read_text() == "short\n"
    home.log("buffer").write_text("why it ended last night\n")
    assert not home.log("buffer").exists()
    assert (home.logs / "buffer.log.before").read_text() == "why it ended last night\n"


async def test_the_last_words_of_a_service_are_not_those_of_an_earlier_start(
    tmp_path: Path,
) -> None:
    (tmp_path / "log").write_text("penstock: of last week\n")
    refused = service.Service("worker", ["worker", "--concurrency", "none"], dict(os.environ),
                              tmp_path / "log", print, "http://127.0.0.1:1")  # fmt: skip
    with pytest.raises(
        service.ServiceFailed, match=r"worker: --concurrency \(PENSTOCK_CONCURRENCY\)"
    ):
        await refused.keep()
    assert "of last week" in refused.log.read_text()


def test_a_folder_that_cannot_be_written_to_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = run("up", PENSTOCK_DATA_DIR=str(tmp_path / "file" / "state"))
    assert result.returncode == 2
    assert result.stderr.startswith("penstock: PENSTOCK_DATA_DIR: ")
    assert result.stderr.count("\n") == 1


def test_a_folder_that_cannot_be_locked_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(SettingError, match=r"^PENSTOCK_DATA_DIR: .* cannot be locked: Function"):
        _alone_in(tmp_path).__enter__()


async def test_a_disk_that_is_full_ends_nothing_and_is_said_once(tmp_path: Path) -> None:
    said: list[str] = []
    screen = Screen(console(stderr=True))
    up = _Up(Plan(0, 1), GroundSettings(data_dir=tmp_path), Home(tmp_path), screen)
    up._redis.url = "redis://localhost"
    up._screen.say = said.append  # type: ignore[method-assign]
    (tmp_path / "up.json.new").mkdir()  # nothing can be written there
    up._write_state()
    up._write_state()
    assert len(said) == 1
    assert "up.json cannot be written and is out of date" in said[0]


async def test_a_fleet_that_cannot_be_read_ends_nothing_and_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: asyncio.Queue[None] = asyncio.Queue()

    async def read(_: object) -> None:
        looks.put_nowait(None)
        raise ValueError("'abc' is no number")

    monkeypatch.setattr("penstock.up.command.FleetReader.read", read)
    said: list[str] = []
    screen = Screen(console(stderr=True))
    up = _Up(Plan(0, 1), GroundSettings(data_dir=tmp_path), Home(tmp_path), screen)
    up._redis.url = "redis://localhost"
    up._screen.say = said.append  # type: ignore[method-assign]
    watching = asyncio.create_task(up._watch())
    for _ in range(2):
        either = asyncio.wait({watching, look := asyncio.create_task(looks.get())},
                              return_when=asyncio.FIRST_COMPLETED)  # fmt: skip
        await asyncio.wait_for(either, 100)
        assert look.done(), watching
    assert said == ["""the fleet cannot be read: ValueError("'abc' is no number")"""]
    watching.cancel()


def test_a_setting_that_cannot_work_ends_it_with_that_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        env = {"PENSTOCK_DATA_DIR": str(tmp_path / "state"), "PENSTOCK_MONITOR_PORT": "0",
               "PENSTOCK_BUFFER_PORT": str(taken.getsockname()[1])}  # fmt: skip
        result = run("up", "--workers", "0", **env)
    assert result.returncode == 2
    assert "buffer: --port (PENSTOCK_BUFFER_PORT)" in result.stderr.splitlines()[-1]
    until(lambda: processes_of(tmp_path) == [], "nothing left", within=100)


@pytest.mark.parametrize(("words", "limit"), [([], "4"), (["--gate-limit", "8"], "8")])
def test_the_limit_of_its_gate_is_the_options_or_else_the_environments(
    words: list[str], limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[str] = []

    def run(up: _Up) -> int:
        up._redis.url = "redis://localhost"
        made = Services(up._plan, up._settings, up._redis, up._home, print, up._changed)
        workers = (one for one in made.in_order() if one.name.startswith("worker"))
        given.extend(one.env["PENSTOCK_GATE_LIMIT"] for one in workers)
        return 0

    monkeypatch.setattr(_Up, "run", run)
    monkeypatch.setattr("penstock.up.command.given_settings", GroundSettings.load)
    monkeypatch.setenv("PENSTOCK_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("PENSTOCK_GATE_LIMIT", "4")
    context = parsed(["up", "--workers", "1", *words])
    assert context.command.invoke(context) == 0
    assert given == [limit]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/healthz", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def _server_pids(folder: Path) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes()
            serves = b"-server" in words.split(b"\0")[0]
            if serves and (entry / "cwd").resolve() == folder:
                found.append(int(entry.name))
        except OSError:
            continue  # it has just ended
    return found


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

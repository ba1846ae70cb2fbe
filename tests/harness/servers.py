"""A real Redis or Valkey of one's own, to stop, kill, freeze and start again."""

import asyncio
import contextlib
import itertools
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import ground
from ground.redis.url import RedisTarget, parse_redis_url
from ground.server.binary import bundled_server, find_server
from tests.harness import leash

BINARY = "PENSTOCK_TEST_SERVER"
STARTS_WITHIN = 100.0


def server_binary() -> Path:
    """The server under test. Where there is none, CI fails; a person's run skips, and says why."""
    try:
        if named := os.environ.get(BINARY):
            return find_server(Path(named))
        return bundled_server()
    except ground.SettingError as missing:
        import pytest  # here, so that the processes of `killing` start without it

        if os.environ.get("CI"):
            pytest.fail(f"no real server, and CI must have one: {missing}", pytrace=False)
        pytest.skip(f"no real server: {missing}")


def _own_ports() -> Iterator[int]:
    """In no order, none again soon, and none that another process of this test run draws.

    Systems give outgoing connections higher ones (32768 and up): none of those takes the
    port of a server that is dead for a while.
    """
    which, of = (os.environ.get(f"PYTEST_XDIST_WORKER{name}") for name in ("", "_COUNT"))
    ours = range(10000, 22000)[int((which or "gw0")[2:]) :: int(of or 1)]
    return itertools.cycle(random.sample(ours, len(ours)))


_ports = _own_ports()


def free_port() -> int:
    """A port nobody listens on, and nobody 10000 above it, where a Cluster's node has its bus."""
    while True:
        port = next(_ports)
        if _is_free(port) and _is_free(port + 10000):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def until(holds: Callable[[], bool], what: str, within: float = STARTS_WITHIN) -> None:
    """Wait for something in another process that tells nobody when it happens."""
    deadline = time.monotonic() + within
    while not holds():
        assert time.monotonic() < deadline, f"waited {within:.0f} s in vain for {what}"
        time.sleep(0.02)


@contextlib.contextmanager
def server_that_may_fail_to_save(folder: Path) -> Iterator[ground.EmbeddedServer]:
    """One that `fill_disk_of` works on."""
    (folder / "taken" / "by-a-folder").mkdir(parents=True)
    config = ["save 3600 1", "dbfilename taken"]
    with ground.EmbeddedServer(folder, binary=server_binary(), config=config) as server:
        yield server
        client: Any = ground.connect(server.target)
        with contextlib.closing(client):
            client.config_set("save", "")  # else it refuses to end before it has saved


def fill_disk_of(server: ground.EmbeddedServer) -> None:
    """From now on it refuses writes with MISCONF, as one does whose disk is full."""
    client: Any = ground.connect(server.target)
    with contextlib.closing(client):
        client.bgsave()
        until(lambda: client.info()["rdb_last_bgsave_status"] == "err", "the save that fails")


class PrivateRedis:
    """A server on a port and socket that stay the same over its deaths.

    `with PrivateRedis(folder) as server: ground.connect(server.target)`
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        aof: bool = True,
        config: Sequence[str] = (),
        arguments: Sequence[str] = (),
        binary: Path | None = None,
        environment: Mapping[str, str] = {},
    ) -> None:
        self.folder = folder = Path(folder)
        self.socket = folder / "redis.sock"
        self.port = free_port()
        self.log = folder / "server.log"
        self._binary = binary or server_binary()
        self._lines = [*_FIXED, f"appendonly {'yes' if aof else 'no'}", *config]
        self._arguments, self._environment = arguments, environment
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def target(self) -> RedisTarget:
        return parse_redis_url(self.url)

    @property
    def socket_target(self) -> RedisTarget:
        return parse_redis_url(f"unix://{self.socket}")

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server is not running"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Start it and return when it answers. On the first start, another port if taken."""
        for _ in range(5):
            self._launch()
            if self._answers():
                return self
            if "in use" not in self.log.read_text() or self._started_before:
                break
            self.port = free_port()
        self.kill()
        raise AssertionError(f"the server did not start:\n{self.log.read_text()}")

    def stop(self) -> None:
        """End it in order, as an administrator would."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self._end(signal.SIGKILL)

    def restart(self, *, keep_data: bool = True) -> Self:
        """Kill and start again. What an AOF kept is there again, or with `keep_data=False` not."""
        self.kill()
        if not keep_data:
            self.lose_data()
        return self.start()

    def lose_data(self) -> None:
        """Delete what a stopped server kept."""
        shutil.rmtree(self.folder / "appendonlydir", ignore_errors=True)
        for kept in (*self.folder.glob("*.aof"), *self.folder.glob("*.rdb")):
            kept.unlink()

    def written(self) -> int:
        """Bytes of its append-only file until now; `lose_since` goes back to it."""
        return self._aof.stat().st_size

    def lose_since(self, written: int) -> Self:
        """Start it again without what it wrote since, as after a power cut before an fsync."""
        self.kill()
        os.truncate(self._aof, written)
        return self.start()

    @property
    def _aof(self) -> Path:
        """The file that grows: of later releases than Redis 6.2 the newest of several."""
        found = [*self.folder.glob("appendonlydir/*.incr.aof"), *self.folder.glob("*.aof")]
        return max(found, key=lambda file: file.stat().st_mtime_ns)

    def freeze(self) -> None:
        """SIGSTOP: connections stay open and nothing answers."""
        assert self._process is not None, "the server is not running"
        leash.freeze(self._process)

    def thaw(self) -> None:
        """Harmless when it is not frozen, or has ended."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def ask(self, *words: Any) -> Any:
        """One command over a connection of its own. A replica that loads much answers late."""
        client = ground.connect(self.socket_target, timeout=STARTS_WITHIN)
        try:
            return client.execute_command(*words)  # type: ignore[no-untyped-call]
        finally:
            client.close()

    def until_in_step(self, primary: Self) -> None:
        """A replica has what its primary was told so far. WAIT looks at one connection's writes."""
        told = primary.ask("ROLE")[1]
        until(lambda: self.ask("ROLE")[4] >= told, "a replica in step")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def _started_before(self) -> bool:
        return (self.folder / "started").exists()

    def _launch(self) -> None:
        lines = [f"port {self.port}", f"unixsocket {self.socket}", *self._lines]
        # A Sentinel rewrites its configuration with what it learnt, and reads it at the next start.
        conf = self.folder / "server.conf"
        if not (self._arguments and self._started_before):
            conf.write_text("\n".join(lines) + "\n")
        with self.log.open("wb") as log:
            self._process = leash.start(
                [self._binary, "server.conf", *self._arguments],
                cwd=self.folder, env={**os.environ, **self._environment},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def _answers(self) -> bool:
        deadline = time.monotonic() + STARTS_WITHIN
        while time.monotonic() < deadline and self.running:
            if self._pongs():
                (self.folder / "started").touch()
                return True
            time.sleep(0.005)
        return False

    def _pongs(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as line:
                line.sendall(b"PING\r\n")
                # A server with a password answers NOAUTH, which is an answer.
                return line.recv(64).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False  # not listening yet: asked again

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(how)
        self.thaw()
        self._process.wait(100)
        self._process = None


def url_of(client: Any) -> str:
    """Of the server that it talks to, for a process of its own."""
    where = client.connection_pool.connection_kwargs
    return f"redis://{where['host']}:{where['port']}/{where.get('db', 0)}"


async def blocked(client: Any) -> None:
    """Until some connection waits in a blocking command."""

    def blocked() -> bool:
        return bool(client.info("clients")["blocked_clients"])

    await asyncio.to_thread(until, blocked, "somebody to wait on the server")


# `appendfsync no`: what was acknowledged has been written, and so survives a SIGKILL.
# With `everysec` a write is put off while the disk is slow, acknowledged or not.
_FIXED = ("bind 127.0.0.1", "daemonize no", 'save ""', "dir .", "appendfsync no")

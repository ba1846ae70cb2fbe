"""A primary, a replica and three Sentinels with TLS and users, set up as docs/guide/redis.md says.

Servers that were built without TLS get a front that speaks it for their clients.
"""

import contextlib
import ssl
import subprocess
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import redis
import trustme

from ground.redis.url import RedisTarget, parse_redis_url
from tests.architecture.source import ROOT
from tests.docs.blocks import FENCE
from tests.harness.fleet import Fleet
from tests.harness.servers import PrivateRedis, free_port, until
from tests.harness.tls import tls_front

PAGE = (ROOT / "docs" / "guide" / "redis.md").read_text()
FILES = {fence[2]: fence[3] for fence in FENCE.finditer(PAGE) if fence[2]}
ADMIN = "admin:CHANGE-ME-FIRST@"
HOST = "localhost"  # the name in the certificate, which no address is
_VOTES = 300.0  # seconds: a Sentinel that did not run for 2 s waits for 30, and a vote may be tied


def speaks_tls(binary: Path, folder: Path) -> bool:
    """Without a certificate such a server complains of that; others know no TLS."""
    said = subprocess.run(
        [binary, "--port", "0", "--tls-port", str(free_port())],
        cwd=folder, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    return "Failed to configure TLS" in said.stdout + said.stderr


class SecuredSentinels(Fleet):
    """`with SecuredSentinels(folder, binary, tls=True) as fleet: ground.connect(fleet.url)`"""

    def __init__(self, folder: Path, binary: Path, *, tls: bool) -> None:
        self.authority = folder / "ca.pem"
        self._context = _certify(folder, self.authority)
        self.nodes = [_Server(folder, f"node-{n}", binary, tls=tls) for n in range(2)]
        self.sentinels = [
            _Server(folder, f"sentinel-{n}", binary, tls=tls, sentinel=True) for n in range(3)
        ]
        first = self.nodes[0]
        self.nodes[1].more = [f"replicaof {HOST} {first.seen_at}"]
        for server in self.servers:
            server.primary = first.seen_at
        self._fronts = contextlib.ExitStack()

    @property
    def servers(self) -> Sequence["_Server"]:
        return [*self.nodes, *self.sentinels]

    @property
    def url(self) -> str:
        """The page's, with this fleet's addresses and authority."""
        [line] = [line for line in PAGE.splitlines() if "=rediss+sentinel://" in line]
        url = line.partition("=")[2]
        hosts = ",".join(f"{HOST}:{sentinel.seen_at}" for sentinel in self.sentinels)
        for on_the_page, here in (
            ("s1,s2,s3", hosts),
            ("/etc/penstock/ca.pem", str(self.authority)),
        ):
            assert on_the_page in url
            url = url.replace(on_the_page, here)
        return url

    @property
    def primary(self) -> "_Server":
        [found] = [node for node in self.nodes if node.running and node.ask("ROLE")[0] == b"master"]
        return found

    def lose_primary(self) -> None:
        """SIGKILL it; return when the Sentinels have promoted the replica by themselves."""
        primary = self.primary
        [replica] = [node for node in self.nodes if node is not primary]
        replica.until_in_step(primary)
        primary.kill()
        until(partial(_is_primary, replica), "a promotion", _VOTES)
        for sentinel in self.sentinels:
            until(partial(_names, sentinel, replica.seen_at), "the new primary's name", _VOTES)

    def refused(self) -> list[str]:
        """What users other than Penstock's were not allowed to do, by the servers' own log."""
        log = [
            entry for server in self.servers if server.running for entry in server.ask("ACL", "LOG")
        ]
        said = [dict(zip(entry[::2], entry[1::2], strict=True)) for entry in log]
        return [str(entry) for entry in said if entry[b"username"] != b"penstock"]

    def stop(self) -> None:
        super().stop()
        self._fronts.close()

    def _put_together(self) -> None:
        for server in self.servers:
            if server.front is not None:
                front = tls_front(server.target, self._context, port=server.front, plain=True)
                self._fronts.enter_context(front)
        for server in self.servers:
            server.start()
        until(lambda: self.nodes[1].ask("ROLE")[3] == b"connected", "a replica in step")
        for sentinel in self.sentinels:
            sentinel.ask("SENTINEL", "SET", "main", "failover-timeout", 5000)
            with contextlib.suppress(redis.ResponseError):  # Redis 6.2 cannot be told
                sentinel.ask("SENTINEL", "DEBUG", "tilt-trigger", 600_000)
        for sentinel in self.sentinels:
            until(partial(_knows_all, sentinel), "Sentinels that know each other and the replica")


class _Server(PrivateRedis):
    """One of them, with the page's file in a folder of its own."""

    def __init__(
        self, folder: Path, name: str, binary: Path, *, tls: bool, sentinel: bool = False
    ) -> None:
        super().__init__(folder / name, binary=binary, arguments=["--sentinel"] * sentinel)
        self.front = None if tls else free_port()
        self.primary = 0
        self.more: list[str] = []
        self._common = list(self._lines)
        self._sentinel = sentinel
        for users in ("users.acl", "sentinel-users.acl"):
            (self.folder / users).write_text(FILES[users])

    @property
    def seen_at(self) -> int:
        """The port at which others find it."""
        return self.front or self.port

    @property
    def socket_target(self) -> RedisTarget:
        return parse_redis_url(f"unix://{ADMIN}{self.socket}")

    def _launch(self) -> None:
        self._lines = [*self._common, *self._page(), *self.more]
        super()._launch()

    def _page(self) -> list[str]:
        """The page's file, for this folder, these ports and this host."""
        files = ["sentinel.conf"] if self._sentinel else ["redis.conf", "node.conf"]
        lines = []
        for line in "".join(FILES[name] for name in files).splitlines():
            name, _, value = line.partition(" ")
            if name == "tls-port":
                value = str(self.port)
            elif name.endswith("-file"):
                value = str(self.folder.parent / Path(value).name)
            elif name == "bind":
                value = "127.0.0.1"
            elif name == "aclfile":
                value = str(self.folder / Path(value).name)
            elif line.startswith("sentinel monitor"):
                value = f"monitor main {HOST} {self.primary} 2"
            if self.front is None or not (name.startswith("tls-") or line == "port 0"):
                lines.append(f"{name} {value.replace('redis-1.example', HOST)}")
        if self.front is not None and not self._sentinel:
            lines.append(f"replica-announce-port {self.front}")
        return lines

    def _pongs(self) -> bool:
        try:
            return bool(self.ask("PING"))
        except redis.RedisError:
            return False  # not listening yet: asked again


def _certify(folder: Path, authority: Path) -> ssl.SSLContext:
    made = trustme.CA()
    made.cert_pem.write_to_path(authority)
    own = made.issue_cert(HOST)
    own.private_key_pem.write_to_path(folder / "server.key")
    own.cert_chain_pems[0].write_to_path(folder / "server.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own.configure_cert(context)
    return context


def _knows_all(sentinel: PrivateRedis) -> bool:
    said = _master(sentinel)
    return (said["num-slaves"], said["num-other-sentinels"]) == ("1", "2")


def _is_primary(node: PrivateRedis) -> bool:
    try:
        return bool(node.ask("ROLE")[0] == b"master")
    except redis.ConnectionError:
        return False  # a Sentinel that promotes it ends the connections of its clients


def _names(sentinel: PrivateRedis, port: int) -> bool:
    said = _master(sentinel)
    return (said["port"], said["flags"]) == (str(port), "master")


def _master(sentinel: PrivateRedis) -> dict[str, str]:
    words = [word.decode() for word in sentinel.ask("SENTINEL", "MASTER", "main")]
    return dict(zip(words[::2], words[1::2], strict=True))

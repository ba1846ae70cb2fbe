"""A primary and its replica, watched by Sentinel, for failovers at a word."""

import contextlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import redis

from tests.harness.fleet import Fleet
from tests.harness.servers import PrivateRedis, until

SERVICE = "main"
_NODE = ["repl-diskless-sync yes", "repl-diskless-sync-delay 0"]


class SentinelPair(Fleet):
    """`with SentinelPair(folder) as pair: ground.connect(pair.target)`"""

    def __init__(
        self, folder: Path, sentinels: int = 1, *, environment: Mapping[str, str] = {}
    ) -> None:
        """`environment`: of both nodes."""
        self.primary, self.replica = (
            PrivateRedis(folder / f"node-{n}", config=_NODE, environment=environment)
            for n in range(2)
        )
        self.sentinels = [
            PrivateRedis(folder / f"sentinel-{n}", arguments=["--sentinel"])
            for n in range(sentinels)
        ]

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{hosts}/{SERVICE}"

    @property
    def servers(self) -> Sequence[PrivateRedis]:
        return [self.primary, self.replica, *self.sentinels]

    def failover(self) -> None:
        """Have the replica promoted, and return when Sentinel names it as the primary."""
        until(partial(_fails_over, self.sentinels[0], str(self.replica.port)), "a promotion")
        self.primary, self.replica = self.replica, self.primary
        for sentinel in self.sentinels:
            until(partial(_names, sentinel, self.primary), "a primary that clients reach")

    def kill_primary(self) -> None:
        """SIGKILL the primary and promote the replica. The dead one is `replica` afterwards."""
        self.primary.kill()
        self.failover()

    def heal(self) -> None:
        """Whole again, whatever a test has done to it, with the replica in step."""
        self.revive()
        self._follow()
        self._until_watched()

    def flush(self) -> None:
        self.primary.ask("FLUSHALL")
        self.primary.ask("SCRIPT", "FLUSH")

    def _put_together(self) -> None:
        self.primary.start()
        self.replica.start()
        self._follow()
        for sentinel in self.sentinels:
            self._watch(sentinel.start())
        self._until_watched()

    def _follow(self) -> None:
        """Sentinel would tell a returned primary to follow by itself, after ten seconds."""
        until(self._follows, "a replica in step")

    def _follows(self) -> bool:
        try:
            role = self.replica.ask("ROLE")
            if role[0] == b"slave" and role[2] == self.primary.port:
                return bool(role[3] == b"connected")
            self.replica.ask("REPLICAOF", "127.0.0.1", self.primary.port)
        except redis.ConnectionError:  # it ended itself, as after a full disk
            self.revive()
        return False

    def _watch(self, sentinel: PrivateRedis) -> None:
        sentinel.ask("SENTINEL", "MONITOR", SERVICE, "127.0.0.1", self.primary.port, 1)
        # It fails nothing over by itself: tests say when, so that none is a surprise.
        sentinel.ask("SENTINEL", "SET", SERVICE, "down-after-milliseconds", 600_000)
        # By default it does nothing for 30 s when it was itself kept from running for 2 s.
        with contextlib.suppress(redis.ResponseError):  # Redis 6.2 cannot be told
            sentinel.ask("SENTINEL", "DEBUG", "tilt-trigger", 600_000)

    def _until_watched(self) -> None:
        for sentinel in self.sentinels:
            until(partial(_watches_both, sentinel), "Sentinel to know both nodes")


def _fails_over(sentinel: PrivateRedis, replica: str) -> bool:
    """Whether the replica is the primary now; a failover that was given up is begun again."""
    said = _master(sentinel)
    if said["port"] == replica:
        return True
    if "failover_in_progress" not in said["flags"]:
        with contextlib.suppress(redis.ResponseError):  # NOGOODSLAVE: it is not ready yet
            sentinel.ask("SENTINEL", "FAILOVER", SERVICE)
    return False


def _names(sentinel: PrivateRedis, primary: PrivateRedis) -> bool:
    """Whether clients that ask this Sentinel are sent to a primary that serves."""
    said = _master(sentinel)
    settled = (said["port"], said["flags"]) == (str(primary.port), "master")
    return settled and primary.ask("ROLE")[0] == b"master"


def _watches_both(sentinel: PrivateRedis) -> bool:
    said = _master(sentinel)
    return said["flags"] == "master" and int(said["num-slaves"]) >= 1


def _master(sentinel: PrivateRedis) -> dict[str, str]:
    words = [word.decode() for word in sentinel.ask("SENTINEL", "MASTER", SERVICE)]
    return dict(zip(words[::2], words[1::2], strict=True))

"""A Redis Cluster of three primaries, put together without redis-cli; a replica on demand."""

import contextlib
import itertools
from collections.abc import Sequence
from pathlib import Path

import redis

from tests.harness.fleet import Fleet
from tests.harness.servers import PrivateRedis, until

SLOTS = 16384
# The default of 15 s is also for how long a node that returns is not believed.
_CLUSTERED = (
    "cluster-enabled yes",
    "cluster-config-file nodes.conf",
    "cluster-node-timeout 3000",
    "repl-diskless-sync-delay 0",
)


class Cluster(Fleet):
    """`with Cluster(folder) as cluster: ground.connect(cluster.target)`"""

    def __init__(self, folder: Path, size: int = 3, config: Sequence[str] = ()) -> None:
        self._folder, self._lines = folder, [*_CLUSTERED, *config]
        self._numbers = itertools.count()
        self.nodes = [self._new_node() for _ in range(size)]
        self.replica: PrivateRedis | None = None

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    @property
    def servers(self) -> Sequence[PrivateRedis]:
        return [*self.nodes, *([self.replica] if self.replica else [])]

    def wait_until_whole(self) -> None:
        """Until every server that runs knows that all slots are served."""
        known, size = len(self.servers), len(self.nodes)
        running = [server for server in self.servers if server.running]
        until(lambda: all(_sees_all(server, known, size) for server in running), "a cluster")

    def node_of(self, key: str) -> PrivateRedis:
        """The node that keeps a key."""
        slot = int(self.nodes[0].ask("CLUSTER", "KEYSLOT", key))
        return self.nodes[slot * len(self.nodes) // SLOTS]

    def flush(self) -> None:
        for node in self.nodes:
            node.ask("FLUSHALL")
            node.ask("SCRIPT", "FLUSH")

    def add_replica(self, n: int) -> None:
        """Give the n-th node a replica, in step with it, until `heal`."""
        primary, replica = self.nodes[n], self._new_node()
        self.replica = replica.start()
        primary.ask("CLUSTER", "MEET", "127.0.0.1", replica.port)
        id = primary.ask("CLUSTER", "MYID").decode()
        # Until it has shaken hands with its primary, it has a name of its own making for it.
        until(lambda: _known(replica).get(primary.port, [""])[0] == id, "a replica that is met")
        replica.ask("CLUSTER", "REPLICATE", id)
        until(lambda: replica.ask("ROLE")[3] == b"connected", "a replica in step")
        # Who does not know yet whose replica it is would not vote for it.
        until(lambda: all(_follows(replica.port, id, node) for node in self.nodes), "its fame")
        self.wait_until_whole()

    def fail_over(self, n: int) -> None:
        """SIGKILL the n-th node, and return when all know its replica in its place."""
        dead, heir = self.nodes[n], self.replica
        assert heir is not None, "it has no replica"
        dead.kill()
        # Nobody waits until the others miss the dead one; should this vote fail, they will.
        heir.ask("CLUSTER", "FAILOVER", "FORCE")
        self.nodes[n], self.replica = heir, dead
        until(lambda: all(_serves(heir.port, node) for node in self.nodes), "a promotion")
        self.wait_until_whole()

    def heal(self) -> None:
        """Whole again, whatever a test has done to it; without a replica."""
        if self.replica is not None:
            self.replica.kill()
            for node in self.nodes:
                with contextlib.suppress(redis.ResponseError, KeyError):  # others have told it
                    node.ask("CLUSTER", "FORGET", _known(node)[self.replica.port][0])
            self.replica = None
        self.revive()
        for node in self.nodes:  # as it is by default
            node.ask("CONFIG", "SET", "cluster-require-full-coverage", "yes")
        self.wait_until_whole()

    def _new_node(self) -> PrivateRedis:
        return PrivateRedis(self._folder / f"node-{next(self._numbers)}", config=self._lines)

    def _put_together(self) -> None:
        """Start the nodes, give each its share of the slots, and wait until they serve."""
        for node in self.nodes:
            node.start()
        self._introduce()
        self.wait_until_whole()

    def _introduce(self) -> None:
        size = len(self.nodes)
        for n, node in enumerate(self.nodes):
            # node_of's inverse: the slots s with s * size // SLOTS == n.
            node.ask(
                "CLUSTER", "ADDSLOTS", *range(-(-n * SLOTS // size), -(-(n + 1) * SLOTS // size))
            )
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", n + 1)
        for node in self.nodes:
            for other in self.nodes:
                if other is not node:
                    node.ask("CLUSTER", "MEET", "127.0.0.1", other.port)


def _sees_all(node: PrivateRedis, known: int, size: int) -> bool:
    said = set(node.ask("CLUSTER", "INFO").decode().split())
    return {"cluster_state:ok", f"cluster_known_nodes:{known}", f"cluster_size:{size}"} <= said


def _serves(port: int, node: PrivateRedis) -> bool:
    """Whether, as this node sees it, the one at that port is a primary that has slots."""
    _, _, flags, *_, last = _known(node)[port]
    return "master" in flags and "-" in last


def _follows(port: int, primary: str, node: PrivateRedis) -> bool:
    """Whether, as this node sees it, the one at that port is that primary's replica."""
    known = _known(node)
    return port in known and known[port][3] == primary


def _known(node: PrivateRedis) -> dict[int, list[str]]:
    """What a node knows of each, itself included, by its port."""
    lines = node.ask("CLUSTER", "NODES").decode().splitlines()
    return {int(line.split(":")[1].split("@")[0]): line.split() for line in lines}

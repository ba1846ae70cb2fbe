"""A Redis Cluster of three primaries, put together without redis-cli."""

from collections.abc import Sequence
from pathlib import Path

from tests.harness.fleet import Fleet
from tests.harness.servers import PrivateRedis, until

SLOTS = 16384
# The default of 15 s is also for how long a node that returns is not believed.
_CLUSTERED = (
    "cluster-enabled yes",
    "cluster-config-file nodes.conf",
    "cluster-node-timeout 3000",
)


class Cluster(Fleet):
    """`with Cluster(folder) as cluster: ground.connect(cluster.target)`"""

    def __init__(self, folder: Path, size: int = 3, config: Sequence[str] = ()) -> None:
        lines = [*_CLUSTERED, *config]
        self.nodes = [PrivateRedis(folder / f"node-{n}", config=lines) for n in range(size)]

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    @property
    def servers(self) -> Sequence[PrivateRedis]:
        return self.nodes

    def wait_until_whole(self) -> None:
        """Until every node knows that all slots are served."""
        until(lambda: all(_sees_all(node, len(self.nodes)) for node in self.nodes), "a cluster")

    def node_of(self, key: str) -> PrivateRedis:
        """The node that keeps a key."""
        slot = int(self.nodes[0].ask("CLUSTER", "KEYSLOT", key))
        return self.nodes[slot * len(self.nodes) // SLOTS]

    def flush(self) -> None:
        for node in self.nodes:
            node.ask("FLUSHALL")
            node.ask("SCRIPT", "FLUSH")

    def heal(self) -> None:
        """Whole again, whatever a test has done to it."""
        self.revive()
        self.wait_until_whole()

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


def _sees_all(node: PrivateRedis, size: int) -> bool:
    said = set(node.ask("CLUSTER", "INFO").decode().split())
    return {"cluster_state:ok", f"cluster_known_nodes:{size}", f"cluster_size:{size}"} <= said

"""Three Kafka nodes over loopback and Kafka's own producer in its own JVM: the peer of replication.

    with KafkaCluster(directory) as kafka:      # or format(), start_all(), ..., close()
        kafka.latency_ns(records=2_000, size=100)       # p50 and p99 of one record in flight, acks=all
        kafka.batch_ns(total_bytes=256 << 20)           # a 16 x 1000 B batch, as many in flight as it likes

Each node is broker and controller with a heap of 1 GiB; all share one disk. The topic has one partition,
three replicas and min.insync.replicas 2. `missing()` says why Kafka is not available.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from types import TracebackType

from tests.conformance.kafka_peer import Node, PeerError, missing, run_java
from tests.support.ports import free_addresses

__all__ = ["KafkaCluster", "missing"]

SOURCES = (Path(__file__).parent / "KafkaReplication.java",)
NODES = (1, 2, 3)


class KafkaCluster:
    """Starts the nodes on entry; on exit kills them and removes their files.

    `settings` are the nodes' properties with underscores for dots.
    """

    def __init__(self, directory: Path, **settings: object) -> None:
        self._root = Path(tempfile.mkdtemp(prefix="kafka-cluster-", dir=directory))
        ports = [port for _, port in free_addresses(2 * len(NODES))]
        clients = dict(zip(NODES, ports[::2], strict=True))
        controllers = dict(zip(NODES, ports[1::2], strict=True))
        voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in controllers.items())
        self.bootstrap = ",".join(f"127.0.0.1:{port}" for port in clients.values())
        self.ids = list(NODES)
        self._nodes = {
            node: Node(
                self._root / str(node),
                ports=(clients[node], controllers[node]),
                node_id=node,
                controller_quorum_voters=voters,
                min_insync_replicas=2,
                **settings,
            )
            for node in NODES
        }

    def latency_ns(self, *, records: int, size: int) -> tuple[float, float]:
        """Return (p50, p99) in ns of one record of `size` bytes at a time, linger 0, acks=all, after a
        warm-up."""
        figures = self._ask("latency", records, size)
        return figures["p50"], figures["p99"]

    def batch_ns(self, *, total_bytes: int) -> float:
        """Return ns per batch of 16 records of 1000 B: one producer, acks=all, its default number in
        flight."""
        return self._ask("throughput", total_bytes, 1000)["batch"]

    def _ask(self, measure: str, amount: int, size: int) -> dict[str, float]:
        arguments = (self.bootstrap, measure, str(amount), str(size))
        figures: dict[str, float] = json.loads(
            run_java("KafkaReplication", *arguments, sources=SOURCES, timeout_s=900)
        )
        return figures

    # ---- life cycle ---------------------------------------------------------------------------------------

    def format(self) -> None:
        """Format the nodes' directories for this cluster."""
        for node in self._nodes.values():
            node.format()

    def start_all(self) -> None:
        """Start all nodes and wait until they serve. Raises PeerError, and then none is left running."""
        try:
            for node in self._nodes.values():
                node.launch(heap="1g")
            for node in self._nodes.values():
                node.await_start()
        except PeerError:
            self.close()
            raise

    def start(self, node_id: int) -> None:
        """Start one node and wait until it serves."""
        self._nodes[node_id].launch(heap="1g")
        self._nodes[node_id].await_start()

    def kill(self, node_id: int) -> None:
        """Send SIGKILL to a node."""
        self._nodes[node_id].kill()

    def pid(self, node_id: int) -> int:
        """Return the node's process id."""
        return self._nodes[node_id].pid

    def close(self) -> None:
        """Kill the running nodes, and remove all files."""
        for node in self._nodes.values():
            node.kill()
        shutil.rmtree(self._root, ignore_errors=True)

    def __enter__(self) -> KafkaCluster:
        self.format()
        self.start_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

"""NodeProgram: a whole node (broker, controller, or both) as the program of a simulated machine.

It is one life of the node, on the ports of one life of its machine. State that outlives it (the image, like a
file) is passed in. Thread rule: one thread, as the simulator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kreplica.broker.node import Node
from kreplica.broker.node_config import NodeConfig, NodePorts
from kreplica.common.errors import BrokerNotAvailable
from kreplica.common.future import Future
from kreplica.metadata.image_writer import ImageDirectory
from kreplica.raft.kafka_metadata_log import KafkaMetadataLog
from kreplica.raft.kafka_raft_client import KafkaRaftClient
from kreplica.sim.node import BrokerPorts


class NodeProgram:
    """Runs a node; `on_fatal(error)` is called when the node has a fatal error."""

    def __init__(
        self,
        config: NodeConfig,
        ports: BrokerPorts,
        image: ImageDirectory,
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        node_ports = NodePorts(
            storage=ports.storage,
            clock=ports.clock,
            scheduler=ports.scheduler,
            transport=ports.transport,
            workers=ports.workers,
            random=ports.random,
            loop=ports.loop,
            image=lambda _: image,
        )
        self.node = Node(config, node_ports, on_fatal)

    def startup(self) -> None:
        self.node.startup()

    def shutdown(self) -> None:
        """Close all files cleanly; for a clean departure call `node.shutdown` before."""
        self.node.close()

    def handle(self, request: Any) -> Future[Any]:
        return self.node.handle(request)

    @property
    def client(self) -> KafkaRaftClient:
        """The node's member of the quorum."""
        return self.node.raft

    @property
    def log(self) -> KafkaMetadataLog:
        """The node's metadata log."""
        log: Any = self.node.raft.log
        assert isinstance(log, KafkaMetadataLog)
        return log

    @property
    def log_manager(self) -> Any:
        """The broker's log manager. Raises BrokerNotAvailable if the node has no broker."""
        return self._broker.log_manager

    @property
    def replica_manager(self) -> Any:
        """The broker's replica manager. Raises BrokerNotAvailable if the node has no broker."""
        return self._broker.replica_manager

    @property
    def _broker(self) -> Any:
        if self.node.broker is None:
            raise BrokerNotAvailable(f"node {self.node.config.node_id} is not a broker")
        return self.node.broker

"""KafkaRaftServer: the one node of a process, from its properties to its end.

Where the others are: the voters by the configuration, brokers by what they have registered. Ownership: the
server owns its node. Thread rule: one thread calls; `ready` and `on_failure` come from the node's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kreplica.broker.node import Node
from kreplica.broker.node_format import METADATA_LOG, read_properties
from kreplica.broker.node_health import what_keeps_from_serving
from kreplica.common.errors import InvalidConfig, InvalidFile
from kreplica.common.future import Future
from kreplica.log.meta_properties import MetaPropertiesFile
from kreplica.runtime.kafka_config import KafkaConfig, directories_of
from kreplica.runtime.storage import FileStorage
from kreplica.runtime.tcp_node import TcpNode
from kreplica.runtime.tcp_transport import Address

# One that waits for a slow disk or a large batch stands still for seconds at most.
LOOP_TURNS_WITHIN_S = 5.0


class KafkaRaftServer:
    """See the module. `on_failure(error)`: the node cannot go on.

    Raises InvalidConfig for properties that make no node, InvalidFile where its directory is not formatted or
    another node's, InconsistentClusterId where two of them are of two clusters.
    """

    def __init__(self, properties: Mapping[str, object], on_failure: Callable[[BaseException], None]) -> None:
        self.config = KafkaConfig.parse(properties, cluster_id_of(directories_of(properties)[0]))
        metadata_log = f"{self.config.node.metadata_directory}/{METADATA_LOG}"
        if not self.config.voters and not FileStorage().is_directory(metadata_log):
            raise InvalidConfig(
                "a node has to know its quorum: by controller.quorum.voters (--quorum), id@host:port,..., by"
                " controller.quorum.bootstrap.servers, host:port,..., or by"
                " `kreplica format --initial-controllers`"
            )
        # Another node's directory is refused here, before it is so much as locked.
        for path in self.config.node.all_directories:
            read_properties(self.config.node, FileStorage(), path)
        self._node: Node | None = None
        self._tcp_node = TcpNode(
            self.config.node,
            self.config.listeners,
            self._address,
            on_failure,
        )

    @property
    def node(self) -> Node:
        """The node. Raises InvalidRequest where it does not run."""
        return self._tcp_node.node

    def startup(self) -> Future[None]:
        """Start the node; the future is done when its broker may lead. Raises as TcpNode.start."""
        self._node = self._tcp_node.start()
        return self._node.ready

    def what_keeps_from_serving(self) -> list[str]:
        """Why clients should go elsewhere now; none where the node can serve them."""
        return what_keeps_from_serving(self.node)

    def what_keeps_from_living(self) -> list[str]:
        """Why the process should be started again; none while the node's loop turns."""
        return (
            []
            if self._tcp_node.turns(LOOP_TURNS_WITHIN_S)
            else [f"the node's loop has not turned for {LOOP_TURNS_WITHIN_S:g} s"]
        )

    def begin_shutdown(self, timeout_ms: int) -> Future[None]:
        """Hand over what the node leads; `close` is to be called when the future is done."""
        return self._tcp_node.stop(timeout_ms)

    def close(self) -> None:
        """End the node at once and close its files in order."""
        self._node = None
        self._tcp_node.close()

    def _address(self, node_id: int) -> Address | None:
        voter = self.config.voters.get(node_id)
        if voter is not None or self._node is None:
            return voter
        # A voter's own listener comes before those that it has registered as a broker.
        voter = self._node.voter_address(node_id)
        registration = self._node.loader.published.brokers.get(node_id)
        if voter is not None or registration is None or not registration.endpoints:
            return voter
        return registration.endpoints[-1].host, registration.endpoints[-1].port


def cluster_id_of(directory: str) -> str:
    """The cluster that the directory was formatted for. Raises InvalidFile, KafkaStorageError."""
    storage = FileStorage()
    found = MetaPropertiesFile(storage, directory).read() if storage.is_directory(directory) else None
    if found is None:
        raise InvalidFile(f"{directory} is not formatted; `kreplica format` does that")
    return found.cluster_id

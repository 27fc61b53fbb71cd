"""KafkaRaftServer: the node of a process, from its properties to its shutdown.

The addresses of voters come from the configuration, those of brokers from their registrations. Ownership: the
server owns its node. Thread rule: one thread calls; `ready` and `on_failure` run in the node's threads.
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

# A loop that waits for a slow disk or handles a large batch is blocked for seconds at most.
LOOP_TURNS_WITHIN_S = 5.0


class KafkaRaftServer:
    """Runs one node, configured by properties. `on_failure(error)` is called when the node fails.

    Raises InvalidConfig for invalid properties, InvalidFile if a directory is not formatted or belongs to
    another node, InconsistentClusterId if two directories belong to different clusters.
    """

    def __init__(self, properties: Mapping[str, object], on_failure: Callable[[BaseException], None]) -> None:
        self.config = KafkaConfig.parse(properties, cluster_id_of(directories_of(properties)[0]))
        metadata_log = f"{self.config.node.metadata_directory}/{METADATA_LOG}"
        if not self.config.voters and not FileStorage().is_directory(metadata_log):
            raise InvalidConfig(
                "the quorum is unknown: set controller.quorum.voters (--quorum) to id@host:port,..., or"
                " controller.quorum.bootstrap.servers to host:port,..., or run"
                " `kreplica format --initial-controllers`"
            )
        # Reject another node's directory before locking it.
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
        """The running node. Raises InvalidRequest if it does not run."""
        return self._tcp_node.node

    def startup(self) -> Future[None]:
        """Start the node; the future is done when its broker is able to lead.

        Raises what TcpNode.start does.
        """
        self._node = self._tcp_node.start()
        return self._node.ready

    def what_keeps_from_serving(self) -> list[str]:
        """Return the reasons why clients should use other nodes now; empty if the node can serve them."""
        return what_keeps_from_serving(self.node)

    def what_keeps_from_living(self) -> list[str]:
        """Return the reasons to restart the process; empty while the node's loop runs."""
        return (
            []
            if self._tcp_node.turns(LOOP_TURNS_WITHIN_S)
            else [f"the node's loop has been blocked for {LOOP_TURNS_WITHIN_S:g} s"]
        )

    def begin_shutdown(self, timeout_ms: int) -> Future[None]:
        """Hand over the node's leaderships; call `close` when the future is done."""
        return self._tcp_node.stop(timeout_ms)

    def close(self) -> None:
        """Stop the node at once and close its files cleanly."""
        self._node = None
        self._tcp_node.close()

    def _address(self, node_id: int) -> Address | None:
        voter = self.config.voters.get(node_id)
        if voter is not None or self._node is None:
            return voter
        # A voter's own listener takes precedence over those it has registered as a broker.
        voter = self._node.voter_address(node_id)
        registration = self._node.loader.published.brokers.get(node_id)
        if voter is not None or registration is None or not registration.endpoints:
            return voter
        return registration.endpoints[-1].host, registration.endpoints[-1].port


def cluster_id_of(directory: str) -> str:
    """Return the cluster id that the directory was formatted with. Raises InvalidFile, KafkaStorageError."""
    storage = FileStorage()
    found = MetaPropertiesFile(storage, directory).read() if storage.is_directory(directory) else None
    if found is None:
        raise InvalidFile(f"{directory} is not formatted: run `kreplica format`")
    return found.cluster_id

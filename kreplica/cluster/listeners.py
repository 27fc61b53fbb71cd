"""ClusterListeners: the ports on which brokers of a cluster in one process accept any Kafka client.

One thread with one event loop serves all sockets. Ownership: it owns that thread and the listeners. Thread
rule: any thread.
"""

from __future__ import annotations

from kreplica.broker.api_versions import Scope
from kreplica.broker.node_config import SocketServerConfig
from kreplica.cluster.settings import Layout
from kreplica.runtime.event_loop import EventLoopThread
from kreplica.runtime.listener import Listener
from kreplica.runtime.local_listener import LocalListener
from kreplica.runtime.scheduler import OnError

IN_PLAIN = Listener("PLAINTEXT", Scope.CLIENTS)


class ClusterListeners:
    """Opens a port of 127.0.0.1 for each broker of the layout. Raises OSError."""

    def __init__(
        self, layout: Layout, config: SocketServerConfig, on_error: OnError, listener: Listener = IN_PLAIN
    ) -> None:
        self._thread = EventLoopThread("kreplica-clients", on_error)
        self._thread.start()
        self.by_node: dict[int, LocalListener] = {}
        try:
            for node_id, roles in layout.roles.items():
                self.by_node[node_id] = LocalListener(
                    self._thread, config, listener, has_port="broker" in roles
                )
        except BaseException:
            self.close()
            raise

    @property
    def bootstrap_servers(self) -> str:
        """All addresses, in the form that clients take."""
        addresses = [each.address for each in self.by_node.values() if each.address is not None]
        return ",".join(f"{host}:{port}" for host, port in addresses)

    def close(self) -> None:
        """Close all ports; no node of the cluster may be running."""
        for listener in self.by_node.values():
            listener.close()
        self._thread.stop()

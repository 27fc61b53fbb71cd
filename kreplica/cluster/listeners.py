"""ClusterListeners: where the brokers of a cluster in one process listen for clients of any kind.

One thread with one event loop has the sockets of all of them. Ownership: it owns that thread and the
listeners. Thread rule: any thread.
"""

from __future__ import annotations

from kreplica.broker.socket_server_config import SocketServerConfig
from kreplica.cluster.settings import Layout
from kreplica.runtime.event_loop import EventLoopThread
from kreplica.runtime.local_listener import LocalListener
from kreplica.runtime.scheduler import OnError


class ClusterListeners:
    """A port of 127.0.0.1 for each broker of the layout, taken at once. Raises OSError."""

    def __init__(self, layout: Layout, config: SocketServerConfig, on_error: OnError) -> None:
        self._thread = EventLoopThread("kreplica-clients", on_error)
        self._thread.start()
        self.by_node: dict[int, LocalListener] = {}
        try:
            for node_id, roles in layout.roles.items():
                self.by_node[node_id] = LocalListener(self._thread, config, has_port="broker" in roles)
        except BaseException:
            self.close()
            raise

    @property
    def bootstrap_servers(self) -> str:
        """All of them, as clients take them."""
        addresses = [each.address for each in self.by_node.values() if each.address is not None]
        return ",".join(f"{host}:{port}" for host, port in addresses)

    def close(self) -> None:
        """Let all ports go; no node of the cluster runs any more."""
        for listener in self.by_node.values():
            listener.close()
        self._thread.stop()

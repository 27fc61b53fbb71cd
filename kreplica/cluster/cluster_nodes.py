"""ClusterNodes: the nodes of a cluster in one process: directories, life cycles and metadata.

Ownership: it owns the nodes, not the network. Thread rule: any thread; `_lock` guards the life cycles, so
that only one node at a time starts, stops or is killed. Reading the nodes' metadata takes no lock.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from kreplica.broker.node import Node
from kreplica.broker.node_config import NodeConfig
from kreplica.broker.node_directories import format_nodes
from kreplica.cluster.settings import Layout, node_config, write_layout
from kreplica.common.dataclass import replace
from kreplica.common.errors import ClusterClosed, InvalidRequest, KreplicaError
from kreplica.common.future import Future
from kreplica.common.locks import RLock
from kreplica.common.ports import Clock
from kreplica.metadata.cluster_metadata import ClusterMetadata
from kreplica.metadata.records import Endpoint
from kreplica.metadata.watches import Watches
from kreplica.runtime.local_network import LocalNetwork
from kreplica.runtime.local_node import LocalNode
from kreplica.runtime.scheduler import ThreadWorkers
from kreplica.runtime.storage import FileStorage, UnflushedStorage

if TYPE_CHECKING:
    from kreplica.runtime.local_listener import LocalListener


class ClusterNodes:
    """The nodes of `layout` in `directory`. New ones are formatted; none is started.

    `on_failure(node_id, error)`: called when a node fails. `listeners`: the listeners of nodes that serve
    other clients. `is_temporary`: the directory is removed when the cluster is closed, so no file is flushed
    to the disk. `watches`: get every change of the metadata. Raises InvalidConfig, InconsistentClusterId,
    InvalidFile, KafkaStorageError; if settings are invalid, nothing is written.
    """

    def __init__(
        self,
        layout: Layout,
        directory: str,
        settings: Mapping[str, object],
        network: LocalNetwork,
        clock: Clock,
        on_failure: Callable[[int, BaseException], None],
        listeners: Mapping[int, LocalListener] | None = None,
        *,
        is_temporary: bool = False,
        watches: Watches | None = None,
    ) -> None:
        self.layout = layout
        self._network = network
        self._lock = RLock()
        doors = listeners or {}
        configs = {
            n: _listening(node_config(layout, n, directory, settings), doors.get(n)) for n in layout.roles
        }
        storage = UnflushedStorage() if is_temporary else FileStorage()
        format_nodes(
            configs,
            storage=storage,
            clock=clock,
            random=random.SystemRandom(),
            workers=ThreadWorkers(len(configs)),
        )
        write_layout(directory, layout, storage)
        self._is_closed = False  # guarded by _lock
        self._nodes = {
            n: LocalNode(
                each, network, clock, on_failure, doors.get(n), is_temporary=is_temporary, watches=watches
            )
            for n, each in configs.items()
        }

    # ---- life cycles --------------------------------------------------------------------------------------

    def local(self, node_id: int) -> LocalNode:
        """Return the node, dead or alive. Raises InvalidRequest for an unknown id."""
        local = self._nodes.get(node_id)
        if local is None:
            raise InvalidRequest(f"there is no node {node_id!r}: the nodes are {self.ids}")
        return local

    def start(self, node_id: int) -> Future[None]:
        """Start the node; the future is done when its broker is able to lead."""
        with self._lock:
            if self._is_closed:
                raise ClusterClosed("the cluster is closed")
            return self.local(node_id).start().ready

    def start_all(self) -> None:
        """Start all nodes when none is running. Raises the error of the first one that cannot start."""
        with self._lock:
            self._in_parallel(self.ids, self._start)

    def _start(self, node_id: int) -> None:
        self.local(node_id).start()

    @staticmethod
    def _in_parallel(node_ids: Sequence[int], act: Callable[[int], None]) -> None:
        if node_ids:
            ThreadWorkers(len(node_ids)).run([partial(act, node_id) for node_id in node_ids])

    def stop(self, node_id: int, timeout_ms: int) -> None:
        """Shut the node down cleanly; each of the two steps may take `timeout_ms`."""
        with self._lock:
            local = self.local(node_id)
            with self._network.draining():
                stopped = local.stop(timeout_ms)
            try:
                stopped.result(3 * timeout_ms / 1000 + 1)
            finally:
                local.close()

    def kill(self, node_id: int) -> None:
        with self._lock:
            self.local(node_id).kill()

    def pause(self, node_id: int) -> None:
        with self._lock:
            self.local(node_id).pause()

    def resume(self, node_id: int) -> None:
        with self._lock:
            self.local(node_id).resume()

    def set_disk_full(self, node_id: int, is_full: bool) -> None:
        with self._lock:
            self.local(node_id).set_disk_full(is_full)

    def close(self) -> list[KreplicaError]:
        """Stop all nodes at once and close their files cleanly; return the errors met."""
        errors: list[KreplicaError] = []
        with self._lock:
            self._is_closed = True
            for local in self._nodes.values():
                if local.is_alive:
                    try:
                        local.close()
                    except KreplicaError as error:
                        errors.append(error)
        return errors

    # ---- state and metadata --------------------------------------------------------------------------------

    @property
    def ids(self) -> list[int]:
        return list(self._nodes)

    def node(self, node_id: int) -> Node | None:
        """Return the node if it runs, or None."""
        local = self._nodes.get(node_id)
        return None if local is None else local.node

    def live(self) -> list[Node]:
        """Return all running nodes, including paused ones."""
        return [node for each in self._nodes.values() if (node := each.node) is not None]

    def live_brokers(self) -> list[int]:
        """Return the ids of the brokers that can answer."""
        return [node.config.node_id for node in self._running() if node.broker is not None]

    def _running(self) -> list[Node]:
        nodes = [each.node for each in self._nodes.values() if not each.is_paused]
        return [node for node in nodes if node is not None]

    @property
    def controller(self) -> int | None:
        """The active controller's node; if two believe to be active, the one with the later epoch."""
        active = [n for n in self.live() if n.controller is not None and n.controller.is_active]
        newest = max(active, key=lambda node: node.raft.leader_and_epoch.epoch, default=None)
        return None if newest is None else newest.config.node_id

    def likely_controllers(self) -> list[int]:
        """Return the ids of the controllers that can answer, the active one first."""
        active = self.controller
        ids = [node.config.node_id for node in self._running() if node.controller is not None]
        return sorted(ids, key=lambda node_id: (node_id != active, node_id))

    def has_quorum(self) -> bool:
        """Return whether a majority of voters runs, by the newest voter set that any node knows."""
        known = [found for node in self.live() if (found := node.voters()) is not None]
        _, voters = max(known, key=lambda found: found[0], default=(0, frozenset[int]()))
        running = {node.config.node_id for node in self._running()}
        return 2 * len(voters & running) > len(voters)

    def known_metadata(self) -> list[ClusterMetadata]:
        """Return the metadata of each broker that can answer and is not fenced.

        A fenced broker is left out because it may be cut off and learn nothing new.
        """
        brokers = self.newest_metadata().brokers
        return [
            node.loader.published
            for node in self._running()
            if (found := brokers.get(node.config.node_id)) is not None and not found.fenced
        ]

    def newest(self) -> Node:
        """Return the node with the most recent metadata. Raises InvalidRequest if no node runs."""
        live = self.live()
        if not live:
            raise InvalidRequest("no node of the cluster is running")
        return max(live, key=lambda node: node.loader.applied.offset)

    def newest_metadata(self) -> ClusterMetadata:
        """Return the most recent metadata that any node has. Raises InvalidRequest if no node runs."""
        # Each append comes by here.
        newest, highest = None, -1
        for local in self._nodes.values():
            loader = local.loader
            if loader is not None:
                offset = loader.applied.offset
                if offset > highest:
                    newest, highest = loader, offset
        if newest is None:
            raise InvalidRequest("no node of the cluster is running")
        return newest.published


def _listening(config: NodeConfig, listener: LocalListener | None) -> NodeConfig:
    """Return the node's configuration with the address that clients connect to."""
    if listener is None or listener.address is None:
        return config
    host, port = listener.address
    endpoint = Endpoint(name=listener.name, host=host, port=port, security_protocol=listener.protocol.value)
    return replace(config, endpoints=(endpoint,))

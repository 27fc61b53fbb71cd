"""LocalNode: a node of this process on one directory, through starts, kills and restarts.

Each life has its own endpoint in the LocalNetwork and its own Storage. A kill first revokes the storage, so
that the ended life can change nothing afterwards. Thread rule: one thread at a time (Cluster holds a lock);
the node itself runs in the network's threads.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from kreplica.broker.node import Node
from kreplica.broker.node_config import NodeConfig, NodePorts
from kreplica.broker.request_channel import RequestChannel
from kreplica.common.errors import InvalidRequest
from kreplica.common.future import Future
from kreplica.common.ports import Clock
from kreplica.metadata.watches import Watches
from kreplica.runtime.lmdb_store import LmdbImageDirectory
from kreplica.runtime.local_network import LocalEndpoint, LocalNetwork
from kreplica.runtime.scheduler import ThreadWorkers
from kreplica.runtime.storage import FileStorage, RevocableStorage, UnflushedStorage

if TYPE_CHECKING:
    from kreplica.metadata.metadata_loader import MetadataLoader
    from kreplica.runtime.local_listener import LocalListener


class LocalNode:
    """Starts and stops a node.

    `on_failure(node_id, error)` is called when it fails; it still has to be stopped.

    `listener`: the port for clients outside the program. `is_temporary`: the directory is removed with the
    node, so nothing in it is flushed to disk. `watches`: those of its cluster.
    """

    def __init__(
        self,
        config: NodeConfig,
        network: LocalNetwork,
        clock: Clock,
        on_failure: Callable[[int, BaseException], None],
        listener: LocalListener | None = None,
        *,
        is_temporary: bool = False,
        watches: Watches | None = None,
    ) -> None:
        self.config = config
        self._watches = watches
        self._files = UnflushedStorage() if is_temporary else FileStorage()
        self._image = partial(LmdbImageDirectory, is_flushed=not is_temporary)
        self.is_paused = False
        self._network = network
        self._clock = clock
        self._on_failure = on_failure
        self._listener = listener
        self._endpoint: LocalEndpoint | None = None
        self._storage: RevocableStorage | None = None
        self.node: Node | None = None  # while it runs; written only here, as is its loader
        self.loader: MetadataLoader | None = None

    @property
    def is_alive(self) -> bool:
        return self.node is not None

    @property
    def endpoint(self) -> LocalEndpoint:
        """The node's endpoint in the network. Raises InvalidRequest if it does not run."""
        if self._endpoint is None:
            raise InvalidRequest(f"node {self.config.node_id} is not running: start it first")
        return self._endpoint

    def start(self) -> Node:
        """Start the node on its directory; returns when its logs are loaded.

        Raises InvalidRequest if it runs already, OSError if its port is taken, and what Node.startup raises;
        then it does not run.
        """
        node_id = self.config.node_id
        if self.node is not None:
            raise InvalidRequest(f"node {node_id} is running already")
        endpoint = self._endpoint = self._network.join(node_id)
        storage = self._storage = RevocableStorage(self._files)
        ports = NodePorts(
            storage=storage,
            clock=self._clock,
            scheduler=endpoint,
            transport=endpoint,
            workers=ThreadWorkers(),
            random=random.SystemRandom(),
            loop=endpoint.loop,
            image=self._image,
            watches=self._watches,
        )
        node = Node(self.config, ports, lambda error: self._failed(endpoint, error))
        listener = self._listener
        try:
            handle = node.handle if listener is None else listener.join(node, endpoint, self._clock)
            channel = RequestChannel(node.handle, node, lanes=node)
            self._network.register(endpoint, handle, channel.serve)
            node.startup()
            if listener is not None:
                listener.open()
        except BaseException:
            self._leave()
            raise
        self.node, self.loader = node, node.loader
        return node

    def stop(self, timeout_ms: int) -> Future[None]:
        """Hand over the node's leaderships; call `close` when the future is done."""
        return self._alive().shutdown(timeout_ms)

    def close(self) -> None:
        """Stop the node at once and close its files cleanly."""
        node = self._alive()
        self._leave()
        node.close()

    def kill(self) -> None:
        """Kill the node, as kill -9 would: it writes, sends and answers nothing more."""
        node = self._alive()
        assert self._storage is not None
        # First, so that errors of its tasks without their storage are not reported as failures.
        self._network.silence(self.endpoint)
        self._storage.revoke(f"node {self.config.node_id} was killed")
        self._leave()
        node.abandon()

    def pause(self) -> None:
        """Pause the node, as SIGSTOP would."""
        self._network.pause(self.endpoint)
        self.is_paused = True

    def resume(self) -> None:
        self._network.resume(self.endpoint)
        self.is_paused = False

    def set_disk_full(self, is_full: bool) -> None:
        """Make the node's disk full, or well again; the next life has a well one. Raises InvalidRequest."""
        node = self._alive()
        assert self._storage is not None
        self._storage.set_full(is_full)
        if is_full and node.broker is not None:
            for log in node.broker.log_manager.logs():
                log.idle()

    def _failed(self, endpoint: LocalEndpoint, error: BaseException) -> None:
        if endpoint.is_alive:
            self._on_failure(self.config.node_id, error)

    def _alive(self) -> Node:
        if self.node is None:
            raise InvalidRequest(f"node {self.config.node_id} is not running: start it first")
        return self.node

    def _leave(self) -> None:
        endpoint, self._endpoint = self._endpoint, None
        self.node = self.loader = None
        self.is_paused = False
        if endpoint is not None:
            self._network.leave(endpoint)
        if self._listener is not None:
            self._listener.leave()

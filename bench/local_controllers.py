"""A real quorum of controllers in this process, and brokers without logs, for the controller benchmarks.

A LocalNetwork carries their messages, and real files hold the metadata log.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from kreplica.common.future import Future
from kreplica.common.messages.controllers import BrokerHeartbeatRequest
from kreplica.runtime.clock import SystemClock
from kreplica.runtime.local_network import LocalEndpoint, LocalNetwork
from kreplica.runtime.scheduler import ThreadWorkers
from kreplica.runtime.storage import FileStorage
from kreplica.sim.machines import BrokerPorts
from tests.support.controller_quorum import CLUSTER_ID, ClusterNode, Setup, setup_of
from tests.support.one_controller import registration

CLIENT_ID = 2_000
PATIENCE = 30  # seconds


class LocalControllers:
    """Nodes 1 to `nodes` under `directory`; the first `controllers` are voters, all are brokers.

    As a context manager it shuts down on exit.
    """

    def __init__(self, directory: Path, controllers: int = 1, nodes: int = 3, **settings: Any) -> None:
        self.network = LocalNetwork()
        self.network.start()
        self.setup: Setup = setup_of(range(1, controllers + 1), **settings)
        self.client: LocalEndpoint = self.network.join(CLIENT_ID)
        self.endpoints: dict[int, LocalEndpoint] = {}
        self.nodes = {node_id: self._start(node_id, directory) for node_id in range(1, nodes + 1)}
        for node in self.nodes.values():
            assert node.lifecycle is not None
            node.lifecycle.unfenced.result(timeout=PATIENCE)

    def _start(self, node_id: int, directory: Path) -> ClusterNode:
        endpoint = self.endpoints[node_id] = self.network.join(node_id)
        path = directory / f"node-{node_id}"
        path.mkdir(parents=True)
        ports = BrokerPorts(
            broker_id=node_id,
            broker_epoch=1,
            directories=[str(path)],
            storage=FileStorage(),
            clock=SystemClock(),
            scheduler=endpoint,
            transport=endpoint,
            workers=ThreadWorkers(),
            random=random.Random(node_id),
            loop=endpoint.loop,
        )
        node = ClusterNode(ports, self.setup, is_broker=True, life=1)
        self.network.register(endpoint, node.handle)
        node.startup()
        return node

    def __enter__(self) -> LocalControllers:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        for endpoint in self.endpoints.values():
            self.network.leave(endpoint)
        self.network.shutdown()
        for node in self.nodes.values():
            node.log.close()

    @property
    def active(self) -> int:
        """The id of the active controller's node; waits until there is one."""
        self.wait_for(lambda: self._active() is not None)
        found = self._active()
        assert found is not None
        return found

    def _active(self) -> int | None:
        return next(
            (
                node_id
                for node_id, node in self.nodes.items()
                if self.endpoints[node_id].is_alive and node.controller and node.controller.is_active
            ),
            None,
        )

    def ask(self, request: Any) -> Any:
        """Send a request to the active controller and return the response."""
        return self.send(request).result(timeout=PATIENCE)

    def add_broker(self, broker_id: int) -> None:
        """Register and unfence a broker that sends nothing afterwards."""
        response = self.ask(registration(broker_id, cluster_id=CLUSTER_ID))
        heartbeat = BrokerHeartbeatRequest(
            broker_id=broker_id,  # type: ignore[arg-type]
            broker_epoch=response.broker_epoch,
            current_metadata_offset=response.broker_epoch,
            want_fence=False,
            want_shut_down=False,
        )
        assert not self.ask(heartbeat).is_fenced

    def wait_until_led(self, node_id: int, topic: str, leader: int) -> None:
        """Wait until the node's metadata says that `leader` leads the topic's first partition."""
        loader = self.nodes[node_id].loader

        def is_led() -> bool:
            found = loader.published.topics.get(topic)
            return found is not None and found.partitions[0].leader == leader

        self.wait_for(is_led)

    def send(self, request: Any) -> Future[Any]:
        """Send a request to the active controller."""
        return self.client.send(self.active, request, timeout_ms=PATIENCE * 1_000)

    def kill(self, node_id: int) -> None:
        """Stop the node as kill -9 would, without any cleanup."""
        self.network.leave(self.endpoints[node_id])

    def wait_for(self, condition: Callable[[], bool], timeout: float = PATIENCE) -> None:
        """Wait for the condition, checking it every 0.2 ms."""
        end = time.monotonic() + timeout
        while not condition():
            assert time.monotonic() < end, f"the condition did not hold within {timeout} s"
            time.sleep(0.000_2)

"""SimClient: a client program of a simulated cluster: producer, fetcher and admin on an endpoint of its own.

Thread rule: one thread, as the simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kreplica.client.admin import Admin
from kreplica.client.client_config import ClientConfig
from kreplica.client.client_metadata import ClientMetadata
from kreplica.client.consumer_config import ConsumerConfig
from kreplica.client.fetcher import Fetcher
from kreplica.client.group_consumer import GroupConsumer
from kreplica.client.producer import Producer
from kreplica.common.errors import UnsupportedVersion
from kreplica.common.future import Future, failed
from kreplica.sim.clock import VirtualClock
from kreplica.sim.machines import SimMachines
from kreplica.sim.network import SimEndpoint
from kreplica.sim.scheduler import Incarnation

# A client's request is answered or given up within a second or two of virtual time.
CLIENT_CONFIG = ClientConfig(
    delivery_timeout_ms=1_000,
    request_timeout_ms=300,
    default_api_timeout_ms=1_000,
    retry_backoff_ms=20,
    fetch_max_wait_ms=50,
)
# Sessions, and the rebalances after them, end within a second or two as well.
CONSUMER_CONFIG = ConsumerConfig(
    session_timeout_ms=500,
    heartbeat_interval_ms=50,
    max_poll_interval_ms=2_000,
    auto_commit_interval_ms=100,
    metadata_max_age_ms=500,
)


class SimClient:
    """The client of id `client_id`, which no node has. `nodes()`: whom it may ask; `controllers()`: who may
    be the active controller."""

    def __init__(
        self,
        machines: SimMachines,
        client_id: int,
        nodes: Callable[[], Sequence[int]],
        controllers: Callable[[], Sequence[int]],
        config: ClientConfig = CLIENT_CONFIG,
    ) -> None:
        self.client_id = client_id
        self.clock = VirtualClock(machines.time)
        life = Incarnation(client_id)
        self.endpoint: SimEndpoint = machines.network.join(life)
        machines.network.register(life, _no_handler)
        loop = machines.scheduler.loop(life, "client")
        endpoint, clock = self.endpoint, self.clock
        self.metadata = ClientMetadata(nodes, transport=endpoint, loop=loop, config=config)
        self.fetcher = Fetcher(self.metadata, transport=endpoint, loop=loop, clock=clock, config=config)
        self.producer = Producer(
            self.metadata, nodes, transport=endpoint, loop=loop, clock=clock, config=config
        )
        self.admin = Admin(controllers, transport=endpoint, loop=loop, clock=clock, config=config)
        self.life = life
        self._nodes = nodes
        self._loop = loop
        self._config = config

    def consumer(
        self, group_id: str, topics: Sequence[str], config: ConsumerConfig = CONSUMER_CONFIG
    ) -> GroupConsumer:
        """Another member of the group; it joins with its first poll."""
        return GroupConsumer(
            group_id,
            topics,
            self.metadata,
            self.fetcher,
            self._nodes,
            transport=self.endpoint,
            loop=self._loop,
            clock=self.clock,
            config=config,
            client_config=self._config,
        )


def _no_handler(request: Any) -> Future[Any]:
    return failed(UnsupportedVersion(f"a client is asked {request!r}"))

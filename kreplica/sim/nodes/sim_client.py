"""SimClient: a client of a simulated cluster with producer, fetcher and admin on its own endpoint.

Thread rule: one thread, as the simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kreplica.client.client import Client
from kreplica.client.client_config import ClientConfig, ConsumerConfig
from kreplica.common.errors import UnsupportedVersion
from kreplica.common.future import Future, failed
from kreplica.sim.clock import VirtualClock
from kreplica.sim.machines import SimMachines
from kreplica.sim.network import SimEndpoint
from kreplica.sim.scheduler import Incarnation

# A client's request completes or fails within a second or two of virtual time.
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


class SimClient(Client):
    """The client with the id `client_id`, which no node has.

    `nodes()`: the nodes it may ask; `controllers()`: those that may be the active controller.
    """

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
        super().__init__(
            nodes, controllers, transport=self.endpoint, loop=loop, clock=self.clock, config=config
        )
        self.life = life


def _no_handler(request: Any) -> Future[Any]:
    return failed(UnsupportedVersion(f"a client is asked {request!r}"))

"""SimCluster: brokers, their network and a scripted controller under one virtual clock.

Thread rule: one thread.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from kreplica.common.future import Future
from kreplica.sim.controller import CONTROLLER_ID, ScriptedController
from kreplica.sim.machines import SimMachines
from kreplica.sim.network import LinkConditions, SimEndpoint
from kreplica.sim.node import BrokerPorts, MakeBroker, SimBroker
from kreplica.sim.scheduler import Incarnation

# A client's id, which no broker has.
CLIENT_ID = 2000


class SimCluster(SimMachines):
    """A cluster without brokers; `add_broker` adds them.

    `make_broker(ports, controller)` creates a broker's program. Otherwise as SimMachines.
    """

    def __init__(
        self,
        make_broker: Callable[[BrokerPorts, ScriptedController], Any],
        *,
        seed: int = 1,
        shuffle: bool = True,
        conditions: LinkConditions | None = None,
    ) -> None:
        super().__init__(seed=seed, shuffle=shuffle, conditions=conditions)
        self.controller = ScriptedController()
        self._make_broker: MakeBroker = partial(_call_with, make_broker, self.controller)
        for node_id, handle in ((CONTROLLER_ID, self.controller.handle), (CLIENT_ID, _no_handler)):
            life = Incarnation(node_id)
            endpoint = self.network.join(life)
            self.network.register(life, handle)
        self.client: SimEndpoint = endpoint

    def add_broker(self, broker_id: int) -> SimBroker:
        """Add a machine with an empty disk, without starting it."""
        return self.add_machine(broker_id, self._make_broker, partial(self.controller.register, broker_id))

    def send(self, broker_id: int, request: Any, *, timeout_ms: int) -> Future[Any]:
        """Send a request as a client."""
        return self.client.send(broker_id, request, timeout_ms=timeout_ms)


def _call_with(
    make_broker: Callable[[BrokerPorts, ScriptedController], Any],
    controller: ScriptedController,
    ports: BrokerPorts,
) -> Any:
    return make_broker(ports, controller)


def _no_handler(request: Any) -> Future[Any]:
    raise AssertionError(f"a client is asked {request!r}")

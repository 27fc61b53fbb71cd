"""SimCluster: brokers, the network between them and the controller's word, under one virtual clock.

Everything that happens is an event of `scheduler`; all chance comes from `seed`. Thread rule: one thread.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from kreplica.common.future import Future
from kreplica.common.ports import Random
from kreplica.sim.clock import VirtualTime
from kreplica.sim.controller import CONTROLLER_ID, ScriptedController
from kreplica.sim.network import LinkConditions, Message, SimEndpoint, SimNetwork
from kreplica.sim.node import DIRECTORY, BrokerPorts, MakeBroker, SimBroker
from kreplica.sim.scheduler import NANOSECONDS_PER_MS, Incarnation, SimScheduler
from kreplica.sim.storage import SimStorage

T = TypeVar("T")

# So long a script waits after each line: brokers put some things off for a moment, to do more at once.
SETTLE_MS = 10
# Clients have no broker's id either.
CLIENT_ID = 2000


class SimCluster:
    """A cluster without brokers; `add_broker` makes them.

    `make_broker(ports, controller)` makes a broker's program. `shuffle`: events of one moment come in an
    order of the seed's, else as they were added.
    """

    is_real = False

    def __init__(
        self,
        make_broker: Callable[[BrokerPorts, ScriptedController], Any],
        *,
        seed: int = 1,
        shuffle: bool = True,
        conditions: LinkConditions | None = None,
    ) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.time = VirtualTime()
        self.scheduler = SimScheduler(self.time, self.random, shuffle=shuffle)
        self.scheduler.name = f"seed {seed}, "
        self.network = SimNetwork(self.scheduler, self.random, conditions)
        self.controller = ScriptedController()
        self.brokers: dict[int, SimBroker] = {}
        self._make_broker: MakeBroker = partial(_call_with, make_broker, self.controller)
        for node_id, handle in ((CONTROLLER_ID, self.controller.handle), (CLIENT_ID, _no_handler)):
            life = Incarnation(node_id)
            endpoint = self.network.join(life)
            self.network.register(life, handle)
        self.client: SimEndpoint = endpoint

    def add_broker(self, broker_id: int) -> SimBroker:
        """A new machine with an empty disk; it is not started."""
        broker = self.brokers[broker_id] = SimBroker(
            broker_id,
            self.scheduler,
            self.network,
            self._make_broker,
            partial(self.controller.register, broker_id),
            str(self.seed),
        )
        return broker

    # ---- what a script does -------------------------------------------------------------------------------

    def start(self, broker_id: int) -> None:
        self.brokers[broker_id].start()

    def stop(self, broker_id: int) -> None:
        self.brokers[broker_id].stop()

    def kill(self, broker_id: int) -> None:
        self.brokers[broker_id].kill()

    def power_cut(self, broker_id: int, chance: Random | None = None, *, keeps_names: bool = False) -> None:
        self.brokers[broker_id].power_cut(chance, keeps_names=keeps_names)

    def pause(self, broker_id: int) -> None:
        self.brokers[broker_id].pause()

    def resume(self, broker_id: int) -> None:
        self.brokers[broker_id].resume()

    def program(self, broker_id: int) -> Any:
        """The broker that runs there; None if it does not."""
        return self.brokers[broker_id].program

    def send(self, broker_id: int, request: Any, *, timeout_ms: int) -> Future[Any]:
        """Send a client's request."""
        return self.client.send(broker_id, request, timeout_ms=timeout_ms)

    def do(self, action: Callable[[], T]) -> T:
        """Call a broker's method, as something outside of it would."""
        return action()

    def set_disk_fault(self, broker_id: int, fault: Callable[[str, str], None] | None) -> None:
        """Ask `fault(operation, path)` before each change of the broker's disk; it raises what is refused."""
        self.brokers[broker_id].disk_fault = fault

    def disk(self, broker_id: int) -> tuple[SimStorage, str]:
        """The broker's files, and the directory that its logs are in; it may be down."""
        return self.brokers[broker_id].storage, DIRECTORY

    def now_ms(self) -> int:
        """The monotonic time."""
        return self.time.now_ns // NANOSECONDS_PER_MS

    def settle(self) -> None:
        """Let everything happen that needs little time."""
        self.scheduler.run_due()
        self.scheduler.run_for(SETTLE_MS)

    def pass_time(self, duration_ms: int) -> None:
        self.scheduler.run_for(duration_ms)

    def jump_date(self, broker_id: int, by_ms: int) -> None:
        self.brokers[broker_id].clock.jump_date(by_ms)

    def hold(self, which: Callable[[Any], bool]) -> Callable[[], None]:
        """Hold such messages from now on; the answer is a function that ends this."""
        return self.network.hold(which)

    def held(self) -> list[Message]:
        """The messages that are held, in the order they were sent."""
        return [message for message in self.network.held if message.is_alive]

    def release(self, message: Message) -> None:
        """Let a held message arrive."""
        self.network.release(message)

    def drop(self, message: Message) -> None:
        """Lose a held message."""
        self.network.drop(message)

    def cut(self, sender: int, receiver: int, *, both_ways: bool = True) -> None:
        self.network.cut(sender, receiver, both_ways=both_ways)

    def heal(self, sender: int, receiver: int) -> None:
        self.network.heal(sender, receiver)

    def heal_all(self) -> None:
        self.network.heal_all()

    def disconnect(self, node_id: int) -> None:
        self.network.disconnect(node_id)

    def close(self) -> None:
        """Nothing here lives on by itself."""


def _call_with(
    make_broker: Callable[[BrokerPorts, ScriptedController], Any],
    controller: ScriptedController,
    ports: BrokerPorts,
) -> Any:
    return make_broker(ports, controller)


def _no_handler(request: Any) -> Future[Any]:
    raise AssertionError(f"a client is asked {request!r}")

"""SimMachines: machines and their network under one virtual clock, with all the faults they may have.

Everything that happens is an event of `scheduler`; all chance comes from `seed`. Thread rule: one thread.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, TypeVar

from kreplica.common.ports import NANOSECONDS_PER_MS, Random
from kreplica.sim.clock import VirtualTime
from kreplica.sim.network import LinkConditions, Message, SimNetwork
from kreplica.sim.node import DIRECTORY, MakeBroker, SimBroker
from kreplica.sim.scheduler import SimScheduler
from kreplica.sim.storage import SimStorage

T = TypeVar("T")

# How long a script waits after each line, because brokers postpone some work to batch it.
SETTLE_MS = 10


class SimMachines:
    """A set of machines, empty at first; `add_machine` adds them.

    `shuffle`: events of one moment run in a seeded random order, else in the order they were added.
    """

    is_real = False

    def __init__(
        self, *, seed: int = 1, shuffle: bool = True, conditions: LinkConditions | None = None
    ) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.time = VirtualTime()
        self.scheduler = SimScheduler(self.time, self.random, shuffle=shuffle)
        self.scheduler.name = f"seed {seed}, "
        self.network = SimNetwork(self.scheduler, self.random, conditions)
        self.brokers: dict[int, SimBroker] = {}
        # How often a machine was started or has ended.
        self.upheavals = 0

    def add_machine(self, node_id: int, make_program: MakeBroker, register: Callable[[], int]) -> SimBroker:
        """Add a machine with an empty disk, without starting it."""
        machine = self.brokers[node_id] = SimBroker(
            node_id, self.scheduler, self.network, make_program, register, str(self.seed)
        )
        return machine

    @property
    def events(self) -> int:
        """The number of messages delivered, faults, and operations of clients and disks."""
        return self.scheduler.events + sum(machine.disk_operations for machine in self.brokers.values())

    # ---- actions of a script ------------------------------------------------------------------------------

    def start(self, broker_id: int) -> None:
        self.upheavals += 1
        self.brokers[broker_id].start()

    def stop(self, broker_id: int) -> None:
        self.upheavals += 1
        self.brokers[broker_id].stop()

    def kill(self, broker_id: int) -> None:
        self.upheavals += 1
        self.brokers[broker_id].kill()

    def power_cut(self, broker_id: int, chance: Random | None = None, *, keeps_names: bool = False) -> None:
        self.upheavals += 1
        self.brokers[broker_id].power_cut(chance, keeps_names=keeps_names)

    def pause(self, broker_id: int) -> None:
        self.brokers[broker_id].pause()

    def resume(self, broker_id: int) -> None:
        self.brokers[broker_id].resume()

    def program(self, broker_id: int) -> Any:
        """Return the broker that runs there, None if none does."""
        return self.brokers[broker_id].program

    def do(self, action: Callable[[], T]) -> T:
        """Call a broker's method from outside."""
        return action()

    def set_disk_fault(self, broker_id: int, fault: Callable[[str, str], None] | None) -> None:
        """Call `fault(operation, path)` before each change of the broker's disk; it raises to refuse the
        change."""
        self.brokers[broker_id].disk_fault = fault

    def disk(self, broker_id: int) -> tuple[SimStorage, str]:
        """Return the broker's files and the directory of its logs; it may be down."""
        return self.brokers[broker_id].storage, DIRECTORY

    def now_ms(self) -> int:
        """Return the monotonic time."""
        return self.time.now_ns // NANOSECONDS_PER_MS

    def settle(self) -> None:
        """Run everything that needs little time."""
        self.scheduler.run_due()
        self.scheduler.run_for(SETTLE_MS)

    def pass_time(self, duration_ms: int) -> None:
        self.scheduler.run_for(duration_ms)

    def jump_date(self, broker_id: int, by_ms: int) -> None:
        self.brokers[broker_id].clock.jump_date(by_ms)

    def hold(self, which: Callable[[Any], bool]) -> Callable[[], None]:
        """Hold matching messages from now on; returns a function that ends this."""
        return self.network.hold(which)

    def held(self) -> list[Message]:
        """Return the held messages, in the order they were sent."""
        return [message for message in self.network.held if message.is_alive]

    def release(self, message: Message) -> None:
        """Deliver a held message."""
        self.network.release(message)

    def drop(self, message: Message) -> None:
        """Drop a held message."""
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
        """Do nothing: a simulation owns no outside resources."""

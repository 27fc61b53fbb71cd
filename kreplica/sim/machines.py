"""SimMachines: simulated machines and their network under one virtual clock, with all their faults.

A SimBroker is one machine, and the program on it can be killed, lose power, be stalled and slowed. It keeps
its disk and its clock; each start is a new life of the program with its own ports. A kill first revokes the
ports, so that a dead life cannot act: its events never run, its messages vanish, and its storage is a copy
that is no longer read. Everything that happens is an event of `scheduler`; all chance comes from `seed`.
Thread rule: one thread.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from kreplica.common.dataclass import dataclass
from kreplica.common.errors import KafkaStorageError
from kreplica.common.future import Future
from kreplica.common.ports import (
    NANOSECONDS_PER_MS,
    Clock,
    Loop,
    Random,
    Scheduler,
    Storage,
    Transport,
    Workers,
)
from kreplica.sim.network import LinkConditions, Message, SimNetwork
from kreplica.sim.scheduler import Incarnation, SimScheduler, VirtualClock, VirtualTime
from kreplica.sim.storage import SimStorage

DIRECTORY = "/data"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerPorts:
    """What one life of a broker gets from its machine. `loop(name)` creates a Loop."""

    broker_id: int
    broker_epoch: int
    directories: Sequence[str]
    storage: Storage
    clock: Clock
    scheduler: Scheduler
    transport: Transport
    workers: Workers
    random: Random
    loop: Callable[[str], Loop]


class BrokerProgram(Protocol):
    """The program that runs on a machine."""

    def startup(self) -> None: ...

    def shutdown(self) -> None: ...

    def handle(self, request: Any) -> Future[Any]: ...


MakeBroker = Callable[[BrokerPorts], Any]


class SimWorkers:
    """Implements `kreplica.common.ports.Workers`: runs one task after the other."""

    def run(self, tasks: Sequence[Callable[[], None]]) -> None:
        for task in tasks:
            task()


class SimBroker:
    """A machine and its broker; `register()` returns the broker epoch of each new life."""

    def __init__(
        self,
        broker_id: int,
        scheduler: SimScheduler,
        network: SimNetwork,
        make_broker: MakeBroker,
        register: Callable[[], int],
        seed: str,
    ) -> None:
        self.broker_id = broker_id
        self.clock = VirtualClock(scheduler.time)
        self.storage = _empty_disk()
        # The time for which each flush blocks the broker.
        self.flush_us = 0
        # The number of disk changes and flushes in all of its lives.
        self.disk_operations = 0
        # Called before each disk change and flush; it raises to refuse the operation.
        self.disk_fault: Callable[[str, str], None] | None = None
        # Whether its last life ended by a power cut.
        self.lost_power = False
        self.was_stopped = False
        self.life = Incarnation(broker_id, 0)
        self.life.is_alive = False
        self.program: Any = None
        self._scheduler = scheduler
        self._network = network
        self._make_broker = make_broker
        self._register = register
        # Each machine draws its own random numbers, so that they do not affect other machines.
        self._random = random.Random(f"{seed}/{broker_id}")

    @property
    def is_alive(self) -> bool:
        return self.life.is_alive

    @property
    def is_paused(self) -> bool:
        return self.life.is_paused

    # ---- life and death -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the broker on the current disk. Raises what its startup raises; it is dead then."""
        assert not self.is_alive, f"broker {self.broker_id} runs"
        life = self.life = Incarnation(self.broker_id, self.life.number + 1)
        endpoint = self._network.join(life)
        self.storage.before = self._before_disk
        ports = BrokerPorts(
            broker_id=self.broker_id,
            broker_epoch=self._register(),
            directories=[DIRECTORY],
            storage=self.storage,
            clock=self.clock,
            scheduler=self._scheduler.of(life),
            transport=endpoint,
            workers=SimWorkers(),
            random=self._random,
            loop=lambda name: self._scheduler.loop(life, name),
        )
        try:
            self.program = self._make_broker(ports)
            handle_frame = getattr(self.program, "handle_frame", None)
            self._network.register(life, partial(answer, self.program), handle_frame)
            self.program.startup()
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """Shut the broker down cleanly; the immediate part of that has completed on return."""
        self.program.shutdown()
        self._end(silently=False)
        self.was_stopped = True
        self.storage = self.storage.after_kill()

    def kill(self) -> None:
        """End the broker as kill -9 does: what was written stays, flushed or not."""
        self._end(silently=False)
        self.storage = self.storage.after_kill()

    def power_cut(self, chance: Random | None = None, *, keeps_names: bool = False) -> None:
        """Cut the machine's power: lose what was not flushed, or with `chance` a part of it; see
        SimStorage.after_power_cut."""
        self._end(silently=True)
        self.storage = self.storage.after_power_cut(chance, keeps_names=keeps_names)

    def wipe(self) -> None:
        """Give the machine, which is down, an empty disk."""
        assert not self.is_alive, f"broker {self.broker_id} runs"
        self.storage = _empty_disk()

    def _end(self, *, silently: bool) -> None:
        self.life.is_alive = False
        self.lost_power, self.was_stopped = silently, False
        self.storage.before = _revoked
        self._network.leave(self.life, silently=silently)
        self.program = None

    # ---- stalls and faults --------------------------------------------------------------------------------

    def pause(self) -> None:
        """Stall the broker, as a long garbage collection would: its loops stop, and messages wait."""
        self._scheduler.pause(self.life)

    def resume(self) -> None:
        self._scheduler.resume(self.life)

    def _before_disk(self, operation: str, path: str) -> None:
        self.disk_operations += 1
        if self.disk_fault is not None:
            self.disk_fault(operation, path)
        if self.flush_us and operation in ("flush", "sync_directory"):
            life = self.life
            life.busy_until_ns = max(life.busy_until_ns, self._scheduler.time.now_ns) + self.flush_us * 1000


def answer(program: BrokerProgram, request: Any) -> Future[Any]:
    """Let the broker answer a Kafka request, or carry out one of sim.client's own."""
    run = getattr(request, "run", None)
    made: Future[Any] = program.handle(request) if run is None else run(program)
    return made


def _empty_disk() -> SimStorage:
    storage = SimStorage()
    storage.make_directory(DIRECTORY)
    storage.sync_directory("/")
    return storage


def _revoked(operation: str, path: str) -> None:
    raise KafkaStorageError(f"{operation} of {path} by a broker that was killed")


T = TypeVar("T")

# How long a script waits after each line, because brokers postpone some work to batch it.
SETTLE_MS = 10


class SimMachines:
    """A set of machines, empty at first; `add_machine` adds them.

    `shuffle`: events of one moment run in a seeded random order, else in the order they were added.
    """

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

    def shut_down(self, node_id: int, timeout_ms: int) -> Future[None]:
        """Shut the node down cleanly: it hands over first. Done when it has stopped; it may be killed
        earlier."""
        life = self.brokers[node_id].life
        stopped: Future[None] = Future()

        def stop() -> None:
            try:
                self.stop(node_id)
            except KafkaStorageError:
                # Its files could not be closed cleanly; the process ends anyway.
                self.kill(node_id)
            stopped.set_result(None)

        def left(_: Future[None]) -> None:
            # Stop it in an event of its own, not within one of the node's.
            self.scheduler.add("fault", f"node {node_id} stops", stop, incarnation=life)

        self.program(node_id).leave(timeout_ms).add_done_callback(left)
        return stopped

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

    def heal(self, sender: int, receiver: int, *, both_ways: bool = True) -> None:
        self.network.heal(sender, receiver, both_ways=both_ways)

    def heal_all(self) -> None:
        self.network.heal_all()

    def disconnect(self, node_id: int) -> None:
        self.network.disconnect(node_id)

    def close(self) -> None:
        """Do nothing: a simulation owns no outside resources."""

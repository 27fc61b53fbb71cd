"""The backend of a transcript with real threads and files, and a clock that may be set forward.

It waits for events, and never sleeps.
"""

from __future__ import annotations

import random
import time
from functools import partial
from pathlib import Path

from kreplica.controller.manual_controller import CONTROLLER_ID
from kreplica.replica.replica_config import ReplicaConfig
from kreplica.runtime.local_network import LocalNetwork
from kreplica.runtime.scheduler import ThreadWorkers
from kreplica.sim.cluster import CLIENT_ID, broker_factory
from kreplica.sim.controller import ScriptedController
from kreplica.sim.machines import SETTLE_MS, BrokerPorts, answer
from kreplica.sim.transcript.runner import Transcript, replay
from tests.support.breakable_storage import BreakableStorage

# Only a broken network makes a wait this long.
PATIENCE = 30
# Below the 500 ms that a fetch waits, so that followers fetch as often as in real time.
STEP_MS = 250


class SharedTime:
    """The machine's monotonic clock plus the time that scripts have skipped."""

    ahead_ns = 0

    def now_ns(self):
        return time.monotonic_ns() + self.ahead_ns


class ShiftedClock:
    """Implements the Clock port for one broker."""

    def __init__(self, shared):
        self._shared = shared
        self._date_ms = time.time_ns() // 1_000_000 - shared.now_ns() // 1_000_000

    def monotonic_ns(self):
        return self._shared.now_ns()

    def time_ms(self):
        return self._shared.now_ns() // 1_000_000 + self._date_ms

    def jump_date(self, by_ms):
        self._date_ms += by_ms


class RealMessage:
    """A message that a gate holds."""

    def __init__(self, sender_id, receiver, body, is_request, deliver):
        self.sender_id = sender_id
        self.receiver = receiver
        self.body = body
        self.is_request = is_request
        self.deliver = deliver
        self.name = type(body).__name__.removesuffix("Request").removesuffix("Response")


class RealBroker:
    """A broker's directory, disk and clock, and while it runs its endpoint and program."""

    def __init__(self, directory, storage, clock):
        self.directory = directory
        self.storage = storage
        self.clock = clock
        self.endpoint = None
        self.program = None


class RealCluster:
    """Offers what scripts use of kreplica.sim.cluster.SimCluster, in the directory `root`."""

    def __init__(self, root: Path, settings):
        self.controller = ScriptedController()
        self.brokers = {}
        self.failures = []
        self._root = root
        self._make_broker = broker_factory(ReplicaConfig.parse(settings))
        self._time = SharedTime()
        self._network = LocalNetwork(ShiftedClock(self._time), lambda *failure: self.failures.append(failure))
        self._network.gate = self._gate
        self._holds = []
        self._held = []
        self._cut = set()
        self._paused = {}
        controller = self._network.join(CONTROLLER_ID)
        self._network.register(controller, self.controller.handle)
        self._client = self._network.join(CLIENT_ID)
        self._network.start()

    # ---- brokers

    def add_broker(self, broker_id):
        directory = self._root / f"broker-{broker_id}"
        directory.mkdir()
        aside = self._root / f"disk-{broker_id}"
        aside.mkdir()
        storage = BreakableStorage(directory, aside)
        self.brokers[broker_id] = RealBroker(directory, storage, ShiftedClock(self._time))

    def start(self, broker_id):
        broker = self.brokers[broker_id]
        endpoint = broker.endpoint = self._network.join(broker_id)
        ports = BrokerPorts(
            broker_id=broker_id,
            broker_epoch=self.controller.register(broker_id),
            directories=[str(broker.directory)],
            storage=broker.storage,
            clock=broker.clock,
            scheduler=endpoint,
            transport=endpoint,
            workers=ThreadWorkers(),
            random=random.Random(broker_id),
            loop=endpoint.loop,
        )
        broker.program = self._make_broker(ports, self.controller)
        self._network.register(endpoint, partial(answer, broker.program))
        try:
            broker.program.startup()
        except BaseException:
            self.kill(broker_id)
            raise

    def stop(self, broker_id):
        self.do(self.brokers[broker_id].program.shutdown)
        self._leave(broker_id)

    def kill(self, broker_id):
        program = self.brokers[broker_id].program
        self._leave(broker_id)
        program.log_manager.abandon()

    def _leave(self, broker_id):
        broker = self.brokers[broker_id]
        self._network.leave(broker.endpoint)
        broker.endpoint = broker.program = None
        self._held = [each for each in self._held if broker_id not in (each.sender_id, each.receiver)]

    def power_cut(self, broker_id, *, keeps_names=False):
        self.kill(broker_id)
        self.brokers[broker_id].storage.cut_power(keeps_names=keeps_names)

    def set_disk_fault(self, broker_id, fault):
        self.brokers[broker_id].storage.before = fault

    def disk(self, broker_id):
        broker = self.brokers[broker_id]
        return broker.storage, str(broker.directory)

    def pause(self, broker_id):
        self._paused[broker_id] = self.hold(lambda message: broker_id == message.receiver)

    def resume(self, broker_id):
        self._paused.pop(broker_id)()
        for message in self.held():
            if message.receiver == broker_id and not any(holds(message) for holds in self._holds):
                self.release(message)

    def program(self, broker_id):
        return self.brokers[broker_id].program

    # ---- events -------------------------------------------------------------------------------------------

    def do(self, action):
        with self._network.draining():
            return action()

    def send(self, broker_id, request, *, timeout_ms):
        with self._network.draining():
            return self._client.send(broker_id, request, timeout_ms=timeout_ms)

    def settle(self):
        self._rest()
        self.pass_time(SETTLE_MS)

    def _rest(self):
        assert self._network.wait_until_idle(PATIENCE), "the network does not come to rest"
        assert self.failures == []

    def pass_time(self, duration_ms):
        while duration_ms > 0:
            step_ms = min(duration_ms, STEP_MS)
            duration_ms -= step_ms
            self._time.ahead_ns += step_ms * 1_000_000
            self._network.clock_moved()
            self._rest()

    def jump_date(self, broker_id, by_ms):
        self.brokers[broker_id].clock.jump_date(by_ms)

    def now_ms(self):
        return self._time.now_ns() // 1_000_000

    # ---- messages

    def _gate(self, sender, receiver, body, *, is_request, deliver):
        if (sender, receiver) in self._cut:
            return True
        message = RealMessage(sender, receiver, body, is_request, deliver)
        if any(holds(message) for holds in self._holds):
            self._held.append(message)
            return True
        return False

    def hold(self, which):
        self._holds.append(which)
        return partial(self._holds.remove, which)

    def held(self):
        return list(self._held)

    def release(self, message):
        self._held.remove(message)
        if (message.sender_id, message.receiver) not in self._cut:
            with self._network.draining():
                message.deliver()

    def drop(self, message):
        self._held.remove(message)

    def cut(self, sender, receiver, *, both_ways=True):
        self._cut.add((sender, receiver))
        if both_ways:
            self._cut.add((receiver, sender))

    def heal(self, sender, receiver):
        self._cut -= {(sender, receiver), (receiver, sender)}

    def heal_all(self):
        self._cut.clear()

    def disconnect(self, node_id):
        self._network.disconnect(node_id)

    def close(self):
        for broker_id, broker in self.brokers.items():
            if broker.endpoint is not None:
                self.kill(broker_id)
            broker.storage.close()
        self._network.shutdown()


def replay_for_real(text: str, root: Path) -> str:
    """Return the script with its output on real threads and files."""
    transcript = Transcript(partial(RealCluster, root))
    try:
        return replay(text, transcript.run)
    finally:
        transcript.close()

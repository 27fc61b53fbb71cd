"""A cluster of processes under signals, stock clients at work meanwhile, and what its history says.

Three nodes, three partitions. An idempotent producer and a plain one send numbered values, a consumer reads
all partitions, two others share them as a group. A fault is drawn from the seed: SIGKILL of a partition's
leader, a follower, the active controller, two nodes or all, one that is killed again while it starts, or a
SIGSTOP. After each the cluster is made whole, and must acknowledge again.

At the end nothing that was acknowledged may be missing, no value of the idempotent producer may be there
twice, and all replicas must be byte-equal.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import confluent_kafka as kafka
from confluent_kafka.admin import AdminClient

from kreplica.cli import diff
from kreplica.common.types import TopicPartition
from kreplica.sim.history import Anomaly, Assign, History, Poll, Polled, Send, Sent, check
from tests.support.node_processes import NodeProcesses

TOPIC = "orders"
PARTITIONS = 3
IDEMPOTENT, PLAIN, READER, MEMBERS = "idempotent", "plain", "reader", ("member 1", "member 2")
# A stream of values slow enough that the clients leave the nodes some of the processor.
SEND_INTERVAL_S = 0.002
IN_FLIGHT = 500
ACK_WITHIN_S = 60.0
PAUSE_S = (0.5, 3.0)
COMMON = {"client.id": "kill-loop", "log_level": 0, "topic.metadata.refresh.interval.ms": 2_000}


@dataclass
class Recorder:
    """The history, which several threads add to."""

    history: History = field(default_factory=History)
    lock: threading.Lock = field(default_factory=threading.Lock)
    acknowledged: int = 0
    longest_gap_s: float = 0.0
    last_ack_s: float = field(default_factory=time.monotonic)
    has_ack: threading.Condition = field(default_factory=threading.Condition)

    def add(self, operation: Any) -> None:
        with self.lock:
            self.history.add(operation)

    def acked(self) -> None:
        with self.has_ack:
            now = time.monotonic()
            self.longest_gap_s = max(self.longest_gap_s, now - self.last_ack_s)
            self.last_ack_s = now
            self.acknowledged += 1
            self.has_ack.notify_all()

    def wait_for_acks(self, count: int) -> None:
        """Return once `count` more records were acknowledged."""
        with self.has_ack:
            wanted = self.acknowledged + count
            assert self.has_ack.wait_for(lambda: self.acknowledged >= wanted, ACK_WITHIN_S), "no more acks"


class Client(threading.Thread):
    """One client that works until `stopping` is set; an error that it raises fails the run."""

    def __init__(self, name: str, recorder: Recorder, work: Callable[[Client], None]) -> None:
        super().__init__(name=name, daemon=True)
        self.recorder = recorder
        self.stopping = threading.Event()
        self.error: BaseException | None = None
        self._work = work

    def run(self) -> None:
        try:
            self._work(self)
        except BaseException as error:
            self.error = error
            print(f"{self.name}: {error!r}")

    def end(self) -> None:
        self.stopping.set()
        self.join(ACK_WITHIN_S)
        assert not self.is_alive(), f"{self.name} did not end"
        if self.error is not None:
            raise self.error


# ---- the clients -----------------------------------------------------------------------------------------


def produce(bootstrap: str, *, idempotent: bool) -> Callable[[Client], None]:
    """Send values until the end, each until it is acknowledged."""
    properties = {
        **COMMON,
        "bootstrap.servers": bootstrap,
        "acks": "all",
        "enable.idempotence": idempotent,
        "message.timeout.ms": 0,  # never give one up: what is sent is acknowledged in the end
        "linger.ms": 1,
        # Without sequence numbers, what is sent again would go behind what followed it.
        **({} if idempotent else {"max.in.flight.requests.per.connection": 1}),
    }

    def work(client: Client) -> None:
        producer = kafka.Producer(properties)
        number = 0
        while not client.stopping.wait(SEND_INTERVAL_S):
            if len(producer) < IN_FLIGHT:
                value = f"{client.name}-{number}".encode()
                sent = _acknowledged(client, value)
                producer.produce(TOPIC, value, partition=number % PARTITIONS, on_delivery=sent)
                number += 1
            producer.poll(0)
        left = producer.flush(ACK_WITHIN_S)
        assert not left, f"{left} of {client.name} were not acknowledged"

    return work


def _acknowledged(client: Client, value: bytes) -> Callable[[Any, Any], None]:
    def delivered(error: Any, message: Any) -> None:
        at = TopicPartition(TOPIC, message.partition())
        if error is not None:
            print(f"{client.name}: {value!r} in doubt: {error}")
            client.recorder.add(Send(client.name, "info", [Sent(at, value)]))
            return
        client.recorder.add(Send(client.name, "ok", [Sent(at, value, message.offset())]))
        client.recorder.acked()

    return delivered


def read(bootstrap: str, group: str | None) -> Callable[[Client], None]:
    """Read all partitions, or those that the group gives, until the end."""
    properties = {
        **COMMON,
        "bootstrap.servers": bootstrap,
        "group.id": group or "none",
        "enable.auto.commit": group is not None,
        "auto.commit.interval.ms": 500,
        "auto.offset.reset": "earliest",
        "session.timeout.ms": 6_000,
    }

    def work(client: Client) -> None:
        consumer = kafka.Consumer(properties)
        if group is None:
            consumer.assign([kafka.TopicPartition(TOPIC, index, 0) for index in range(PARTITIONS)])
        else:
            # A new owner of a partition begins at the committed offset, so records read past it come again.
            anew = lambda *_: client.recorder.add(Assign(client.name))  # noqa: E731
            consumer.subscribe([TOPIC], on_assign=anew, on_lost=anew)
        while not client.stopping.is_set():
            records = _polled(consumer, 0.05)
            if records:
                client.recorder.add(Poll(client.name, records))
        consumer.close()

    return work


def _polled(consumer: Any, timeout_s: float) -> list[Polled]:
    first = consumer.poll(timeout_s)
    more = consumer.consume(500, timeout=0) if first is not None else []
    messages = [each for each in (first, *more) if each is not None and each.error() is None]
    return [Polled(TopicPartition(TOPIC, each.partition()), each.offset(), each.value()) for each in messages]


# ---- the run ---------------------------------------------------------------------------------------------


class NodeKills:
    """One run: `faults` of them, drawn from `seed`."""

    def __init__(self, directory: Path, seed: int, *, pause_s: tuple[float, float] = PAUSE_S) -> None:
        self.recorder = Recorder()
        self.nodes = NodeProcesses(directory)
        self.report: list[str] = []
        self._random = random.Random(seed)
        self._pause_s = pause_s
        self._faults: list[Callable[[], str]] = [
            self._kill_leader,
            self._kill_follower,
            self._kill_controller,
            self._kill_two,
            self._kill_all,
            self._kill_while_starting,
            self._pause,
        ]

    def run(self, faults: int) -> list[Anomaly]:
        """The anomalies that the history shows; AssertionError where the cluster does not come back."""
        with self.nodes:
            self._create_topic()
            clients = self._start_clients()
            self.recorder.wait_for_acks(50)
            order: list[Callable[[], str]] = []
            for _ in range(faults):
                order = order or self._random.sample(self._faults, len(self._faults))
                self._one_fault(order.pop())
            for client in clients:
                client.end()
            self.recorder.history.final = self._read_all()
            for node_id in self.nodes.ids:
                assert self.nodes.stop(node_id) == 0
            self._require_equal_replicas()
        return check(self.recorder.history, may_duplicate=_is_plain)

    def _one_fault(self, fault: Callable[[], str]) -> None:
        began, self.recorder.longest_gap_s = time.monotonic(), 0.0
        name = fault()
        self.nodes.start_all()
        self.recorder.wait_for_acks(100)
        gap, took = self.recorder.longest_gap_s, time.monotonic() - began
        self.report.append(f"{name}: {gap:.2f} s without an acknowledgement, whole again after {took:.1f} s")

    def _create_topic(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.nodes.bootstrap, **COMMON})
        from confluent_kafka.admin import NewTopic

        wanted = NewTopic(TOPIC, PARTITIONS, 3, config={"min.insync.replicas": "2"})
        for future in admin.create_topics([wanted]).values():
            future.result()
        self._admin = admin

    def _start_clients(self) -> list[Client]:
        bootstrap = self.nodes.bootstrap
        work: dict[str, Callable[[Client], None]] = {
            IDEMPOTENT: produce(bootstrap, idempotent=True),
            PLAIN: produce(bootstrap, idempotent=False),
            READER: read(bootstrap, None),
            **{name: read(bootstrap, "members") for name in MEMBERS},
        }
        clients = [Client(name, self.recorder, each) for name, each in work.items()]
        for client in clients:
            client.start()
        return clients

    def _read_all(self) -> dict[TopicPartition, list[Polled]]:
        consumer = kafka.Consumer(
            {
                **COMMON,
                "bootstrap.servers": self.nodes.bootstrap,
                "group.id": "all",
                "enable.auto.commit": False,
            }
        )
        at = [kafka.TopicPartition(TOPIC, index, 0) for index in range(PARTITIONS)]
        ends = {each.partition: consumer.get_watermark_offsets(each, timeout=ACK_WITHIN_S)[1] for each in at}
        found: dict[TopicPartition, list[Polled]] = {TopicPartition(TOPIC, index): [] for index in ends}
        consumer.assign(at)
        deadline = time.monotonic() + ACK_WITHIN_S
        while any(ends[each.partition] > _next_offset(records) for each, records in found.items()):
            assert time.monotonic() < deadline, f"only {found} of {ends} could be read"
            for record in _polled(consumer, 0.2):
                found[record.partition].append(record)
        consumer.close()
        return found

    def _require_equal_replicas(self) -> None:
        first, *others = (self.nodes.node_directory(node_id) for node_id in self.nodes.ids)
        for other in others:
            for index in range(PARTITIONS):
                pairs = diff.pairs(first / f"{TOPIC}-{index}", other / f"{TOPIC}-{index}")
                assert pairs is not None
                assert diff.run(pairs, by_record=False, isolation="log_end", as_json=True) == 0, (
                    f"{pairs} differ"
                )

    # ---- faults -------------------------------------------------------------------------------------------

    def _leader(self) -> int:
        topics = self._admin.list_topics(TOPIC, timeout=ACK_WITHIN_S).topics
        leader = topics[TOPIC].partitions[self._random.randrange(PARTITIONS)].leader
        return leader if leader in self.nodes.ids else 1

    def _kill_leader(self) -> str:
        leader = self._leader()
        self.nodes.kill(leader)
        self._let_pass()
        return f"kill leader {leader}"

    def _kill_follower(self) -> str:
        leader = self._leader()
        follower = self._random.choice([node_id for node_id in self.nodes.ids if node_id != leader])
        self.nodes.kill(follower)
        self._let_pass()
        return f"kill follower {follower}"

    def _kill_controller(self) -> str:
        controller = self._admin.list_topics(TOPIC, timeout=ACK_WITHIN_S).controller_id
        controller = controller if controller in self.nodes.ids else 1
        self.nodes.kill(controller)
        self._let_pass()
        return f"kill controller {controller}"

    def _kill_two(self) -> str:
        two = self._random.sample(self.nodes.ids, 2)
        self.nodes.kill(*two)
        self._let_pass(0.3)
        return f"kill {two}"

    def _kill_all(self) -> str:
        self.nodes.kill(*self.nodes.ids)
        return "kill all"

    def _kill_while_starting(self) -> str:
        node_id = self._random.choice(self.nodes.ids)
        for _ in range(2):
            self.nodes.kill(node_id)
            self.nodes.start(node_id, wait=False)
            self._let_pass(0.6)
        self.nodes.kill(node_id)
        return f"kill {node_id} while it starts"

    def _pause(self) -> str:
        node_id = self._random.choice(self.nodes.ids)
        seconds = self._random.uniform(*self._pause_s)
        self.nodes.pause(node_id)
        time.sleep(seconds)  # what the fault is: a process that stands still for so long
        self.nodes.resume(node_id)
        return f"pause {node_id} for {seconds:.1f} s"

    def _let_pass(self, most_s: float = 1.5) -> None:
        # How long the cluster has to do without a node: a part of the fault.
        time.sleep(self._random.uniform(0.0, most_s))


def _next_offset(records: list[Polled]) -> int:
    return records[-1].offset + 1 if records else 0


def _is_plain(value: Hashable) -> bool:
    return isinstance(value, bytes) and value.startswith(PLAIN.encode())

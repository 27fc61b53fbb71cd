"""Story: a readable account of a random run.

Each line has its time and an action on a node, disk or link, or of a client, or a result: a response, or a
decision of the controller. It does not change the run. Thread rule: one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from kreplica.common.future import Future
from kreplica.common.leader_and_isr import NO_LEADER, LeaderAndIsr
from kreplica.common.ports import NANOSECONDS_PER_MS
from kreplica.common.types import TopicPartition
from kreplica.metadata.cluster_metadata import ClusterMetadata
from kreplica.metadata.registrations import BrokerRegistration, PartitionRegistration
from kreplica.sim import client
from kreplica.sim.brokers.leader_changes import ControllersWill
from kreplica.sim.cluster import SimCluster
from kreplica.sim.machines import SimMachines
from kreplica.sim.network import LinkConditions
from kreplica.sim.nodes.node_cluster import NodeCluster, SimClient
from kreplica.sim.quorum.sim_quorum import SimQuorum
from kreplica.sim.scheduler import SimEvent

# The methods that the story records for a node, and their lines.
LIVES: Mapping[str, str] = {
    "start": "start {0}",
    "kill": "kill {0}",
    "power_cut": "power-cut {0}",
    "pause": "pause {0}",
    "resume": "resume {0}",
    "jump_date": "date {0} {1:+} ms",
}


class Story:
    """Records the story of `cluster`, in which nothing has happened yet."""

    def __init__(self, cluster: SimMachines) -> None:
        self.lines: list[str] = []
        self._cluster = cluster
        self._disks: dict[int, tuple[bool, bool, int]] = {}
        for name, text in LIVES.items():
            self._note_before(cluster, name, text.format)
        network = cluster.network
        self._note_before(network, "cut", _cut)
        self._note_before(network, "heal", "heal {0} {1}".format)
        self._note_before(network, "set_conditions", _conditions)
        checks = cluster.scheduler.after_event

        def after(event: SimEvent) -> None:
            if checks is not None:
                checks(event)
            self._look()

        cluster.scheduler.after_event = after

    def note(self, text: str) -> None:
        """Add a line."""
        self.lines.append(f"{self._cluster.time.now_ns / NANOSECONDS_PER_MS:9.1f} ms  {text}")

    # ---- internals ----------------------------------------------------------------------------------------

    def _note_before(self, owner: Any, name: str, text: Callable[..., str]) -> None:
        does = getattr(owner, name)

        def note_and_do(*arguments: Any, **named: Any) -> Any:
            self.note(text(*arguments, **named))
            return does(*arguments, **named)

        setattr(owner, name, note_and_do)

    def _with_result(self, future: Future[Any], who: str, text: Callable[[Any], str]) -> Future[Any]:
        def done(answer: Future[Any]) -> None:
            error = answer.exception()
            self.note(f"{who}: {text(answer.result()) if error is None else type(error).__name__}")

        future.add_done_callback(done)
        return future

    def _look(self) -> None:
        for node_id, machine in self._cluster.brokers.items():
            now = machine.storage.full, machine.disk_fault is not None, machine.flush_us
            before = self._disks.get(node_id, (False, False, 0))
            if now != before:
                self._disks[node_id] = now
                self.note(f"the disk of {node_id}: {_disk(*now)}")


def _cut(sender: int, receiver: int, *, both_ways: bool = True) -> str:
    return f"cut {sender} {receiver}" if both_ways else f"cut {sender}->{receiver}"


def _conditions(conditions: LinkConditions) -> str:
    low, high = conditions.delay_us
    order = "" if conditions.in_order else ", in any order"
    chances = f"{conditions.loss:.1%} lost, {conditions.duplication:.1%} twice"
    return f"all links: {low}-{high} us, {chances}{order}"


def _disk(is_full: bool, is_broken: bool, flush_us: int) -> str:
    state = "full" if is_full else "broken" if is_broken else "well"
    return f"{state}, {flush_us} us a flush" if flush_us else state


class BrokerStory(Story):
    """Records the story of brokers, and of the decisions of `will`."""

    def __init__(self, cluster: SimCluster, will: ControllersWill) -> None:
        super().__init__(cluster)
        self._controller = cluster.controller
        self._known: dict[TopicPartition, LeaderAndIsr] = dict(self._controller.partitions)
        self._send = cluster.send
        cluster.send = self._sent  # type: ignore[method-assign]
        self._note_before(will, "deafen", "{0} hears of no decision".format)
        self._will, self._hear = will, will.hear
        will.hear = self._heard  # type: ignore[method-assign]

    def _sent(self, broker_id: int, request: Any, *, timeout_ms: int) -> Future[Any]:
        answer = self._send(broker_id, request, timeout_ms=timeout_ms)
        if not isinstance(request, client.ProduceRequest):
            return answer
        values = ",".join(value.lstrip(b"0").decode() or "0" for value in request.values) or "a marker"
        acks = "all" if request.acks == -1 else request.acks
        self.note(f"produce {values} to {request.topic_partition} at {broker_id}, acks={acks}")
        return self._with_result(answer, values, _produced)

    def _heard(self, broker_id: int, *, in_order: bool) -> None:
        if self._will.is_deaf(broker_id):
            what = "each decision" if in_order else "how everything stands"
            self.note(f"{broker_id} hears of {what}")
        self._hear(broker_id, in_order=in_order)

    def _look(self) -> None:
        for at, state in self._controller.partitions.items():
            if state is not self._known.get(at):
                self._known[at] = state
                isr = ",".join(map(str, state.isr))
                self.note(f"controller: {at}: leader {state.leader} in epoch {state.leader_epoch}, ISR {isr}")
        super()._look()


def _produced(made: client.Produced) -> str:
    if made.error is not None:
        return type(made.error).__name__
    return "sent" if made.base_offset < 0 else f"acknowledged at offset {made.base_offset}"


class CommittedNews:
    """Describes each change of the committed metadata, as known by the node that has applied the most."""

    def __init__(self, cluster: NodeCluster) -> None:
        self._cluster = cluster
        self._known: ClusterMetadata | None = None
        self._partitions: dict[TopicPartition, PartitionRegistration] = {}
        self._brokers: dict[int, BrokerRegistration] = {}
        self._active: tuple[int, int] | None = None
        self._news: list[str] = []

    def take(self) -> list[str]:
        """Return the lines since the last call."""
        news, self._news = self._news, []
        return news

    def look(self) -> None:
        """Look for changes after an event."""
        if not self._cluster.live():
            return
        metadata = self._cluster.metadata()
        if metadata is not self._known:
            self._known = metadata
            self._news += self._of_brokers(metadata)
            self._news += self._of_partitions(metadata)
        active = self._cluster.controller
        node = None if active is None else self._cluster.node(active)
        if active is not None and node is not None:
            now_active = active, node.raft.leader_and_epoch.epoch
            if self._active is not None and now_active != self._active:
                self._news.append(f"{active} is the active controller, in epoch {now_active[1]}")
            self._active = now_active

    def _of_brokers(self, metadata: ClusterMetadata) -> Iterator[str]:
        for broker_id, now in sorted(metadata.brokers.items()):
            before = self._brokers.get(broker_id)
            if before is not None and before.epoch != now.epoch:
                yield f"controller: broker {broker_id} is registered anew"
            if before is not None and before.fenced != now.fenced:
                yield f"controller: broker {broker_id} is {'fenced' if now.fenced else 'no longer fenced'}"
        self._brokers = dict(metadata.brokers)

    def _of_partitions(self, metadata: ClusterMetadata) -> Iterator[str]:
        now = {at: registration for at, _, registration in metadata.partitions()}
        for at, registration in sorted(now.items()):
            if self._partitions.get(at) != registration:
                yield f"controller: {at}: {stands(registration)}"
        for at in sorted(self._partitions.keys() - now.keys()):
            yield f"controller: {at} is no more"
        self._partitions = now


def stands(registration: PartitionRegistration) -> str:
    """Describe a partition's state by the controller."""
    leader = "no leader" if registration.leader == NO_LEADER else f"leader {registration.leader}"
    parts = [f"{leader} in epoch {registration.leader_epoch}", f"ISR {_listed(registration.isr)}"]
    if registration.elr:
        parts.append(f"ELR {_listed(registration.elr)}")
    if registration.adding_replicas:
        parts.append(f"adding {_listed(registration.adding_replicas)}")
    if registration.removing_replicas:
        parts.append(f"removing {_listed(registration.removing_replicas)}")
    return f"{', '.join(parts)} (partition epoch {registration.partition_epoch})"


def _listed(brokers: Sequence[int]) -> str:
    return ",".join(str(broker) for broker in sorted(brokers)) or "none"


ADMIN = ("create_topic", "delete_topic", "create_partitions", "alter_config", "reassign", "elect_leader")


class NodeStory(Story):
    """Records the story of whole nodes, and of what their metadata log commits."""

    def __init__(self, cluster: NodeCluster) -> None:
        super().__init__(cluster)
        self._news = CommittedNews(cluster)
        self._note_before(cluster, "shut_down", "stop {0} in order".format)
        self._note_before(cluster, "disconnect", "disconnect {0}".format)
        for each in cluster.clients:
            self._note_client(each)

    # ---- actions ------------------------------------------------------------------------------------------

    def _note_client(self, client: SimClient) -> None:
        who = f"client {client.client_id}"
        send, fetch = client.producer.send, client.fetcher.fetch

        def sent(at: TopicPartition, records: Any, *, acks: int = -1, **named: Any) -> Future[Any]:
            values = ",".join(bytes(record).decode() for record in records)
            self.note(f"{who}: produce {values} to {at}, acks={'all' if acks == -1 else acks}")
            return self._with_result(send(at, records, acks=acks, **named), f"{who}: {values}", _appended)

        def fetched(at: TopicPartition, offset: int, **named: Any) -> Future[Any]:
            self.note(f"{who}: read {at} from {offset}")
            return self._with_result(fetch(at, offset, **named), f"{who}: {at}", _read)

        client.producer.send = sent  # type: ignore[method-assign, assignment]
        client.fetcher.fetch = fetched  # type: ignore[method-assign]
        for name in ADMIN:
            self._note_admin(client, who, name)

    def _note_admin(self, client: SimClient, who: str, name: str) -> None:
        does, what = getattr(client.admin, name), name.replace("_", " ")

        def ask(*arguments: Any, **named: Any) -> Future[Any]:
            words = [str(each) for each in arguments] + [f"{key}={value}" for key, value in named.items()]
            self.note(f"{who}: {what} {', '.join(words)}")
            return self._with_result(
                does(*arguments, **named), f"{who}: {what} {arguments[0]}", lambda _: "done"
            )

        setattr(client.admin, name, ask)

    # ---- results ------------------------------------------------------------------------------------------

    def _look(self) -> None:
        self._news.look()
        for line in self._news.take():
            self.note(line)
        super()._look()


class QuorumStory(Story):
    """Records the story of a quorum alone: also appends and elections."""

    def __init__(self, cluster: SimQuorum) -> None:
        super().__init__(cluster)
        self._quorum = cluster
        self._led: tuple[int, int] | None = None
        self._note_before(
            cluster, "append", lambda node_id, *values: f"append {','.join(values)} at {node_id}"
        )
        self._note_before(cluster, "wipe", lambda node_id, _=None: f"wipe {node_id}")

    def _look(self) -> None:
        leader = self._quorum.leader
        led = None if leader is None else (leader, self._quorum.client(leader).quorum.epoch)
        if led is not None and led != self._led:
            self._led = led
            self.note(f"{led[0]} leads epoch {led[1]}")
        super()._look()


def _appended(made: Any) -> str:
    return "sent" if made.base_offset < 0 else f"acknowledged at offset {made.base_offset}"


def _read(fetched: Any) -> str:
    records = [record for batch in fetched.batches() if not batch.is_control for record in batch]
    return " ".join(f"{each.offset}={bytes(each.value).decode()}" for each in records) or "nothing"

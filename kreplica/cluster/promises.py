"""Promises: records what a cluster has acknowledged, and verifies its invariants.

The invariants are numbered as in docs/SIMULATOR.md. They are verified in a settled cluster: one that has just
lost a leader, or whose followers lag, does not meet all of them. Thread rule: `note` may be called by any
thread; no lock is needed, since it sets one dictionary item.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

from kreplica.broker.node import Node
from kreplica.client.producer import AppendResult
from kreplica.common.errors import CorruptMessage, DamagedLog
from kreplica.common.future import Future
from kreplica.common.types import TopicPartition
from kreplica.controller.topic_settings import ElectionSettings, settings_by
from kreplica.log.unified_log import UnifiedLog
from kreplica.metadata.cluster_metadata import ClusterMetadata
from kreplica.metadata.registrations import PartitionRegistration
from kreplica.replica.partition import Partition

# How long, in seconds, a cluster whose nodes run and are connected may take to settle.
SETTLE_TIMEOUT = 20.0
NO_EPOCHS: Mapping[TopicPartition, int] = {}


class BrokenPromise(AssertionError):
    """A cluster violated an invariant."""


class Promises:
    """The appends that one cluster has acknowledged with acks=all.

    An unclean election that was allowed may lose them, so it makes the partition's promises void.
    """

    def __init__(self) -> None:
        self._acknowledged: dict[TopicPartition, int] = {}
        # The leader epochs in which the last of these appends may have been made, or later ones.
        self._leader_epochs: dict[TopicPartition, int] = {}

    def void(self, topic_partition: TopicPartition) -> None:
        """Forget the appends to a partition: an unclean election may have lost them."""
        self._acknowledged.pop(topic_partition, None)
        self._leader_epochs.pop(topic_partition, None)

    def void_where_lost(self, metadata: ClusterMetadata, defaults: ElectionSettings) -> None:
        """Forget the appends to the partitions that allow unclean elections and had an election since.

        `defaults`: the settings of topics that have none of their own.
        """
        for at, epoch in list(self._leader_epochs.items()):
            now = metadata.partition(at)
            is_allowed = settings_by(metadata.configs, at.topic, defaults).unclean_leader_election_enable
            if is_allowed and now is not None and now.leader_epoch > epoch:
                self.void(at)

    def note(
        self, future: Future[AppendResult], leader_epochs: Mapping[TopicPartition, int] = NO_EPOCHS
    ) -> None:
        """Record a finished append with acks=all. `leader_epochs`: as they were when it was sent."""
        if future.cancelled() or future.exception() is not None:
            return
        for info in future.result().batches:
            at = TopicPartition(info.topic, info.partition)
            self._acknowledged[at] = max(self._acknowledged.get(at, 0), info.last_offset + 1)
            if at in leader_epochs:
                self._leader_epochs[at] = leader_epochs[at]

    def problems(self, metadata: ClusterMetadata, nodes: Mapping[int, Node]) -> list[str]:
        """Return the violated invariants of a cluster whose running nodes are `nodes`."""
        found: list[str] = []
        for at, _, registration in metadata.partitions():
            replicas = _replicas_of(at, registration, nodes)
            found += _of_controller(at, registration, {b for b, r in metadata.brokers.items() if r.fenced})
            found += _of_leader(at, registration, replicas, self._acknowledged.get(at, 0))
            found += _of_logs(at, replicas)
        return found + list(_of_metadata(nodes))


def _replicas_of(
    at: TopicPartition, registration: PartitionRegistration, nodes: Mapping[int, Node]
) -> dict[int, Partition]:
    found: dict[int, Partition] = {}
    for broker_id in registration.replicas:
        node = nodes.get(broker_id)
        if node is not None and node.broker is not None:
            partition = node.broker.replica_manager.partitions.get(at)
            if partition is not None and partition.log is not None:
                found[broker_id] = partition
    return found


def _of_metadata(nodes: Mapping[int, Node]) -> Iterator[str]:
    """9: a node's metadata is a past state of the others' metadata; in the end all are equal."""
    known = {node_id: node.loader.applied for node_id, node in nodes.items()}
    if len(set(known.values())) > 1:
        yield f"nodes have different metadata: {known}"


def _of_controller(
    at: TopicPartition, registration: PartitionRegistration, fenced: set[int]
) -> Iterator[str]:
    """3, 12: the leader is in the ISR; ISR and ELR contain only replicas; no fenced broker is in the ISR."""
    isr, elr, replicas = set(registration.isr), set(registration.elr), set(registration.replicas)
    if registration.leader >= 0 and registration.leader not in isr:
        yield f"{at}: leader {registration.leader} is not in sync: {registration.isr}"
    if not isr | elr <= replicas or isr & elr:
        yield f"{at}: ISR {isr} and ELR {elr} of replicas {replicas}"
    if isr & fenced and isr != {registration.leader}:
        yield f"{at}: fenced brokers {isr & fenced} are in the ISR"


def _of_leader(
    at: TopicPartition, registration: PartitionRegistration, replicas: dict[int, Partition], acknowledged: int
) -> Iterator[str]:
    """4, 7, 10: the leader has all acknowledged records, and in-sync replicas all committed ones."""
    leader = replicas.get(registration.leader)
    if leader is None or not leader.is_leader:
        alive = [broker_id for broker_id in registration.isr if broker_id in replicas]
        if alive:
            yield f"{at}: no leader, though {alive} are in sync"
        return
    mark = leader.high_watermark
    if mark < acknowledged:
        yield f"{at}: acknowledged up to {acknowledged}, but the leader's high watermark is {mark}"
    for broker_id in registration.isr:
        follower = replicas.get(broker_id)
        if follower is not None and follower.local_log.log_end_offset < mark:
            end = follower.local_log.log_end_offset
            yield f"{at}: in-sync broker {broker_id} ends at {end}, below the high watermark {mark}"
        elif follower is not None and follower.high_watermark != mark:
            yield f"{at}: broker {broker_id} has the high watermark {follower.high_watermark}, not {mark}"


def _of_logs(at: TopicPartition, replicas: dict[int, Partition]) -> Iterator[str]:
    """8: two replicas are equal up to the lower of their high watermarks."""
    items = sorted(replicas.items())
    for (one, first), (other, second) in pairwise(items):
        start = max(first.local_log.log_start_offset, second.local_log.log_start_offset)
        stop = min(first.high_watermark, second.high_watermark)
        try:
            if start < stop and not _are_equal(first.local_log, second.local_log, start, stop):
                yield f"{at}: brokers {one} and {other} differ within [{start}, {stop})"
        except (CorruptMessage, DamagedLog) as error:
            # Reading makes the damage known; the replica then takes the range from another one.
            yield f"{at}: a replica of brokers {one} and {other} is damaged: {error}"


def _are_equal(first: UnifiedLog, second: UnifiedLog, start: int, stop: int) -> bool:
    if first.config.compact or second.config.compact:
        return True  # each replica compacts at its own times
    return _records(first, start, stop) == _records(second, start, stop)


def _records(log: UnifiedLog, start: int, stop: int) -> list[tuple[int, int, bytes]]:
    return [(batch.base_offset, batch.leader_epoch, bytes(batch)) for batch in log.batches(start, stop)]

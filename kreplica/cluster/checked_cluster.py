"""CheckedCluster: a cluster that can be held to its promises, for tests.

It notes what was acknowledged, and `check` looks whether everything that a client or another replica relies
on holds. The invariants have the numbers that docs/SIMULATOR.md gives them; in a simulation they are checked
after every event, here once the cluster has come to rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from kreplica.cluster.cluster import Cluster
from kreplica.common.errors import RequestTimedOut
from kreplica.common.future import Future
from kreplica.common.types import TopicPartition
from kreplica.log.unified_log import UnifiedLog
from kreplica.metadata.registrations import PartitionRegistration
from kreplica.replica.partition import Partition

# How long a cluster whose nodes run and are joined may take until all is well.
SETTLE_TIMEOUT = 20.0


class BrokenPromise(AssertionError):
    """What a cluster must never do, it did."""


class CheckedCluster(Cluster):
    """See the module."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._acknowledged: dict[TopicPartition, int] = {}
        super().__init__(*arguments, **named)

    def append(self, topic: str, partition: Any, records: Any = None, **options: Any) -> Future[Any]:
        """As Cluster.append; what is acknowledged by all is noted."""
        future: Future[Any] = super().append(topic, partition, records, **options)
        if options.get("acks", "all") in ("all", -1):
            future.add_done_callback(self._note)
        return future

    def _note(self, future: Future[Any]) -> None:
        if future.cancelled() or future.exception() is not None:
            return
        result = future.result()
        for info in result if not hasattr(result, "topic") else (result,):
            at = TopicPartition(info.topic, info.partition)
            self._acknowledged[at] = max(self._acknowledged.get(at, 0), info.last_offset + 1)

    def check(self, timeout: float | None = None) -> None:
        """Resume and join the nodes that run, let them come to rest, and look at everything.

        Nodes that are dead stay so. Raises BrokenPromise where it is not well within `timeout` seconds (by
        default SETTLE_TIMEOUT).
        """
        if self.failures:
            raise BrokenPromise(f"tasks of nodes failed: {self.failures}")
        self.heal()
        for node_id in self.nodes:
            if self._nodes.local(node_id).is_paused:
                self.resume(node_id)
        if not self._nodes.has_quorum():
            return  # nothing can settle
        problems: list[str] = []

        def is_well() -> bool:
            problems[:] = self._problems()
            return not problems

        try:
            self._wait(is_well, SETTLE_TIMEOUT if timeout is None else timeout, "the cluster does not settle")
        except RequestTimedOut:
            raise BrokenPromise("\n".join(problems)) from None

    # ---- what must hold -----------------------------------------------------------------------------------

    def _problems(self) -> list[str]:
        metadata = self._nodes.newest_metadata()
        found: list[str] = []
        for at, _, registration in metadata.partitions():
            replicas = self._replicas_of(at, registration)
            found += _of_controller(at, registration, {b for b, r in metadata.brokers.items() if r.fenced})
            found += _of_leader(at, registration, replicas, self._acknowledged.get(at, 0))
            found += _of_logs(at, replicas)
        return found + list(self._of_metadata())

    def _replicas_of(self, at: TopicPartition, registration: PartitionRegistration) -> dict[int, Partition]:
        nodes = {broker_id: self._nodes.node(broker_id) for broker_id in registration.replicas}
        found: dict[int, Partition] = {}
        for broker_id, node in nodes.items():
            if node is not None and node.broker is not None:
                partition = node.broker.replica_manager.partitions.get(at)
                if partition is not None and partition.log is not None:
                    found[broker_id] = partition
        return found

    def _of_metadata(self) -> Iterator[str]:
        """9: what a node knows is a past of what the others know; all know the same in the end."""
        known = {node.config.node_id: node.loader.applied for node in self._nodes.live()}
        if len(set(known.values())) > 1:
            yield f"nodes know different metadata: {known}"


def _of_controller(
    at: TopicPartition, registration: PartitionRegistration, fenced: set[int]
) -> Iterator[str]:
    """3, 12: the leader is in sync; who is in sync or eligible is a replica; no fenced broker is in sync."""
    isr, elr, replicas = set(registration.isr), set(registration.elr), set(registration.replicas)
    if registration.leader >= 0 and registration.leader not in isr:
        yield f"{at}: leader {registration.leader} is not in sync: {registration.isr}"
    if not isr | elr <= replicas or isr & elr:
        yield f"{at}: ISR {isr} and ELR {elr} of replicas {replicas}"
    if isr & fenced and isr != {registration.leader}:
        yield f"{at}: fenced brokers {isr & fenced} are in sync"


def _of_leader(
    at: TopicPartition, registration: PartitionRegistration, replicas: dict[int, Partition], acknowledged: int
) -> Iterator[str]:
    """4, 7, 10: the leader has all that was acknowledged, and who is in sync all that is committed."""
    leader = replicas.get(registration.leader)
    if leader is None or not leader.is_leader:
        alive = [broker_id for broker_id in registration.isr if broker_id in replicas]
        if alive:
            yield f"{at}: nobody leads, though {alive} are in sync"
        return
    mark = leader.high_watermark
    if mark < acknowledged:
        yield f"{at}: acknowledged up to {acknowledged}, committed at the leader up to {mark}"
    for broker_id in registration.isr:
        follower = replicas.get(broker_id)
        if follower is not None and follower.local_log.log_end_offset < mark:
            end = follower.local_log.log_end_offset
            yield f"{at}: broker {broker_id} is in sync, ends at {end}, and {mark} are committed"
        elif follower is not None and follower.high_watermark != mark:
            yield f"{at}: broker {broker_id} knows {follower.high_watermark} to be committed, not {mark}"


def _of_logs(at: TopicPartition, replicas: dict[int, Partition]) -> Iterator[str]:
    """8: two replicas are the same up to the lower of their high watermarks."""
    items = sorted(replicas.items())
    for (one, first), (other, second) in pairwise(items):
        start = max(first.local_log.log_start_offset, second.local_log.log_start_offset)
        stop = min(first.high_watermark, second.high_watermark)
        if start < stop and not _are_equal(first.local_log, second.local_log, start, stop):
            yield f"{at}: brokers {one} and {other} differ within [{start}, {stop})"


def _are_equal(first: UnifiedLog, second: UnifiedLog, start: int, stop: int) -> bool:
    if first.config.compact or second.config.compact:
        return True  # what was compacted when is each replica's own affair
    return _records(first, start, stop) == _records(second, start, stop)


def _records(log: UnifiedLog, start: int, stop: int) -> list[tuple[int, int, bytes]]:
    return [(batch.base_offset, batch.leader_epoch, bytes(batch)) for batch in log.batches(start, stop)]

"""Invariants about leaders and followers: 13 and 15 of docs/SIMULATOR.md. No state; one thread."""

from __future__ import annotations

from typing import ClassVar

from kreplica.common.leader_and_isr import NO_LEADER
from kreplica.sim.invariants.partition_view import PartitionView
from kreplica.sim.invariants.replica_view import ReplicaView
from kreplica.sim.invariants.violation import InvariantViolated


class OneFetcher:
    """13. A leader fetches its partition from no broker; a follower fetches only from its leader."""

    name: ClassVar[str] = "OneFetcher"

    def check(self, partition: PartitionView) -> None:
        for replica in partition.changed:
            if not replica.is_running or replica.state is None:
                continue
            fetchers = replica.program.replica_manager.fetchers
            at = partition.topic_partition
            if at in replica.program.replica_manager.untaken:
                # It should lead, but its full disk has no room to record that.
                continue
            if any(at in fetcher.failed for fetcher in fetchers):
                continue
            found = [fetcher.leader.leader_id for fetcher in fetchers if fetcher.state_of(at) is not None]
            follows = not replica.is_leader and replica.leader not in (NO_LEADER, replica.broker_id)
            # If recovery stopped at rot, it fetches only what is damaged until that is repaired.
            follows = follows and (replica.log is None or replica.log.stopped_at is None)
            decided = partition.decided
            if not found and decided is not None and replica.leader_epoch < decided.leader_epoch:
                # Its leader answered that the epoch is over; it will learn of the next one.
                continue
            if found != ([replica.leader] if follows else []):
                raise InvariantViolated(self.name, f"{replica} fetches from {found}; {partition}")


class NeverBack:
    """15. A replica's high watermark and leader epoch never go back while its broker lives. No life begins
    with a high watermark below one that was in the checkpoint (KAFKA-1647).

    Exceptions: an unclean election, a power cut that brought back what is now truncated, and a follower that
    has dropped everything to start again above its end.
    """

    name: ClassVar[str] = "NeverBack"

    def check(self, partition: PartitionView) -> None:
        for replica in partition.changed:
            if not replica.is_running or replica.log is None:
                continue
            if replica.leader_epoch < replica.former_epoch:
                facts = f"{replica} was in epoch {replica.former_epoch}; {partition}"
                raise InvariantViolated(self.name, facts)
            went_back = replica.high_watermark < replica.former_high_watermark
            if went_back and not _may_go_back(partition, replica):
                facts = f"the HW of {replica} was {replica.former_high_watermark}; {partition}"
                raise InvariantViolated(self.name, facts)
            self._check_start(partition, replica)

    def _check_start(self, partition: PartitionView, replica: ReplicaView) -> None:
        began_with, replica.began_with = replica.began_with, None
        if began_with is not None:
            if began_with < replica.kept_mark and not _may_go_back(partition, replica):
                facts = f"{replica} begins below {replica.kept_mark}, with which it began before; {partition}"
                raise InvariantViolated(self.name, facts)
            if replica.is_from_checkpoint:
                replica.kept_mark = began_with
        replica.kept_mark = min(replica.kept_mark, replica.high_watermark)


def _may_go_back(partition: PartitionView, replica: ReplicaView) -> bool:
    is_empty = replica.log_start == replica.log_end
    if replica.log_start == replica.high_watermark and (
        is_empty or replica.log_start != replica.former_log_start
    ):
        return True
    leader = partition.leader
    # A leader knows no epochs of what it has deleted: a follower that asks where to truncate may get too high
    # an offset, and starts again at the start of the leader's log.
    is_behind = leader is not None and replica.log_end <= leader.log_start
    return replica.high_watermark >= replica.excused_from or (replica.is_excused and is_behind)

"""What one event may decide about a partition, one thing after the other."""

from __future__ import annotations

from kreplica.common.leader_and_isr import NO_LEADER, LeaderRecoveryState
from kreplica.controller.partition_change_builder import PartitionChangeBuilder
from kreplica.metadata.registrations import MIGRATING_DIRECTORY, PartitionRegistration


def test_the_last_leader_stays_known_where_it_is_elected_and_lost_in_one_event() -> None:
    # KIP-966: nobody else could ever be elected.
    leaderless = PartitionRegistration(
        replicas=(2, 1),
        directories=(MIGRATING_DIRECTORY, MIGRATING_DIRECTORY),
        isr=(),
        removing_replicas=(),
        adding_replicas=(),
        elr=(),
        last_known_elr=(2,),
        leader=NO_LEADER,
        leader_recovery_state=LeaderRecoveryState.RECOVERED,
        leader_epoch=1,
        partition_epoch=3,
    )
    change = PartitionChangeBuilder(leaderless)
    change.elect(2, (2,), unclean=True, min_isr=1)
    change.set_isr((), min_isr=1)
    change.set_leader(NO_LEADER)
    assert change.registration().last_known_elr == (2,)

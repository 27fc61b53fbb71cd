"""What one event may decide about a partition, one thing after the other."""

from __future__ import annotations

from kreplica.common.leader_and_isr import NO_LEADER, LeaderRecoveryState
from kreplica.controller.partition_change_builder import PartitionChangeBuilder
from kreplica.metadata.registrations import MIGRATING_DIRECTORY, PartitionRegistration


def test_the_last_leader_stays_known_where_it_is_elected_and_lost_in_one_event() -> None:
    # KIP-966: no other replica could ever be elected.
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


def test_the_last_one_in_sync_stays_known_where_there_was_no_leader() -> None:
    # 2 led and died while 3, the only one in sync, was down; both came back after unclean ends, one by one.
    leaderless = PartitionRegistration(
        replicas=(1, 3, 2),
        directories=(MIGRATING_DIRECTORY,) * 3,
        isr=(3,),
        removing_replicas=(),
        adding_replicas=(),
        elr=(2,),
        last_known_elr=(),
        leader=NO_LEADER,
        leader_recovery_state=LeaderRecoveryState.RECOVERED,
        leader_epoch=2,
        partition_epoch=3,
    )
    first = PartitionChangeBuilder(leaderless)
    first.set_isr((), min_isr=2, unclean_shutdown={3})
    assert (first.registration().elr, first.registration().last_known_elr) == ((2,), (3,))
    second = PartitionChangeBuilder(first.registration())
    second.set_isr((), min_isr=2, unclean_shutdown={2})
    assert (second.registration().elr, second.registration().last_known_elr) == ((), (3,))

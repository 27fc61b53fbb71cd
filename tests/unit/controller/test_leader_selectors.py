"""The selectors: which replica leads next, and why no replica can."""

from __future__ import annotations

import pytest

from kreplica.common.errors import ElectionNotNeeded, NoReplicaOnline, StateChangeFailed
from kreplica.common.leader_and_isr import NO_LEADER, LeaderRecoveryState
from kreplica.controller.leader_selectors import (
    ControlledShutdownLeaderSelector,
    HandoverLeaderSelector,
    LeaderSelection,
    OfflinePartitionLeaderSelector,
    PreferredReplicaPartitionLeaderSelector,
    ReassignedPartitionLeaderSelector,
)
from kreplica.metadata.records import FeatureLevelRecord, PartitionChangeRecord
from tests.support.controllers import ControllerStage


def stage_with(
    *,
    replicas: tuple[int, ...] = (0, 1, 2),
    live: set[int],
    leader: int = NO_LEADER,
    isr: tuple[int, ...] = (),
    elr: tuple[int, ...] = (),
    last_known_elr: tuple[int, ...] = (),
    unclean: bool = False,
) -> ControllerStage:
    """A stage with a partition in the given state, as the metadata log may have it, all brokers alive."""
    stage = ControllerStage(range(4))
    enabled = str(unclean).lower()
    stage.create("orders", replicas, unclean_leader_election_enable=enabled, min_insync_replicas="2")
    change = PartitionChangeRecord(
        partition_id=0,
        topic_id=stage.partition("orders").topic_id,
        isr=isr,
        leader=leader,
        eligible_leader_replicas=elr,
        last_known_elr=last_known_elr,
    )
    stage.context.replay(change, 2, len(stage.log), stage.partition("orders"))
    stage.context.set_brokers(set(live), set())
    return stage


def offline(stage: ControllerStage, **options: bool) -> LeaderSelection:
    return OfflinePartitionLeaderSelector(stage.context, **options).select_leader(stage.partition("orders"))


# ---- the four cases of the ZooKeeper-era controller -------------------------------------------------------


def test_case_1_the_first_live_replica_in_sync_leads_and_the_live_ones_stay_in_sync() -> None:
    stage = stage_with(replicas=(2, 0, 1), live={0, 1}, isr=(1, 0, 2))
    assert offline(stage) == LeaderSelection(0, (1, 0))


def test_case_2_no_replica_in_sync_is_alive_and_unclean_election_is_off() -> None:
    stage = stage_with(live={1, 2}, isr=(0,))
    with pytest.raises(NoReplicaOnline, match="unclean leader election is disabled"):
        offline(stage)


def test_case_3_unclean_election_takes_the_first_live_replica() -> None:
    stage = stage_with(replicas=(0, 2, 1), live={1, 2}, isr=(0,), unclean=True)
    assert offline(stage) == LeaderSelection(2, (2,), unclean=True)


@pytest.mark.parametrize("unclean", [False, True])
def test_case_4_no_replica_is_alive(unclean: bool) -> None:
    stage = stage_with(live={3}, isr=(0,), unclean=unclean)
    with pytest.raises(NoReplicaOnline, match="none of its replicas \\[0, 1, 2\\] is alive"):
        offline(stage)


# ---- today's order ----------------------------------------------------------------------------------------


def test_a_leader_that_is_alive_and_in_sync_stays() -> None:
    stage = stage_with(live={0, 1, 2}, leader=2, isr=(0, 2))
    assert offline(stage) == LeaderSelection(2, (0, 2))


def test_a_replica_in_sync_comes_before_one_that_is_eligible() -> None:
    stage = stage_with(live={0, 1, 2}, isr=(2,), elr=(0, 1))
    assert offline(stage) == LeaderSelection(2, (2,))


def test_without_a_live_replica_in_sync_the_first_eligible_one_leads_alone() -> None:
    stage = stage_with(live={1, 2}, isr=(), elr=(2, 1, 0))
    assert offline(stage) == LeaderSelection(1, (1,))


def test_an_eligible_one_that_is_down_keeps_the_last_leader_from_leading() -> None:
    stage = stage_with(live={1, 2}, isr=(), elr=(0,), last_known_elr=(1,))
    with pytest.raises(NoReplicaOnline):
        offline(stage)


def test_without_an_eligible_replica_the_last_leader_leads_uncleanly() -> None:
    stage = stage_with(live={0, 1, 2}, isr=(), elr=(), last_known_elr=(1,))
    assert offline(stage) == LeaderSelection(1, (1,), unclean=True)


def test_always_unclean_elects_what_the_topic_would_not() -> None:
    stage = stage_with(live={2}, isr=(0,))
    assert offline(stage, always_unclean=True) == LeaderSelection(2, (2,), unclean=True)


def test_an_unclean_leader_recovers_and_clears_the_elr() -> None:
    stage = ControllerStage()
    stage.create("orders", (0, 1), min_insync_replicas="2", unclean_leader_election_enable="true")
    stage.set_isr("orders", 0)
    assert stage.state("orders").elr == (1,)
    stage.machines.broker_change.on_unclean_shutdown(1)
    stage.fence(0)
    state = stage.state("orders")
    assert (state.leader, state.isr, state.elr, state.last_known_elr) == (1, (1,), (), ())
    assert state.leader_recovery_state is LeaderRecoveryState.RECOVERING


def test_without_the_feature_the_last_one_in_sync_stays_in_the_isr() -> None:
    stage = ControllerStage()
    with stage.machines.batch.collected():
        record = FeatureLevelRecord(name="eligible.leader.replicas.version", feature_level=0)
        stage.machines.batch.add_record(record, 0)
        record = FeatureLevelRecord(name="metadata.version", feature_level=20)
        stage.machines.batch.add_record(record, 0)
    stage.create("orders", (0, 1), min_insync_replicas="2")
    stage.set_isr("orders", 0)
    assert stage.state("orders").elr == ()
    stage.fence(0)
    assert (stage.state("orders").leader, stage.state("orders").isr) == (NO_LEADER, (0,))
    stage.unfence(0)
    assert stage.state("orders").leader == 0


# ---- the others -------------------------------------------------------------------------------------------


def test_preferred() -> None:
    stage = stage_with(live={0, 1, 2}, leader=1, isr=(1, 0))
    selector = PreferredReplicaPartitionLeaderSelector(stage.context)
    assert selector.select_leader(stage.partition("orders")) == LeaderSelection(0, (1, 0))


def test_preferred_leads_already() -> None:
    stage = stage_with(live={0, 1, 2}, leader=0, isr=(1, 0))
    with pytest.raises(ElectionNotNeeded):
        PreferredReplicaPartitionLeaderSelector(stage.context).select_leader(stage.partition("orders"))


@pytest.mark.parametrize(("live", "isr"), [({1, 2}, (0, 1, 2)), ({0, 1, 2}, (1, 2))])
def test_preferred_is_not_there(live: set[int], isr: tuple[int, ...]) -> None:
    stage = stage_with(live=live, leader=1, isr=isr)
    with pytest.raises(StateChangeFailed, match="preferred leader 0 must be alive and in the ISR"):
        PreferredReplicaPartitionLeaderSelector(stage.context).select_leader(stage.partition("orders"))


def test_controlled_shutdown() -> None:
    stage = stage_with(live={1, 2}, leader=0, isr=(0, 2))
    stage.context.set_brokers({1, 2}, {0})
    selector = ControlledShutdownLeaderSelector(stage.context)
    assert selector.select_leader(stage.partition("orders")) == LeaderSelection(2, (2,))


def test_controlled_shutdown_of_the_last_one_in_sync() -> None:
    stage = stage_with(live={1, 2}, leader=0, isr=(0,))
    stage.context.set_brokers({1, 2}, {0})
    with pytest.raises(StateChangeFailed, match="no other replica of the ISR \\[0\\] stays"):
        ControlledShutdownLeaderSelector(stage.context).select_leader(stage.partition("orders"))


def test_reassigned() -> None:
    stage = stage_with(replicas=(0, 1, 2), live={0, 1, 2}, leader=0, isr=(0, 1, 2))
    change = PartitionChangeRecord(
        partition_id=0, topic_id=stage.partition("orders").topic_id, removing_replicas=(0,)
    )
    stage.context.replay(change, 0, len(stage.log), stage.partition("orders"))
    selector = ReassignedPartitionLeaderSelector(stage.context)
    assert selector.select_leader(stage.partition("orders")) == LeaderSelection(1, (0, 1, 2))
    stage.context.set_brokers({0}, set())
    with pytest.raises(NoReplicaOnline, match="none of its new replicas"):
        selector.select_leader(stage.partition("orders"))


# ---- a leader that cannot go on ----------------------------------------------------------------------------


@pytest.mark.parametrize(("leader", "following"), [(2, 0), (0, 1), (1, 2)])
def test_a_handover_goes_round(leader: int, following: int) -> None:
    stage = stage_with(replicas=(2, 0, 1), live={0, 1, 2}, leader=leader, isr=(0, 1, 2))
    selected = HandoverLeaderSelector(stage.context).select_leader(stage.partition("orders"))
    assert selected == LeaderSelection(following, (0, 1, 2))


def test_a_handover_skips_replicas_out_of_sync_or_dead() -> None:
    stage = stage_with(replicas=(2, 0, 1), live={0, 1, 2}, leader=2, isr=(1, 2))
    assert HandoverLeaderSelector(stage.context).select_leader(stage.partition("orders")).leader == 1
    stage = stage_with(replicas=(2, 0, 1), live={0, 2}, leader=2, isr=(1, 2))
    with pytest.raises(StateChangeFailed):
        HandoverLeaderSelector(stage.context).select_leader(stage.partition("orders"))

"""Registrations: made of records, changed, and turned into records again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kreplica.common.leader_and_isr import LeaderRecoveryState
from kreplica.common.types import TopicPartition, Uuid
from kreplica.metadata import records as kinds
from kreplica.metadata.registrations import (
    MIGRATING_DIRECTORY,
    UNASSIGNED_DIRECTORY,
    BrokerRegistration,
    PartitionRegistration,
)

A, B = Uuid(b"a" * 16), Uuid(b"b" * 16)
IDS = st.lists(st.integers(0, 4), unique=True, max_size=4).map(tuple)


@st.composite
def partitions(draw: st.DrawFn) -> PartitionRegistration:
    replicas = draw(IDS)
    size = len(replicas)
    named = st.lists(st.sampled_from([A, B, MIGRATING_DIRECTORY]), min_size=size, max_size=size).map(tuple)
    return PartitionRegistration(
        replicas,
        draw(named),
        *(draw(IDS) for _ in range(5)),
        leader=draw(st.integers(-1, 4)),
        leader_recovery_state=draw(st.sampled_from(LeaderRecoveryState)),
        leader_epoch=draw(st.integers(0, 3)),
        partition_epoch=draw(st.integers(0, 3)),
    )


@given(partitions())
def test_a_partition_is_what_its_record_says(partition: PartitionRegistration) -> None:
    record, version = partition.to_record(A, 7)
    assert PartitionRegistration.of(record) == partition
    assert (record.topic_id, record.partition_id) == (A, 7)
    if partition.elr or partition.last_known_elr:
        assert version == 2
    else:
        assert version == int(set(partition.directories) > set() and record.directories != ())


@given(partitions(), partitions())
def test_a_change_makes_the_one_the_other(old: PartitionRegistration, new: PartitionRegistration) -> None:
    change = old.change_to(new, A, 7)
    if change is None:
        names = set(PartitionRegistration._fields) - {"leader_epoch", "partition_epoch"}
        assert all(getattr(old, name) == getattr(new, name) for name in names)
        assert new.leader_epoch <= old.leader_epoch
        return
    names_leader = new.leader != old.leader or new.leader_epoch > old.leader_epoch
    epochs = (old.leader_epoch + names_leader, old.partition_epoch + 1)
    assert old.merge(change) == new._replace(leader_epoch=epochs[0], partition_epoch=epochs[1])


def test_nothing_to_change_is_no_record() -> None:
    partition = PartitionRegistration.of(
        kinds.PartitionRecord(partition_id=0, topic_id=A, replicas=(1, 2), isr=(1, 2), leader=1)
    )
    assert partition.change_to(partition._replace(partition_epoch=5), A, 0) is None
    named = partition.change_to(partition._replace(leader_epoch=partition.leader_epoch + 1), A, 0)
    assert named == kinds.PartitionChangeRecord(partition_id=0, topic_id=A, leader=1)


def test_a_partition_gives_its_replicas_leader_epochs_and_isr() -> None:
    partition = PartitionRegistration.of(
        kinds.PartitionRecord(
            partition_id=3,
            topic_id=A,
            replicas=(1, 2, 3),
            isr=(2,),
            adding_replicas=(3,),
            removing_replicas=(1,),
            leader=2,
            leader_recovery_state=1,
            leader_epoch=5,
            partition_epoch=9,
            eligible_leader_replicas=(1,),
        )
    )
    state = partition.leader_and_isr(TopicPartition("t", 3), A)
    assert (state.leader, state.leader_epoch, state.partition_epoch) == (2, 5, 9)
    assert (state.replicas, state.isr, state.elr) == ((1, 2, 3), (2,), (1,))
    assert (state.adding_replicas, state.removing_replicas) == ((3,), (1,))
    assert state.leader_recovery_state is LeaderRecoveryState.RECOVERING
    assert partition.is_reassigning
    assert partition.directory(9) == UNASSIGNED_DIRECTORY


def test_a_broker_is_written_in_the_lowest_version_that_can_hold_it() -> None:
    broker = BrokerRegistration(1, 10, A)
    for changed, version in (
        (broker, 0),
        (broker._replace(in_controlled_shutdown=True), 1),
        (broker._replace(is_migrating_zk_broker=True), 2),
        (broker._replace(directories=(A, B)), 3),
        (broker._replace(cordoned_directories=()), 4),
    ):
        record = changed.to_record()
        assert record.version == version
        assert BrokerRegistration.of(record.message) == changed

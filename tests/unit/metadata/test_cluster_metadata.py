"""ClusterMetadata: what records do to it, and the properties that hold whatever comes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kreplica.common.errors import (
    BrokerIdNotRegistered,
    InvalidRecord,
    InvalidTopic,
    InvalidTxnState,
    KreplicaError,
    StaleBrokerEpoch,
    TopicAlreadyExists,
    UnknownMetadataRecord,
    UnknownTopicId,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from kreplica.common.message import TaggedField, replace
from kreplica.common.types import TopicPartition, Uuid
from kreplica.metadata import records as kinds
from kreplica.metadata.cluster_metadata import (
    VERSIONS_TAG,
    Change,
    ClusterMetadata,
    PartitionChange,
    difference,
    restored,
)
from kreplica.metadata.records import RECORDS, MetadataRecord
from kreplica.metadata.registrations import UNKNOWN_VERSION
from kreplica.metadata.serde import ApiMessageAndVersion, decode, encode, in_lowest_version
from tests.support.cluster_records import RECORDS as STRATEGIES
from tests.support.cluster_records import cluster_records

A, B = Uuid(b"a" * 16), Uuid(b"b" * 16)
Records = list[ApiMessageAndVersion[MetadataRecord]]


def cluster(*records: MetadataRecord) -> ClusterMetadata:
    metadata = ClusterMetadata()
    for record in records:
        metadata.replay(record)
    return metadata


def topic(topic_id: Uuid = A, name: str = "t", partitions: int = 1, isr: tuple[int, ...] = (1, 2)) -> Records:
    made = [kinds.TopicRecord(name=name, topic_id=topic_id)]
    for number in range(partitions):
        made.append(
            kinds.PartitionRecord(
                partition_id=number,
                topic_id=topic_id,
                replicas=(1, 2, 3),
                isr=isr,
                leader=1,
                leader_epoch=0,
                partition_epoch=0,
            )
        )
    return made


def broker(broker_id: int = 1, epoch: int = 10, **fields: object) -> kinds.RegisterBrokerRecord:
    return kinds.RegisterBrokerRecord(
        broker_id=broker_id,
        incarnation_id=A,
        broker_epoch=epoch,
        end_points=(),
        features=(),
        rack=None,
        **fields,
    )


def change(**fields: object) -> kinds.PartitionChangeRecord:
    return kinds.PartitionChangeRecord(partition_id=0, topic_id=A, **fields)


# ---- what holds whatever comes ----------------------------------------------------------------------------


def play(metadata: ClusterMetadata, records: Records, offset: int = 0) -> None:
    """Replay all, from this offset on; what does not fit has to change nothing."""
    for at, (record, version) in enumerate(records, offset):
        before = metadata.copy()
        try:
            metadata.replay(record, version, at)
        except KreplicaError:
            assert metadata == before


def test_every_kind_has_its_rule_and_its_strategy() -> None:
    assert set(STRATEGIES) == set(RECORDS.values())


def test_a_delta_shows_the_partitions_of_a_topic_that_was_made_again_with_the_same_id() -> None:
    made = cluster(*topic(partitions=2))
    made.take_delta()
    for record in (kinds.RemoveTopicRecord(topic_id=A), *topic(partitions=1)):
        made.replay(record)
    changed = made.take_delta()
    assert [(each.topic_partition.partition, each.new) for each in changed.partitions] == [(1, None)]


@settings(deadline=None)
@given(st.lists(cluster_records(), max_size=60))
def test_a_snapshot_replays_to_the_same_state(records: Records) -> None:
    metadata = ClusterMetadata()
    play(metadata, records)
    if metadata.in_transaction:
        metadata.replay(kinds.AbortTransactionRecord())
    snapshot = list(metadata.snapshot_records())
    # As the snapshot file has them: every record in its version has all that is set.
    written = [decode(encode(record, version)) for record, version in snapshot]
    again = restored(written)
    assert again == metadata
    assert list(again.snapshot_records()) == snapshot


@settings(deadline=None)
@given(st.lists(cluster_records(), max_size=30), st.lists(cluster_records(), max_size=30))
def test_a_copy_keeps_its_content_and_a_delta_has_the_difference(first: Records, second: Records) -> None:
    metadata = ClusterMetadata()
    play(metadata, [each for each in first if not isinstance(each.message, kinds.BeginTransactionRecord)])
    metadata.take_delta()
    before, known = metadata.copy(), list(metadata.snapshot_records())
    play(metadata, second, 50)
    if metadata.in_transaction:
        metadata.replay(kinds.EndTransactionRecord())
    after = metadata.copy()
    delta = metadata.take_delta()
    assert list(before.snapshot_records()) == known
    assert delta.is_empty == (before == after)
    same = {each for each in after.versions if value_at(before, *each) == value_at(after, *each)}
    assert set(delta.reverted) == {each for each in same if before.version(*each) != after.version(*each)}
    assert {each.topic_id for each in delta.topics_created} == set(after.topic_names) - set(
        before.topic_names
    )
    assert {each.topic_id for each in delta.topics_deleted} == set(before.topic_names) - set(
        after.topic_names
    )
    old = {(topic_id, name): each for name, topic_id, each in before.partitions()}
    new = {(topic_id, name): each for name, topic_id, each in after.partitions()}
    changed = {(each.topic_id, each.topic_partition): (each.old, each.new) for each in delta.partitions}
    assert changed == {
        key: (old.get(key), new.get(key)) for key in old.keys() | new.keys() if old.get(key) != new.get(key)
    }
    for table, changes in {"brokers": delta.brokers, "configs": delta.configs, **delta.others}.items():
        was, now = getattr(before, table), getattr(after, table)
        assert changes == {
            key: Change(was.get(key), now.get(key))
            for key in was.keys() | now.keys()
            if was.get(key) != now.get(key)
        }
    assert metadata.take_delta().is_empty


def value_at(metadata: ClusterMetadata, table: str, key: object) -> object:
    return getattr(metadata, table).get(key)


# ---- versions ---------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(cluster_records(), max_size=60))
def test_a_snapshot_has_the_versions_that_the_log_gave(records: Records) -> None:
    metadata = ClusterMetadata()
    play(metadata, records, offset=100)
    if metadata.in_transaction:
        metadata.replay(kinds.AbortTransactionRecord())
    snapshot = list(metadata.snapshot_records())
    again = restored(decode(encode(record, version)) for record, version in snapshot)
    assert again == metadata
    # A snapshot of Kafka's has the same records without the notes.
    kafkas = restored(each for each in snapshot if not isinstance(each[0], kinds.NoOpRecord))
    assert not any(version != UNKNOWN_VERSION for version in kafkas.versions.values())
    assert not difference(metadata, kafkas).partitions


def test_a_version_is_the_offset_of_the_last_change() -> None:
    metadata = ClusterMetadata()
    config = kinds.ConfigRecord(resource_type=2, resource_name="t", name="retention.ms", value="1")
    for offset, record in enumerate([*topic(), config, config, change(leader=2), broker()], 10):
        metadata.replay(record, 0, offset)
    assert metadata.topics["t"].version == 10
    assert metadata.topics["t"].partitions[0].version == 14
    assert metadata.version("configs", (2, "t")) == 12  # the second record changed nothing
    assert metadata.version("brokers", 1) == 15
    assert metadata.version("brokers", 2) == UNKNOWN_VERSION
    metadata.replay(kinds.RemoveTopicRecord(topic_id=A), 0, 20)
    assert metadata.version("configs", (2, "t")) == UNKNOWN_VERSION


def test_a_value_that_changed_and_changed_back_has_a_new_version() -> None:
    metadata = cluster(broker())
    metadata.take_delta()
    before = metadata.copy()
    metadata.replay(kinds.UnfenceBrokerRecord(id=1, epoch=10), 0, 5)
    metadata.replay(kinds.FenceBrokerRecord(id=1, epoch=10), 0, 6)
    for delta in (metadata.take_delta(), difference(before, metadata)):
        assert (delta.brokers, list(delta.reverted)) == ({}, [("brokers", 1)])
    assert metadata.version("brokers", 1) == 6


def test_an_aborted_transaction_leaves_versions_and_steps_as_they_were() -> None:
    metadata = cluster(broker())
    metadata.record_steps()
    metadata.replay(kinds.UnfenceBrokerRecord(id=1, epoch=10), 0, 5)
    before = metadata.copy()
    metadata.replay(kinds.BeginTransactionRecord(), 0, 6)
    metadata.replay(kinds.FenceBrokerRecord(id=1, epoch=10), 0, 7)
    assert metadata.take_steps() == []
    metadata.replay(kinds.AbortTransactionRecord(), 0, 8)
    assert metadata == before
    assert [(step.table, step.key, step.version) for step in metadata.take_steps()] == [("brokers", 1, 5)]


def test_a_list_of_versions_that_is_cut_short_is_refused() -> None:
    field = TaggedField(VERSIONS_TAG, b"1234567")
    with pytest.raises(InvalidRecord, match="7 bytes, not a multiple of 8"):
        restored([in_lowest_version(kinds.NoOpRecord(unknown_tagged_fields=(field,)))])


# ---- topics and partitions --------------------------------------------------------------------------------


def test_a_named_leader_raises_its_epoch_and_every_change_the_partitions() -> None:
    metadata = cluster(*topic())
    for record, leader, leader_epoch in (
        (change(isr=(1,)), 1, 0),
        (change(leader=1), 1, 1),
        (change(leader=2, isr=(2,)), 2, 2),
        (change(leader=-1), -1, 3),
    ):
        metadata.replay(record)
        partition = metadata.topics["t"].partitions[0]
        assert (partition.leader, partition.leader_epoch) == (leader, leader_epoch)
    assert partition.partition_epoch == 4
    assert partition.isr == (2,)


def test_other_replicas_need_as_many_directories() -> None:
    metadata = cluster(*topic())
    metadata.replay(change(directories=(A, B, A)))
    with pytest.raises(InvalidRecord, match="4 replicas, but 3 directories"):
        metadata.replay(change(replicas=(1, 2, 3, 4)))
    metadata.replay(change(replicas=(4, 1), directories=(B, A)))
    assert metadata.topics["t"].partitions[0].directory(4) == B


def test_a_topic_takes_its_partitions_and_settings_along() -> None:
    config = kinds.ConfigRecord(resource_type=2, resource_name="t", name="retention.ms", value="1")
    metadata = cluster(*topic(), *topic(B, "u"), config)
    metadata.take_delta()
    metadata.replay(kinds.RemoveTopicRecord(topic_id=A))
    assert metadata.topic_by_id(A) is None
    assert metadata.partition(TopicPartition("t", 0)) is None
    assert metadata.configs == {}
    delta = metadata.take_delta()
    assert [each.name for each in delta.topics_deleted] == ["t"]
    assert list(delta.configs) == [(2, "t")]


def test_a_topic_made_anew_under_its_name_is_another() -> None:
    metadata = cluster(*topic())
    metadata.take_delta()
    for record in (kinds.RemoveTopicRecord(topic_id=A), *topic(B)):
        metadata.replay(record)
    delta = metadata.take_delta()
    (deleted,), (created,) = delta.topics_deleted, delta.topics_created
    assert (deleted.name, deleted.topic_id) == ("t", A)
    assert (created.name, created.topic_id) == ("t", B)
    partition = TopicPartition("t", 0)
    assert set(delta.partitions) == {
        PartitionChange(partition, A, deleted.partitions[0], None),
        PartitionChange(partition, B, None, created.partitions[0]),
    }


def test_what_came_and_went_is_no_change() -> None:
    metadata = cluster(*topic(), kinds.RemoveTopicRecord(topic_id=A))
    assert metadata.take_delta().is_empty


def test_the_eligible_leaders_of_a_topic_or_of_all_are_forgotten() -> None:
    metadata = cluster(*topic(partitions=2), *topic(B, "u"), change(eligible_leader_replicas=(3,)))
    metadata.replay(replace(change(last_known_elr=(2,)), topic_id=B))
    metadata.replay(kinds.ClearElrRecord(topic_name="u"))
    assert metadata.topics["u"].partitions[0].last_known_elr == ()
    assert metadata.topics["t"].partitions[0].elr == (3,)
    metadata.replay(kinds.ClearElrRecord(topic_name=""))
    first, second = metadata.topics["t"].partitions.values()
    assert (first.elr, first.partition_epoch) == ((), 2)
    assert second.partition_epoch == 0  # it had none, so nothing of it changed


# ---- what does not fit ------------------------------------------------------------------------------------


class _Later(MetadataRecord):
    """A kind of record that no Kafka has yet."""


@pytest.mark.parametrize(
    ("record", "error"),
    [
        (_Later(), UnknownMetadataRecord),
        (kinds.UnregisterBrokerRecord(broker_id=9, broker_epoch=10), BrokerIdNotRegistered),
        (kinds.FenceBrokerRecord(id=1, epoch=11), StaleBrokerEpoch),
        (kinds.UnfenceBrokerRecord(id=1, epoch=9), StaleBrokerEpoch),
        (kinds.BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=10, fenced=3), InvalidRecord),
        (kinds.BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=11, fenced=1), StaleBrokerEpoch),
        (kinds.TopicRecord(name="t", topic_id=B), TopicAlreadyExists),
        (kinds.TopicRecord(name="u", topic_id=A), TopicAlreadyExists),
        (kinds.TopicRecord(name="../u", topic_id=B), InvalidTopic),
        (kinds.RemoveTopicRecord(topic_id=B), UnknownTopicId),
        (kinds.PartitionRecord(partition_id=0, topic_id=B, replicas=(1,), isr=(1,)), UnknownTopicId),
        (kinds.PartitionRecord(partition_id=-1, topic_id=A, replicas=(1,), isr=(1,)), InvalidRecord),
        (
            kinds.PartitionRecord(partition_id=1, topic_id=A, replicas=(1,), isr=(1,), directories=(A, B)),
            InvalidRecord,
        ),
        (change(leader_recovery_state=7), InvalidRecord),
        (kinds.PartitionChangeRecord(partition_id=5, topic_id=A, leader=1), UnknownTopicOrPartition),
        (kinds.PartitionChangeRecord(partition_id=0, topic_id=B, leader=1), UnknownTopicId),
        (change(leader=2, unknown_tagged_fields=(TaggedField(40, b"later"),)), UnsupportedVersion),
        (kinds.ClearElrRecord(topic_name="u"), UnknownTopicOrPartition),
        (kinds.ProducerIdsRecord(broker_id=1, next_producer_id=999), InvalidRecord),
        (kinds.RemoveAccessControlEntryRecord(id=A), InvalidRecord),
        (kinds.RemoveUserScramCredentialRecord(name="u", mechanism=1), InvalidRecord),
        (kinds.EndTransactionRecord(), InvalidTxnState),
        (kinds.AbortTransactionRecord(), InvalidTxnState),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else type(value).__name__,
)
def test_a_record_that_does_not_fit_is_a_typed_error(
    record: MetadataRecord, error: type[KreplicaError]
) -> None:
    producers = kinds.ProducerIdsRecord(broker_id=1, broker_epoch=10, next_producer_id=1000)
    metadata = cluster(broker(), *topic(), producers)
    before = metadata.copy()
    with pytest.raises(error):
        metadata.replay(record)
    assert metadata == before


# ---- brokers, and the rest --------------------------------------------------------------------------------


def test_a_broker_is_fenced_shut_down_and_registered_again() -> None:
    metadata = cluster(broker(log_dirs=(A,)))
    assert metadata.brokers[1].fenced
    metadata.replay(kinds.UnfenceBrokerRecord(id=1, epoch=10))
    assert not metadata.brokers[1].fenced
    metadata.replay(
        kinds.BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=10, in_controlled_shutdown=1)
    )
    assert metadata.brokers[1].in_controlled_shutdown
    metadata.replay(
        kinds.BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=10, fenced=1, log_dirs=(B,))
    )
    assert metadata.brokers[1].directories == (B,)
    metadata.replay(broker(epoch=20))
    assert metadata.brokers[1].epoch == 20
    assert not metadata.brokers[1].in_controlled_shutdown


def test_fields_of_a_later_version_are_kept_and_written_to_snapshots() -> None:
    later = (TaggedField(40, b"later"),)
    records = [
        broker(unknown_tagged_fields=later),
        kinds.TopicRecord(name="t", topic_id=A, unknown_tagged_fields=later),
        kinds.PartitionRecord(
            partition_id=0, topic_id=A, replicas=(1,), isr=(1,), unknown_tagged_fields=later
        ),
    ]
    metadata = cluster(*records)
    metadata.replay(change(leader=1))
    written = [record for record, _ in metadata.snapshot_records()]
    assert [record.unknown_tagged_fields for record in written] == [later] * 3


# ---- transactions of the log (KIP-868) --------------------------------------------------------------------


def test_an_aborted_transaction_has_changed_nothing() -> None:
    metadata = cluster(*topic())
    metadata.take_delta()
    before = metadata.copy()
    metadata.replay(kinds.BeginTransactionRecord(name="n"))
    for record in (change(leader=2), *topic(B, "u"), broker()):
        metadata.replay(record)
    assert metadata.topics["t"].partitions[0].leader == 2
    metadata.replay(kinds.AbortTransactionRecord(reason="r"))
    assert metadata == before
    assert metadata.take_delta().is_empty


def test_nothing_is_published_before_a_transaction_is_decided() -> None:
    metadata = cluster(kinds.BeginTransactionRecord(), *topic())
    with pytest.raises(InvalidTxnState):
        metadata.take_delta()
    with pytest.raises(InvalidTxnState):
        metadata.snapshot_records()
    with pytest.raises(InvalidTxnState):
        metadata.replay(kinds.BeginTransactionRecord())
    metadata.replay(kinds.EndTransactionRecord())
    assert [each.name for each in metadata.take_delta().topics_created] == ["t"]

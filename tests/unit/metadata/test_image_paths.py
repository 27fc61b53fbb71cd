"""The image of a cluster: every path and its bytes, there and back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kreplica.common.errors import CorruptImage, KreplicaError
from kreplica.common.message import TaggedField, replace
from kreplica.common.types import Uuid
from kreplica.metadata import image_paths
from kreplica.metadata import records as kinds
from kreplica.metadata.cluster_metadata import ClusterMetadata, MetadataDelta, difference
from kreplica.metadata.image_format import Node, OffsetAndEpoch
from kreplica.metadata.image_paths import PartitionDecoder, encode_partition
from kreplica.metadata.image_writer import ImageStore
from kreplica.metadata.metadata_store import MemoryMetadataStore
from kreplica.metadata.registrations import UNKNOWN_VERSION, PartitionRegistration
from tests.support.cluster_records import NAMES, cluster_records

A = Uuid(b"a" * 16)
RECORD = kinds.PartitionRecord(
    partition_id=0,
    topic_id=A,
    replicas=(1, 2, 3),
    isr=(1, 2),
    leader=1,
    leader_epoch=7,
    partition_epoch=9,
    leader_recovery_state=1,
    directories=(A, A, Uuid.ZERO),
    eligible_leader_replicas=(3,),
    unknown_tagged_fields=(TaggedField(40, b"later"), TaggedField(41, b"")),
)


def play(metadata: ClusterMetadata, records: list, start: int | None = None) -> MetadataDelta:
    """Replay the records, from the offset `start` on, or without versions."""
    for place, (record, version) in enumerate(records):
        try:
            metadata.replay(record, version, UNKNOWN_VERSION if start is None else start + place)
        except KreplicaError:
            continue
    if metadata.in_transaction:
        metadata.replay(kinds.EndTransactionRecord())
    return metadata.take_delta()


def write(image: ImageStore, delta: MetadataDelta, metadata: ClusterMetadata, offset: int) -> None:
    image.write(image_paths.changed_nodes(delta, metadata), OffsetAndEpoch(offset, 1))


@settings(deadline=None)
@given(st.lists(st.lists(cluster_records(), max_size=25), min_size=1, max_size=4))
def test_an_image_that_follows_has_what_the_cluster_has(batches: list) -> None:
    metadata, image = ClusterMetadata(), ImageStore(MemoryMetadataStore(), "c")
    for offset, batch in enumerate(batches):
        write(image, play(metadata, batch, 25 * offset), metadata, offset)
        assert image_paths.load(image.contents()) == metadata
    # And nothing else: one that is made of the whole has the same nodes, with the same versions.
    anew = ImageStore(MemoryMetadataStore(), "c")
    write(anew, difference(ClusterMetadata(), metadata), metadata, 1)
    assert list(anew.contents()) == list(image.contents())


@settings(deadline=None)
@given(st.lists(cluster_records(), max_size=30), st.lists(cluster_records(), max_size=30))
def test_the_difference_of_two_clusters_makes_the_one_image_the_other(first: list, second: list) -> None:
    old, new = ClusterMetadata(), ClusterMetadata()
    image = ImageStore(MemoryMetadataStore(), "c")
    write(image, play(old, first), old, 1)
    play(new, second)
    write(image, difference(old, new), new, 2)
    assert image_paths.load(image.contents()) == new
    assert difference(new, new.copy()).is_empty


def test_a_topic_of_another_cluster_may_have_fewer_partitions() -> None:
    old, new = ClusterMetadata(), ClusterMetadata()
    image = ImageStore(MemoryMetadataStore(), "c")
    for cluster in (old, new):
        cluster.replay(kinds.TopicRecord(name="a", topic_id=RECORD.topic_id))
    old.replay(RECORD)
    write(image, difference(ClusterMetadata(), old), old, 1)
    write(image, difference(old, new), new, 2)
    assert image_paths.load(image.contents()) == new


def test_a_topic_of_the_same_id_and_another_name_is_another() -> None:
    old, new = ClusterMetadata(), ClusterMetadata()
    image = ImageStore(MemoryMetadataStore(), "c")
    old.replay(kinds.TopicRecord(name="a", topic_id=RECORD.topic_id))
    old.replay(RECORD)
    write(image, difference(ClusterMetadata(), old), old, 1)
    new.replay(kinds.TopicRecord(name="b", topic_id=RECORD.topic_id))
    new.replay(replace(RECORD, partition_id=RECORD.partition_id + 1))
    delta = difference(old, new)
    assert [topic.name for topic in delta.topics_deleted + delta.topics_created] == ["a", "b"]
    assert [change.topic_partition.topic for change in delta.partitions] == ["a", "b"]
    write(image, delta, new, 2)
    assert image_paths.load(image.contents()) == new


@given(NAMES | st.text(st.characters(exclude_categories=["Cs"]), max_size=300))
def test_any_name_is_one_name_of_a_path(name: str) -> None:
    escaped = image_paths.escaped(name)
    assert "/" not in escaped
    assert 0 < len(escaped) <= 255
    for other in (name + "x", name + "%", name.upper()):
        assert (image_paths.escaped(other) == escaped) == (other == name)


def test_a_partition_is_the_same_in_bytes_and_shares_what_others_have() -> None:
    partition = PartitionRegistration.of(RECORD)
    decoder = PartitionDecoder()
    first = decoder.decode(encode_partition(partition), -1)
    other = decoder.decode(encode_partition(partition._replace(leader=2, leader_epoch=8)), 12)
    assert first == partition
    assert (other.leader, other.leader_epoch, other.partition_epoch, other.version) == (2, 8, 9, 12)
    assert first.replicas is other.replicas
    assert first.directories is other.directories


def test_bytes_that_are_no_partition_are_found() -> None:
    data = encode_partition(PartitionRegistration.of(RECORD))
    decoder = PartitionDecoder()
    for end in range(len(data)):
        with pytest.raises(CorruptImage):
            decoder.decode(data[:end], 0)
    with pytest.raises(CorruptImage):
        decoder.decode(data + b"\0", 0)
    huge = data[:13] + b"\xff" * 4 + data[17:]
    with pytest.raises(CorruptImage):
        decoder.decode(huge, 0)


@pytest.mark.parametrize(
    ("path", "data"),
    [
        ("/brokers/topics/t", b"short"),
        ("/brokers/topics/t/partitions/0", b"short"),
        ("/brokers/topics/t/partitions/zero", encode_partition(PartitionRegistration.of(RECORD))),
        ("/brokers/ids/1", b"\x01\x02\x00"),
        ("/config/2/t", b"[1]"),
        ("/config/2/t", b"no JSON"),
        ("/features/f", b"\x00"),
        ("/quotas/q", b"[1, 2]"),
        ("/controllers/1", b"\x01\x02\x00"),
        ("/producer_ids", b""),
    ],
)
def test_a_node_with_what_it_cannot_have_is_a_corrupt_image(path: str, data: bytes) -> None:
    metadata, image = ClusterMetadata(), ImageStore(MemoryMetadataStore(), "c")
    metadata.replay(kinds.TopicRecord(name="t", topic_id=A))
    metadata.replay(RECORD, 2)
    write(image, metadata.take_delta(), metadata, 1)
    image.write({path: Node(data, 1)}, OffsetAndEpoch(2, 1))
    with pytest.raises(CorruptImage):
        image_paths.load(image.contents())


def test_a_partition_of_no_topic_is_a_corrupt_image() -> None:
    image = ImageStore(MemoryMetadataStore(), "c")
    node = Node(encode_partition(PartitionRegistration.of(RECORD)), 0)
    image.write({"/brokers/topics/t/partitions/0": node}, OffsetAndEpoch(1, 1))
    with pytest.raises(CorruptImage):
        image_paths.load(image.contents())


def test_every_table_has_its_place() -> None:
    assert set(image_paths._PLACES) == set(ClusterMetadata.TABLES)

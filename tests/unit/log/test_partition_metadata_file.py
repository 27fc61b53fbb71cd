"""partition.metadata: Kafka's bytes, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplica.common.errors import InvalidFile
from kreplica.common.types import Uuid
from kreplica.log.partition_metadata_file import PartitionMetadataFile
from tests.support.damage import bit_flips, truncations
from tests.support.memory_storage import MemoryStorage

# As PartitionMetadataFile of Kafka 4.3.0 wrote it.
KAFKA_WROTE = b"version: 0\ntopic_id: LTI8RhnvRxuKOoQOOm5XwA"
TOPIC_ID = Uuid.parse("LTI8RhnvRxuKOoQOOm5XwA")


def test_kafkas_bytes_through_the_storage() -> None:
    storage = MemoryStorage()
    file = PartitionMetadataFile(storage, "data/orders-0")
    assert not file.exists()
    assert file.read() is None
    file.write(TOPIC_ID)
    assert storage.durable == {"data/orders-0/partition.metadata": KAFKA_WROTE}
    assert file.exists()
    assert file.read() == TOPIC_ID


def test_a_newline_at_the_end_is_let_pass() -> None:
    assert PartitionMetadataFile.parse(KAFKA_WROTE + b"\n", "f") == TOPIC_ID


@pytest.mark.parametrize(
    "data",
    [
        KAFKA_WROTE.replace(b"0\n", b"1\n"),
        KAFKA_WROTE.replace(b"LTI8RhnvRxuKOoQOOm5XwA", b"A" * 22),
        KAFKA_WROTE.replace(b"XwA", b"XwB"),
        KAFKA_WROTE + b"\n\n",
        KAFKA_WROTE + b"A",
        b"topic_id: LTI8RhnvRxuKOoQOOm5XwA\nversion: 0",
    ],
)
def test_refused_with_its_name(data: bytes) -> None:
    with pytest.raises(InvalidFile, match=r"^data/orders-0/partition.metadata: "):
        PartitionMetadataFile.parse(data, "data/orders-0/partition.metadata")


def test_every_truncation_is_refused() -> None:
    for cut in truncations(KAFKA_WROTE):
        with pytest.raises(InvalidFile):
            PartitionMetadataFile.parse(cut, "f")


def test_flipped_bits_are_refused_or_name_another_topic() -> None:
    for flipped in bit_flips(KAFKA_WROTE):
        try:
            assert PartitionMetadataFile.parse(flipped, "f") != TOPIC_ID
        except InvalidFile:
            continue


@given(st.binary(min_size=16, max_size=16).filter(any).map(Uuid))
def test_round_trip(topic_id: Uuid) -> None:
    assert PartitionMetadataFile.parse(PartitionMetadataFile.format(topic_id), "f") == topic_id

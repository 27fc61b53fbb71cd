"""The state files of the directories that Kafka 4.3.0 wrote: read, and written again to the same bytes."""

from pathlib import Path

import pytest

from kreplica.common.quorum_state import format_quorum_state, parse_quorum_state
from kreplica.common.types import TopicPartition, Uuid
from kreplica.log.checkpoint import (
    LEADER_EPOCH_CHECKPOINT,
    LeaderEpochCheckpointFile,
    OffsetCheckpointFile,
)
from kreplica.log.log_directory import CleanShutdownFile
from kreplica.log.meta_properties import MetaPropertiesFile
from kreplica.log.partition_metadata_file import PartitionMetadataFile
from kreplica.log.producer_state_manager import format_snapshot, parse_snapshot
from kreplica.log.transaction_index import AbortedTxn, format_entries, parse_entries

KAFKA = Path(__file__).parents[2] / "data" / "kafka-4.3"


def written(pattern: str) -> list[pytest.param]:  # type: ignore[valid-type]
    files = sorted(KAFKA.glob(pattern))
    assert files, pattern
    return [pytest.param(file, id=str(file.relative_to(KAFKA))) for file in files]


@pytest.mark.parametrize("file", written("*/logs/*-offset-checkpoint"))
def test_offset_checkpoints(file: Path) -> None:
    data = file.read_bytes()
    offsets = OffsetCheckpointFile.parse(data, str(file))
    assert OffsetCheckpointFile.format(offsets) == data or data == b""


def test_offsets() -> None:
    file = KAFKA / "clean/logs/recovery-point-offset-checkpoint"
    offsets = OffsetCheckpointFile.parse(file.read_bytes(), str(file))
    assert offsets[TopicPartition("transactions", 0)] == 119
    assert offsets[TopicPartition("codec-none", 0)] == 50
    log_start = KAFKA / "clean/logs/log-start-offset-checkpoint"
    assert OffsetCheckpointFile.parse(log_start.read_bytes(), "f") == {TopicPartition("trimmed", 0): 42}


@pytest.mark.parametrize("file", written(f"*/logs/*/{LEADER_EPOCH_CHECKPOINT}"))
def test_leader_epoch_checkpoints(file: Path) -> None:
    data = file.read_bytes()
    assert LeaderEpochCheckpointFile.format(LeaderEpochCheckpointFile.parse(data, str(file))) == data


def test_leader_epochs() -> None:
    file = KAFKA / "clean/logs/epochs-0" / LEADER_EPOCH_CHECKPOINT
    assert [entry.epoch for entry in LeaderEpochCheckpointFile.parse(file.read_bytes(), "f")] == [0, 2, 4, 6]


@pytest.mark.parametrize("file", written("*/logs/*/*.snapshot"))
def test_producer_snapshots(file: Path) -> None:
    data = file.read_bytes()
    entries = parse_snapshot(data, str(file))
    assert format_snapshot(entries) == data
    offset = int(file.stem)
    assert all(entry.last_data_offset < offset for entry in entries)


def test_open_transaction_in_a_snapshot() -> None:
    file = KAFKA / "clean/logs/transactions-0/00000000000000000119.snapshot"
    entries = parse_snapshot(file.read_bytes(), str(file))
    assert [entry.current_txn_first_offset for entry in entries if entry.in_transaction] == [108]
    assert len(entries) == 3


@pytest.mark.parametrize("file", written("*/logs/*/*.txnindex"))
def test_transaction_indexes(file: Path) -> None:
    data = file.read_bytes()
    assert format_entries(parse_entries(data, str(file), int(file.stem))) == data


def test_last_stable_offset_of_an_abort_behind_an_open_transaction() -> None:
    file = KAFKA / "clean/logs/transactions-0/00000000000000000108.txnindex"
    (entry,) = parse_entries(file.read_bytes(), str(file), 108)
    assert entry == AbortedTxn(entry.producer_id, 116, 118, 108)


@pytest.mark.parametrize("file", written("*/logs/*/partition.metadata"))
def test_partition_metadata(file: Path) -> None:
    data = file.read_bytes()
    topic_id = PartitionMetadataFile.parse(data, str(file))
    assert PartitionMetadataFile.format(topic_id) == data
    assert (topic_id == Uuid.METADATA_TOPIC) == (file.parent.name == "__cluster_metadata-0")


@pytest.mark.parametrize("file", written("*/logs/meta.properties"))
def test_meta_properties(file: Path) -> None:
    data = file.read_bytes()
    properties = MetaPropertiesFile.parse(data, str(file))
    assert properties.node_id == 1
    assert properties.directory_id is not None
    lines = [line for line in data.splitlines() if not line.startswith(b"#")]
    ours = [line for line in MetaPropertiesFile.format(properties).splitlines() if not line.startswith(b"#")]
    assert ours == lines


@pytest.mark.parametrize("file", written("*/logs/*/quorum-state"))
def test_quorum_state(file: Path) -> None:
    data = file.read_bytes()
    state = parse_quorum_state(data, str(file))
    assert state.leader_id == 1
    assert format_quorum_state(state) == data


@pytest.mark.parametrize("file", written("*/logs/.kafka_cleanshutdown"))
def test_clean_shutdown_marker(file: Path) -> None:
    data = file.read_bytes()
    broker_epoch = CleanShutdownFile.parse(data, str(file))
    assert broker_epoch > 0
    assert CleanShutdownFile.format(broker_epoch) == data

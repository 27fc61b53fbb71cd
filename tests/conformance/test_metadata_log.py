"""The metadata log and its snapshots: Kafka reads ours, and we read what a Kafka node wrote."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kreplica.cli.app import app
from kreplica.common.types import Uuid
from kreplica.metadata.batch_reader import decoded_batches
from kreplica.metadata.control_records import LeaderChangeMessage, VoterEndpoint
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.metadata.serde import encode, to_json
from kreplica.raft.batch_accumulator import build_control_batch
from kreplica.raft.kafka_metadata_log import KafkaMetadataLog
from kreplica.raft.snapshots import RecordsSnapshotReader, parse_snapshot_name, snapshot_name
from kreplica.raft.voter_set import ReplicaKey, VoterNode, VoterSet
from kreplica.runtime.clock import SystemClock
from kreplica.runtime.storage import FileStorage
from tests.conformance.kafka_peer import Node, complaints, dump_segments
from tests.support.batches import build
from tests.support.logs import NOW_MS
from tests.support.metadata_records import examples
from tests.support.polling import wait_until

pytestmark = pytest.mark.conformance

METADATA = "__cluster_metadata-0"
VOTERS = VoterSet(
    VoterNode(
        ReplicaKey(n, Uuid(bytes([n]) * 16)), (VoterEndpoint(name="CONTROLLER", host="h", port=n),), 0, 1
    )
    for n in (1, 2, 3)
)


def opened(directory: Path) -> KafkaMetadataLog:
    return KafkaMetadataLog.open(str(directory), storage=FileStorage(), clock=SystemClock())


def payloads(said: str) -> list[dict]:
    assert "Could not decode" not in said
    return [json.loads(line.split(" payload: ", 1)[1]) for line in said.splitlines() if " payload: " in line]


def kafka_says(path: Path) -> str:
    return dump_segments(path, options=["--cluster-metadata-decoder"])


def kreplica_says(path: Path) -> list[dict]:
    result = CliRunner().invoke(app, ["dump", "--json", "--deep", str(path)])
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_kafka_reads_our_log_and_our_snapshot(tmp_path: Path) -> None:
    records = list(examples())
    log = opened(tmp_path / METADATA)
    log.begin_epoch(3)
    change = LeaderChangeMessage(leader_id=1, voters=(), granting_voters=())
    log.append_as_leader(build_control_batch([change], base_offset=0, epoch=3, timestamp_ms=NOW_MS), 3)
    log.append_as_leader(build([encode(*record) for record in records], now_ms=NOW_MS), 3)
    log.flush()
    log.update_high_watermark(log.end_offset)
    taken = OffsetAndEpoch(log.end_offset, 3)
    with log.create_new_snapshot(taken, voters=VOTERS, kraft_version=1) as writer:
        writer.append(records)
        writer.freeze()
    log.close()
    expected = [json.loads(json.dumps(to_json(record))) for record in records]
    assert payloads(kafka_says(tmp_path / METADATA / f"{0:020d}.log")) == expected
    assert complaints(tmp_path / METADATA) == []
    said = kafka_says(tmp_path / METADATA / snapshot_name(taken))
    assert payloads(said) == expected
    kinds = re.findall(r" headerKeys: \[\] (Snapshot\w+|KRaft\w+):? (\{.*\})$", said, re.MULTILINE)
    assert [kind for kind, _ in kinds] == ["SnapshotHeader", "KRaftVersion", "KRaftVoters", "SnapshotFooter"]
    assert json.loads(kinds[0][1])["lastContainedLogTimestamp"] == NOW_MS
    assert [voter["voterId"] for voter in json.loads(kinds[2][1])["voters"]] == [1, 2, 3]
    ours = [fact for fact in kreplica_says(tmp_path / METADATA / snapshot_name(taken)) if "type" in fact]
    assert [{name: fact[name] for name in ("type", "version", "data")} for fact in ours] == expected


@pytest.fixture(scope="module")
def kafkas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The metadata log of a Kafka node that took snapshots of it."""
    directory = tmp_path_factory.mktemp("node")
    node = Node(directory, metadata_log_max_record_bytes_between_snapshots=100)
    with node:
        log = node.log_directory / METADATA
        wait_until(lambda: any(map(parse_snapshot_name, names(log))), "Kafka has taken a snapshot")
        node.stop()
    return log


def names(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()]


def test_we_read_kafkas_log_and_snapshots(kafkas: Path, tmp_path: Path) -> None:
    shutil.copytree(kafkas, tmp_path / METADATA)
    log = opened(tmp_path / METADATA)
    ids = sorted(found for found in map(parse_snapshot_name, names(kafkas)) if found is not None)
    real = [each for each in ids if each.offset > 0]
    assert real
    assert log.latest_snapshot_id == ids[-1]
    for each in real[-2:]:
        raw = log.read_snapshot(each)
        assert raw is not None
        with RecordsSnapshotReader(raw) as reader:
            ours = [to_json(record) for batch in reader for record in batch.records]
            assert ours
            assert payloads(kafka_says(kafkas / snapshot_name(each))) == json.loads(json.dumps(ours))
            assert reader.last_contained_log_timestamp > 0
        log.update_high_watermark(log.end_offset)
        assert log.end_offset_for_epoch(each.epoch).epoch == each.epoch
        shown = kreplica_says(kafkas / snapshot_name(each))
        assert [fact["type"] for fact in shown if "type" in fact] == [each["type"] for each in ours]
    found = log.read(log.start_offset, 1 << 30, committed_only=False).records
    assert found is not None
    read = [json.loads(json.dumps(to_json(r))) for batch in decoded_batches(found) for r in batch.records]
    assert payloads(kafka_says(kafkas / f"{0:020d}.log")) == read
    log.close()


def test_kafka_goes_on_with_what_we_opened_and_snapshotted(kafkas: Path, tmp_path: Path) -> None:
    """The same node again, on its directory with a log that we closed and a snapshot of ours."""
    home = tmp_path / "node"
    shutil.copytree(kafkas.parents[1], home)
    node = Node(home, metadata_log_max_record_bytes_between_snapshots=100)
    log = opened(node.log_directory / METADATA)
    latest = log.latest_snapshot_id
    assert latest is not None
    raw = log.read_snapshot(latest)
    assert raw is not None
    with RecordsSnapshotReader(raw) as reader:
        records = [record for batch in reader for record in batch.records]
    log.update_high_watermark(log.end_offset)
    # Ours takes the place of Kafka's own, with the same records.
    (node.log_directory / METADATA / snapshot_name(latest)).unlink()
    log.close()
    log = opened(node.log_directory / METADATA)
    log.update_high_watermark(log.end_offset)
    with log.create_new_snapshot(latest) as writer:
        writer.append(records)
        writer.freeze()
    end = log.end_offset
    log.close()
    node.start()
    node.stop()
    again = opened(node.log_directory / METADATA)
    assert again.end_offset > end
    again.close()

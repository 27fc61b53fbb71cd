"""Directories that Kafka wrote, read and carried on by kreplica."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import kreplica
from kreplica.common.errors import LogDirLocked
from kreplica.log.file_names import STATE_FILE
from tests.conformance.adoption import read_by_kafka
from tests.conformance.expectation import FIXTURES, copy_of, differences, expectation, expectations
from tests.conformance.kafka_peer import Node, PeerError, complaints
from tests.conformance.make_fixtures import read, work
from tests.support.polling import wait_until

pytestmark = pytest.mark.conformance

CARRIED_ON = ("codec-zstd-0", "compacted-0", "epochs-0", "segments-0", "trimmed-0", "unclean-0")


@pytest.mark.parametrize("ending", ["clean", "unclean"])
def test_every_record_reads_as_a_stock_consumer_read_it(written: Path, ending: str) -> None:
    expected = expectations(written / ending)
    assert [each.log.name for each in expected] == [each.log.name for each in expectations(FIXTURES / ending)]
    for each in expected:
        with kreplica.Log.open(each.log, read_only=True) as log:
            assert differences(log, each) == []


def test_a_live_node_is_read_up_to_its_high_watermark(tmp_path: Path) -> None:
    with Node(tmp_path / "node", replica_high_watermark_checkpoint_interval_ms=100) as node:
        work(node, "small", "segments")
        read(node, tmp_path / "expected")
        checkpoint = node.log_directory / "replication-offset-checkpoint"
        wait_until(lambda: "segments 0 120" in checkpoint.read_text(), "the high watermark is checkpointed")
        expected = expectation(tmp_path, "segments-0")
        with kreplica.Log.open(node.log_directory / "segments-0", read_only=True) as log:
            assert differences(log, expected) == []


def test_turns_in_one_directory(tmp_path: Path) -> None:
    # Kafka and kreplica write one log in turns, none of them stopped in order, never both at once.
    with Node(tmp_path / "node", replica_high_watermark_checkpoint_interval_ms=100) as node:
        log = node.log_directory / "segments-0"
        work(node, "small", "segments")
        with pytest.raises(LogDirLocked):
            kreplica.Log.open(log)
        node.kill()
        opened = kreplica.Log.open(log, segment_bytes=2_000)
        for i in range(40):
            opened.append([b"between %d" % i])
        with pytest.raises(PeerError):
            node.start()
        assert "Failed to acquire lock" in node.output.read_text()
        shutil.copytree(log, tmp_path / "killed")  # what a killed writer leaves
        opened.close()
        shutil.rmtree(log)
        shutil.move(tmp_path / "killed", log)
        assert (log / STATE_FILE).exists()

        node.start()
        assert not (log / STATE_FILE).exists()
        work(node, "small", "segments")
        read(node, tmp_path / "expected")
        node.kill()
    expected = expectation(tmp_path, "segments-0")
    assert b"between 39" in [record.value for record in expected.records]
    with kreplica.Log.open(log) as again:
        assert again.damage is None
        assert differences(again, expected) == []


def test_kafka_reads_on_where_kreplica_wrote_on(tmp_path: Path) -> None:
    logs = {}
    for name in CARRIED_ON:
        ending = "unclean" if name.startswith("unclean") else "clean"
        directory = copy_of(FIXTURES / ending / "logs" / name, tmp_path / ending)
        logs[name.removesuffix("-0")] = directory
        with kreplica.Log.open(directory, segment_bytes=2_000, index_interval_bytes=200) as log:
            for i in range(40):
                log.append([(b"key", b"written on %d" % i)])
    assert complaints(*logs.values()) == []
    kafka = read_by_kafka(tmp_path / "kafka", logs, trusted=True, log_starts={"trimmed": 42})
    for topic, directory in logs.items():
        assert [each.value for each in kafka[topic].records[-40:]] == [
            b"written on %d" % i for i in range(40)
        ]
        with kreplica.Log.open(directory, read_only=True) as log:
            assert differences(log, kafka[topic]) == []

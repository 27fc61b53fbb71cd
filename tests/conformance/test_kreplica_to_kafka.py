"""Directories that kreplica wrote, before Kafka's own eyes: its dump tool, a node of it, a stock consumer."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

import kreplica
from kreplica.common.config import LogConfig
from kreplica.common.types import AppendOrigin, TopicPartition
from kreplica.log import log_loader
from kreplica.log.log_loader import OpenOptions
from kreplica.log.unified_log import UnifiedLog
from kreplica.record.control import EndTransactionMarker, build_end_transaction_marker
from kreplica.runtime.clock import SystemClock
from kreplica.runtime.storage import FileStorage
from tests.conformance.adoption import read_by_kafka
from tests.conformance.expectation import FIXTURES, Expectation, differences, expectation
from tests.conformance.kafka_peer import complaints
from tests.support.batches import build

pytestmark = pytest.mark.conformance

HEADERS = [("plain", b"1"), ("plain", b"2"), ("null", None), ("empty", b""), ("größe", b"\x00\xff\x80")]
ODD = [
    *((None, b"no key"), (b"tombstone", None), (None, None)),
    *((b"", b"empty key"), (b"empty value", b""), (b"", b"")),
]
NOISE = random.Random(7).randbytes(900_000)

# Topic: the settings of its log.
LOGS: dict[str, dict[str, object]] = {
    **{f"codec-{codec}": {"compression_type": codec} for codec in ("gzip", "snappy", "lz4", "zstd")},
    "plain": {"compression_type": "uncompressed"},
    "log-append-time": {"message_timestamp_type": "LogAppendTime"},
    "log-append-time-zstd": {"message_timestamp_type": "LogAppendTime", "compression_type": "zstd"},
    "segments": {"segment_bytes": 3_000, "index_interval_bytes": 300},
    "full-indexes": {"segment_index_bytes": 64, "index_interval_bytes": 0},
}
# Logs of Kafka's, copied batch by batch as a follower does.
COPIED = ("transactions", "idempotent", "epochs", "compacted")


def batches(topic: str) -> list[list[kreplica.Record]]:
    """What goes into the topic's log, a list a batch; the last one is longer than a segment may be there."""
    record = kreplica.Record
    many = [
        [record(key=b"key-%d" % i, value=b"value %d of batch %d" % (i, batch)) for i in range(batch % 7 + 1)]
        for batch in range(100)
    ]
    odd = [record(key=key, value=value, headers=HEADERS[: i % 6]) for i, (key, value) in enumerate(ODD)]
    long = [] if topic == "segments" else [[record(key=b"long", value=b"long value " * 20_000)]]
    return [[record(value=b"one")], odd, *many, *long]


def engine(directory: Path, **settings: object) -> UnifiedLog:
    """A log as a node has it, which also takes appends that no client may make."""
    partition = TopicPartition(directory.name.removesuffix("-0"), 0)
    directory.mkdir()
    config = LogConfig.parse(settings)
    return log_loader.load(
        str(directory), partition, config, FileStorage(), SystemClock(), OpenOptions(is_only_replica=True)
    )


def copy(topic: str, directory: Path) -> None:
    """Follow a log that Kafka wrote."""
    source = expectation(FIXTURES / "clean", f"{topic}-0").log
    follower = engine(directory, segment_bytes=2_000, index_interval_bytes=200)
    with kreplica.Log.open(source, read_only=True) as leader:
        for batch in leader.batches():
            follower.append_as_follower(batch)
    follower.close()


def write_transactions(directory: Path) -> None:
    """Five producers' transactions, interleaved, every second one aborted, over segments; one stays open."""
    log = engine(directory, segment_bytes=2_000, index_interval_bytes=200)
    sequences = dict.fromkeys(range(100, 105), 0)
    for turn in range(30):
        for producer_id in sequences:
            for part in range(turn % 3):
                records = [(b"%d" % producer_id, b"%d of turn %d" % (part, turn))] * (part + 1)
                log.append_as_leader(produced(records, producer_id, sequences[producer_id]), 0)
                sequences[producer_id] += len(records)
            log.append_records([(None, b"between")])
        for producer_id in reversed(sequences) if turn % 3 else ():
            marker = EndTransactionMarker(commit=(turn + producer_id) % 2 == 0, coordinator_epoch=0)
            ended = build_end_transaction_marker(
                marker, producer_id=producer_id, producer_epoch=0, timestamp_ms=1_700_000_000_000 + turn
            )
            log.append_as_leader(ended, 0, origin=AppendOrigin.COORDINATOR)
    log.append_as_leader(produced([b"left open"], 100, sequences[100]), 0)
    log.append_records([b"behind it"])
    log.close()


def produced(records: Iterable[object], producer_id: int, sequence: int) -> bytes:
    fields = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": sequence}
    return build(records, transactional=True, now_ms=1_700_000_000_000, **fields)


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The directory of each log, written and closed."""
    root = tmp_path_factory.mktemp("kreplica")
    for topic, settings in LOGS.items():
        with kreplica.Log.open(root / f"{topic}-0", **settings) as log:
            for batch in batches(topic):
                log.append(batch)
    for topic in COPIED:
        copy(topic, root / f"copied-{topic}-0")
    write_transactions(root / "own-transactions-0")
    with kreplica.Log.open(root / "big-0") as log:
        log.append([kreplica.Record(value=NOISE)])
        log.append([kreplica.Record(value=b"after")])
    return {directory.name.removesuffix("-0"): directory for directory in root.iterdir()}


@pytest.fixture(scope="module", params=[True, False], ids=["trusted", "recovered"])
def kafka(
    request: pytest.FixtureRequest, logs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Expectation]:
    """What a stock consumer reads of the logs, their indexes believed or made anew."""
    return read_by_kafka(tmp_path_factory.mktemp("node"), logs, trusted=request.param)


def contents(records: Sequence[object]) -> list[tuple[object, ...]]:
    """Key, value and headers of each record."""
    return [(each.key, each.value, list(each.headers)) for each in records]  # type: ignore[attr-defined]


def test_the_dump_tool_finds_nothing_wrong(logs: dict[str, Path]) -> None:
    assert complaints(*logs.values()) == []


def test_a_consumer_reads_what_was_appended(kafka: dict[str, Expectation]) -> None:
    for topic in LOGS:
        appended = [record for batch in batches(topic) for record in batch]
        # The expectation stands left: it compares long values by their digest.
        assert contents(kafka[topic].records) == contents(appended), topic
    assert [each.value for each in kafka["big"].records] == [NOISE, b"after"]


def test_a_consumer_reads_what_kreplica_reads(logs: dict[str, Path], kafka: dict[str, Expectation]) -> None:
    for topic, directory in logs.items():
        with kreplica.Log.open(directory, read_only=True) as log:
            assert differences(log, kafka[topic]) == []


def test_a_consumer_reads_a_followers_copy_as_the_leaders(kafka: dict[str, Expectation]) -> None:
    for topic in COPIED:
        copied, original = kafka[f"copied-{topic}"], expectation(FIXTURES / "clean", f"{topic}-0")
        assert copied.records == original.records
        assert copied.last_stable == original.last_stable


def test_a_consumer_of_committed_data_stops_before_the_open_transaction(
    kafka: dict[str, Expectation],
) -> None:
    read = kafka["own-transactions"]
    assert 0 < len(read.committed) < len(read.records)
    assert read.records[-1].value == b"behind it"
    assert read.records[-2].value == b"left open"
    assert read.last_stable == read.records[-2].offset

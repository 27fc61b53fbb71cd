"""Directories that kreplica wrote, before Kafka's own eyes: its dump tool, a node of it, a stock consumer."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

import kreplica
from tests.conformance.adoption import read_by_kafka
from tests.conformance.expectation import Expectation, differences
from tests.conformance.kafka_peer import complaints

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


def batches() -> list[list[kreplica.Record]]:
    """What goes into each log, a list a batch; a batch of 900 KB is the last but one."""
    record = kreplica.Record
    many = [
        [record(key=b"key-%d" % i, value=b"value %d of batch %d" % (i, batch)) for i in range(batch % 7 + 1)]
        for batch in range(100)
    ]
    odd = [record(key=key, value=value, headers=HEADERS[: i % 6]) for i, (key, value) in enumerate(ODD)]
    return [[record(value=b"one")], odd, *many, [record(key=b"long", value=b"long value " * 20_000)]]


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The directory of each log, written and closed."""
    root = tmp_path_factory.mktemp("kreplica")
    for topic, settings in LOGS.items():
        with kreplica.Log.open(root / f"{topic}-0", **settings) as log:
            for batch in batches():
                log.append(batch)
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
    appended = [record for batch in batches() for record in batch]
    for topic in LOGS:
        # The expectation stands left: it compares long values by their digest.
        assert contents(kafka[topic].records) == contents(appended), topic
    assert [each.value for each in kafka["big"].records] == [NOISE, b"after"]


def test_a_consumer_reads_what_kreplica_reads(logs: dict[str, Path], kafka: dict[str, Expectation]) -> None:
    for topic, directory in logs.items():
        with kreplica.Log.open(directory, read_only=True) as log:
            assert differences(log, kafka[topic]) == []

"""When leaders and ISRs changed, by the metadata log."""

from __future__ import annotations

import pytest

from kreplica.common.types import Uuid
from kreplica.metadata.records import MetadataRecord, PartitionChangeRecord, PartitionRecord
from kreplica.metadata.serde import encode, in_lowest_version
from kreplica.raft.kafka_metadata_log import KafkaMetadataLog
from kreplica.runtime import partition_history
from kreplica.runtime.partition_history import HistoryChange, PartitionHistory
from tests.support.batches import build
from tests.support.logs import NOW_MS
from tests.support.metadata_logs import commit, open_metadata_log

TOPIC, OTHER = Uuid(bytes([1] * 16)), Uuid(bytes([2] * 16))


def append(log: KafkaMetadataLog, time_ms: int, *records: MetadataRecord) -> None:
    values = [encode(*in_lowest_version(record)) for record in records]
    log.append_as_leader(build(values, base_offset=log.end_offset, leader_epoch=1, now_ms=time_ms), 1)
    commit(log)


def created(topic: Uuid, partition: int = 0) -> PartitionRecord:
    return PartitionRecord(
        partition_id=partition,
        topic_id=topic,
        replicas=(1, 2, 3),
        isr=(1, 2, 3),
        leader=1,
        leader_epoch=0,
        partition_epoch=0,
    )


def changed(**fields: object) -> PartitionChangeRecord:
    return PartitionChangeRecord(partition_id=0, topic_id=TOPIC, **fields)


def test_changes_of_one_partition_come_with_their_times() -> None:
    log = open_metadata_log()
    append(log, NOW_MS, created(TOPIC), created(TOPIC, 1), created(OTHER))
    append(log, NOW_MS + 10, changed(isr=(1, 2)))
    history = PartitionHistory(lambda: log)
    known = [HistoryChange(NOW_MS, 0, 1, (1, 2, 3)), HistoryChange(NOW_MS + 10, 3, 1, (1, 2))]
    assert history.of(TOPIC, 0) == (known, True)
    append(log, NOW_MS + 20, changed(leader=2), changed(replicas=(1, 2, 3)))
    known.append(HistoryChange(NOW_MS + 20, 4, 2, (1, 2)))
    assert history.of(TOPIC, 0) == (known, True)
    assert history.of(OTHER, 0) == ([HistoryChange(NOW_MS, 2, 1, (1, 2, 3))], True)
    assert history.of(OTHER, 7) == ([], True)


def test_a_log_that_begins_in_the_midst_shows_what_is_sure() -> None:
    log = open_metadata_log()
    append(log, NOW_MS, changed(isr=(1,)))
    append(log, NOW_MS + 10, changed(leader=2))
    found, _ = PartitionHistory(lambda: log).of(TOPIC, 0)
    assert found == [HistoryChange(NOW_MS + 10, 1, 2, (1,))]


def test_a_call_reads_a_bounded_part_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_history, "STEP_BYTES", 1)
    log = open_metadata_log()
    append(log, NOW_MS, created(TOPIC))
    for number in range(3):
        append(log, NOW_MS + number, changed(isr=(1, 2) if number % 2 else (1, 2, 3)))
    history = PartitionHistory(lambda: log)
    steps = [history.of(TOPIC, 0) for _ in range(4)]
    assert [len(found) for found, _ in steps] == [1, 2, 3, 4]
    assert [is_whole for _, is_whole in steps] == [False, False, False, True]

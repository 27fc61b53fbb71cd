"""A cluster of 100,000 partitions: loaded from its image and from its log, and changed.

Each figure is beside its goal and its minimum: reading the values from LMDB, checking the batches of the log.
`topics` together have 100,000 partitions.
"""

import shutil
from pathlib import Path

import pytest

from kreplica._core.batch_builder import BatchBuilder
from kreplica._core.records import batches
from kreplica.common.types import Uuid
from kreplica.metadata import records as kinds
from kreplica.metadata.batch_reader import BatchReader
from kreplica.metadata.image_writer import NODES_A_SCAN, ImageWriter
from kreplica.metadata.metadata_loader import MetadataLoader
from kreplica.metadata.serde import encode, in_lowest_version
from kreplica.raft.kafka_metadata_log import KafkaMetadataLog
from kreplica.runtime.clock import SystemClock
from kreplica.runtime.lmdb_store import LmdbImageDirectory, LmdbMetadataStore
from kreplica.runtime.storage import FileStorage

PARTITIONS = 100_000
CLUSTER = "a3JlcGxpY2EtY29uZm9ybQ"
BROKERS = 9
RECORDS_A_BATCH = 1000
READ_BYTES = 8 << 20
TOPICS = pytest.mark.parametrize("topics", [1000, 100_000])


class NoLoop:
    """The loop of a writer whose caller calls `write` directly."""

    def post(self, task):
        raise AssertionError(task)

    def post_later(self, task, _):
        assert callable(task)


def topic_id(number):
    return Uuid((number + 1000).to_bytes(16, "big"))


def topic_records(number, partitions):
    yield kinds.TopicRecord(name=f"orders-of-customers-{number}", topic_id=topic_id(number))
    for partition in range(partitions):
        replicas = tuple((number + partition + place) % BROKERS + 1 for place in range(3))
        yield kinds.PartitionRecord(
            partition_id=partition,
            topic_id=topic_id(number),
            replicas=replicas,
            isr=replicas,
            leader=replicas[0],
            leader_epoch=0,
            partition_epoch=0,
            directories=tuple(Uuid(bytes([broker] * 16)) for broker in replicas),
        )


def batch(records, base_offset):
    values = [(None, encode(*in_lowest_version(record))) for record in records]
    return bytes(BatchBuilder().build(values, base_offset=base_offset, leader_epoch=1, now_ms=1))


def all_batches(records):
    records, offset = list(records), 0
    for start in range(0, len(records), RECORDS_A_BATCH):
        part = records[start : start + RECORDS_A_BATCH]
        yield batch(part, offset)
        offset += len(part)


@pytest.fixture
def directory():
    path = Path(__file__).parents[1] / "build" / "bench-metadata"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    yield path
    shutil.rmtree(path)


def new_loader(path):
    image = ImageWriter(LmdbImageDirectory(str(path)), CLUSTER, NoLoop())
    return MetadataLoader(image, loop=NoLoop(), high_watermark=lambda: 0)


def started(path, records=()):
    """Return a loader that has applied the records and written its image."""
    shutil.rmtree(path, ignore_errors=True)
    loader = new_loader(path)
    loader.startup(0, lambda _: None)
    for data in all_batches(records):
        loader.handle_commit(BatchReader.of_records(0, data))
    loader.image.write()
    return loader


def all_records(topics):
    for number in range(topics):
        yield from topic_records(number, PARTITIONS // topics)


@TOPICS
def test_load_from_the_image(row, directory, topics):
    """metadata: each of 100,000 partitions of {topics} topics, loaded from LMDB"""
    path = directory / "image"
    loader = started(path, all_records(topics))
    applied = loader.applied
    loader.image.close()

    def load():
        loader = new_loader(path)
        loader.startup(applied.offset, lambda _: applied.epoch)
        found = len(loader.published.topics)
        loader.image.close()
        assert found == topics

    def scan():
        store, after = LmdbMetadataStore(str(path)), b""
        while items := store.scan(b"", after, NODES_A_SCAN):
            after = items[-1][0]
        store.close()

    row.time(load, PARTITIONS, tuple, rounds=3)
    row.beside("LMDB's values", scan, PARTITIONS, rounds=3)
    row.peer("limit (1 s)", 1e9 / PARTITIONS)


def test_load_from_the_log(row, directory):
    """metadata: each of 100,000 partitions of 1000 topics, from the log, with the image made anew"""
    topics = 1000
    log = KafkaMetadataLog.open(str(directory / "log"), storage=FileStorage(), clock=SystemClock())
    for data in all_batches(all_records(topics)):
        log.append_as_leader(data, 1)
    log.flush()
    log.update_high_watermark(log.end_offset)

    def parts():
        offset = 0
        while offset < log.end_offset:
            records = log.read(offset, READ_BYTES, committed_only=True).records
            yield offset, records
            offset = max(batch.last_offset for batch in batches(records)) + 1

    def load(loader):
        for offset, records in parts():
            loader.handle_commit(BatchReader.of_records(offset, records))
        loader.image.write()
        assert len(loader.published.topics) == topics
        loader.image.close()

    def check():
        for _, records in parts():
            for each in batches(records):
                each.check()

    row.time(load, PARTITIONS, lambda: (started(directory / "image"),), rounds=3)
    row.beside("its batches", check, PARTITIONS, rounds=3)
    row.peer("limit (10 s)", 10e9 / PARTITIONS)
    log.close()


def test_change_many_partitions(row, directory):
    """metadata: each of 10,000 partitions of 100 topics that get another leader in one commit"""
    count, topics = 10_000, 1000
    each = PARTITIONS // topics
    loader = started(directory / "image", all_records(topics))

    def changes():
        for number in range(count):
            yield kinds.PartitionChangeRecord(
                partition_id=number % each,
                topic_id=topic_id(number // each % topics),
                leader=2,
                isr=(1, 2),
            )

    def apply(data):
        loader.handle_commit(BatchReader.of_records(0, data))
        loader.image.write()

    def setup():
        return (batch(changes(), loader.applied.offset),)

    row.time(apply, count, setup, rounds=3)
    row.peer("limit (300 ms)", 300e6 / count)
    loader.image.close()


def test_create_partitions(row, directory):
    """metadata: each of 1,000 partitions of a new topic, in a cluster of 100,000, with its image"""
    count = 1000
    loader = started(directory / "image", all_records(1000))
    made = iter(range(5000, 6000))

    def setup():
        return (batch(topic_records(next(made), count), loader.applied.offset),)

    def create(data):
        loader.handle_commit(BatchReader.of_records(0, data))
        loader.image.write()

    row.time(create, count, setup, rounds=3)
    row.peer("limit (300 ms)", 300e6 / count)
    loader.image.close()

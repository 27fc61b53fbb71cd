"""Create new logs.

The metadata of a new log is on disk before anything uses the log. It consists of the topic id, without which
the log would count as a stray; the state file, without which recovery would attribute the log to another
program; and the first leader epoch. One flush of the log's directory covers all of it. The caller flushes the
parent directory, once for many logs. Thread rule: any thread; one thread per partition.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from kreplica._core.log_state import LogState
from kreplica.common.config import LogConfig
from kreplica.common.errors import InconsistentTopicId, KreplicaError
from kreplica.common.ports import Clock, Storage, Workers
from kreplica.common.types import TopicPartition, Uuid
from kreplica.log import log_loader
from kreplica.log.checkpoint import EpochEntry, LeaderEpochCheckpointFile
from kreplica.log.file_names import STATE_FILE
from kreplica.log.leader_epoch_file_cache import LeaderEpochFileCache
from kreplica.log.local_log import LocalLog
from kreplica.log.log_loader import OpenOptions
from kreplica.log.partition_metadata_file import PartitionMetadataFile
from kreplica.log.producer_state_manager import ProducerStateManager
from kreplica.log.recovery_scan import Recovery
from kreplica.log.unified_log import UnifiedLog


@dataclass(frozen=True, slots=True)
class NewLog:
    """A request to create the log of a partition, if it does not exist yet.

    `directory`: the log directory for it, or None for the one with the fewest logs.
    `first_epoch`: the leader epoch that begins at offset 0 in every replica, if known. It is stored with the
    other metadata, so that neither the leader nor a follower's first batch has to wait for a flush.
    """

    partition: TopicPartition
    topic_id: Uuid | None = None
    directory: str | None = None
    first_epoch: int | None = None


def create_all(
    places: Iterable[tuple[NewLog, str, LogConfig]], storage: Storage, clock: Clock, workers: Workers
) -> dict[TopicPartition, UnifiedLog | KreplicaError]:
    """Create logs at the given paths with the given configurations; return each log, or its error."""
    made: dict[TopicPartition, UnifiedLog | KreplicaError] = {}

    def try_to_create(wanted: NewLog, path: str, config: LogConfig) -> None:
        try:
            made[wanted.partition] = create(path, wanted, config, storage, clock)
        except KreplicaError as error:
            made[wanted.partition] = error

    workers.run([partial(try_to_create, *each) for each in places])
    return made


def create(path: str, wanted: NewLog, config: LogConfig, storage: Storage, clock: Clock) -> UnifiedLog:
    """Create the directory `path` and the log in it. Both are durable once the parent is flushed.

    Files of an earlier attempt are reused. Raises KafkaStorageError, InvalidFile.
    """
    storage.make_directory(path)
    is_new = not storage.list_directory(path)
    if wanted.topic_id is not None:
        PartitionMetadataFile(storage, path).write(wanted.topic_id, flush_name=not is_new)
    if is_new:
        log = _begin(path, wanted, config, storage, clock)
    else:
        options = OpenOptions(high_watermark=0)
        log = log_loader.load(path, wanted.partition, config, storage, clock, options)
    log.topic_id = wanted.topic_id
    return log


def _begin(path: str, wanted: NewLog, config: LogConfig, storage: Storage, clock: Clock) -> UnifiedLog:
    local = LocalLog(path, config, storage)
    local.roll(0)
    checkpoint = LeaderEpochCheckpointFile(storage, path)
    epochs = () if wanted.first_epoch is None else (EpochEntry(wanted.first_epoch, 0),)
    if epochs:
        checkpoint.write(epochs, flush_name=False)
    region = storage.open_region(f"{path}/{STATE_FILE}", 4096, writable=True, create=True)
    state = LogState(region, storage.boot_id(), storage.process_id())
    state.update(leader_epoch=-1)
    log = UnifiedLog(
        wanted.partition,
        local,
        state,
        LeaderEpochFileCache(checkpoint, epochs),
        ProducerStateManager(storage, path, ()),
        clock,
    )
    log.recovered = Recovery()
    log_loader.let_open_again(log, clock)
    log.flush_state()
    local.flush_names()
    return log


def check_topic_id(log: UnifiedLog, topic_id: Uuid) -> None:
    """Check that the log belongs to the topic; assign the topic if the log has none.

    Raises InconsistentTopicId if the log belongs to another topic.
    """
    if log.topic_id is None:
        file = PartitionMetadataFile(log.local.storage, log.local.directory)
        log.topic_id = file.read()
        if log.topic_id is None:
            file.write(topic_id)
            log.topic_id = topic_id
    if log.topic_id != topic_id:
        raise InconsistentTopicId(
            f"{log.topic_partition}: the log's topic id is {log.topic_id}, not {topic_id}"
        )

"""Beginning a log where there was none.

What a new log says of itself is on the disk before anything uses it: the id of its topic, without which it
would be taken for a stray; where it stands, without which recovery would take it for another program's; its
first leader epoch. Its directory is flushed once for all of that. The name of the directory itself is left to
the caller, who flushes it once for many logs. Thread rule: any thread, one for a partition.
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
    """A log that a partition is to have, if it has none yet.

    `directory`: the log directory it belongs in, None for the one with the fewest logs. `first_epoch`: the
    leader epoch that begins at offset 0 in every replica of the partition, where that is known: it is noted
    with the rest, so that neither a leader nor the first batch of a follower has to wait for it.
    """

    partition: TopicPartition
    topic_id: Uuid | None = None
    directory: str | None = None
    first_epoch: int | None = None


def create_all(
    places: Iterable[tuple[NewLog, str, LogConfig]], storage: Storage, clock: Clock, workers: Workers
) -> dict[TopicPartition, UnifiedLog | KreplicaError]:
    """Each log, in the directory and with the configuration beside it, or the error that `create` raised."""
    made: dict[TopicPartition, UnifiedLog | KreplicaError] = {}

    def try_to_create(wanted: NewLog, path: str, config: LogConfig) -> None:
        try:
            made[wanted.partition] = create(path, wanted, config, storage, clock)
        except KreplicaError as error:
            made[wanted.partition] = error

    workers.run([partial(try_to_create, *each) for each in places])
    return made


def create(path: str, wanted: NewLog, config: LogConfig, storage: Storage, clock: Clock) -> UnifiedLog:
    """Make the directory `path` and the log in it; a power cut leaves both, once the parent is flushed.

    What another attempt has left there is taken over. Raises KafkaStorageError, InvalidFile.
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
    """Let the log be that topic's, where it tells of none. Raises InconsistentTopicId if it is another's."""
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

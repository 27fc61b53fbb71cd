"""Recovers a voter whose stored election allows no further one.

An epoch is an int32. A node that has stored a higher one cannot read it, and one that has stored the highest
one cannot take part in any election. No leader ever had such an epoch; the metadata log shows which epochs
had leaders. So a new epoch above all of those is written, without a vote and a leader. No state; one thread.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import NamedTuple

from kreplica.broker.node_config import NodeConfig
from kreplica.broker.node_format import METADATA_LOG, read_properties
from kreplica.common.errors import InvalidFile
from kreplica.common.ports import Clock, Storage
from kreplica.common.quorum_state import LAST_EPOCH, QuorumStateData
from kreplica.raft.kafka_metadata_log import KafkaMetadataLog
from kreplica.raft.quorum_state import FileBasedStateStore

# A voter may have voted in epochs after that of its last record, and must not vote in them again. More
# elections than this without a single record would take at least a day.
EPOCHS_LEFT_OUT = 1 << 20


class RecoveredElection(NamedTuple):
    """`former_epoch`: the stored epoch before, None if it was unreadable. `epoch`: the stored epoch now."""

    former_epoch: int | None
    epoch: int

    @property
    def is_changed(self) -> bool:
        return self.former_epoch != self.epoch


def recover_election(config: NodeConfig, *, storage: Storage, clock: Clock) -> RecoveredElection:
    """Write an epoch that allows elections into the node's quorum-state, unless it already has one.

    Do this on every voter while none of them runs: a voter that is left out would bring its epoch back.
    Raises LogDirLocked if the node runs, InvalidFile if the directory is not the node's or its log's epochs
    are too high, and as KafkaMetadataLog.open.
    """
    with ExitStack() as stack:
        for path in config.all_directories:
            if read_properties(config, storage, path) is None:
                raise InvalidFile(f"{path} is not formatted")
            stack.callback(storage.lock_directory(path).release)
        directory = f"{config.metadata_directory}/{METADATA_LOG}"
        if not storage.is_directory(directory):
            raise InvalidFile(f"{directory} does not exist, so there is nothing to recover")
        log = KafkaMetadataLog.open(directory, storage=storage, clock=clock, config=config.metadata_log)
        stack.callback(log.close)
        epoch = log.last_fetched_epoch + EPOCHS_LEFT_OUT
        if epoch >= LAST_EPOCH - EPOCHS_LEFT_OUT:
            raise InvalidFile(
                f"{directory}: cannot recover, since its last record already has epoch"
                f" {log.last_fetched_epoch}"
            )
        store = FileBasedStateStore(storage, directory)
        stored = _readable(store)
        if stored is not None and stored.leader_epoch <= epoch:
            return RecoveredElection(stored.leader_epoch, stored.leader_epoch)
        fresh = QuorumStateData(epoch)
        if stored is not None and stored.data_version == 0:
            voters = stored.current_voters
            fresh = replace(fresh, cluster_id=stored.cluster_id, current_voters=voters, data_version=0)
        store.write(fresh)
        return RecoveredElection(None if stored is None else stored.leader_epoch, epoch)


def _readable(store: FileBasedStateStore) -> QuorumStateData | None:
    try:
        return store.read()
    except InvalidFile:
        return None

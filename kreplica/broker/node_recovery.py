"""The way back for a voter whose stored election can lead to no further one.

An epoch is an int32. A node that has stored one beyond its range cannot read it again, and one that has
stored the last epoch of all can take part in no election. Neither epoch was ever led: the metadata log says
which were. So a new epoch behind all of those is written, without a vote and without a leader. No state; one
thread.
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
from kreplica.raft.file_based_state_store import FileBasedStateStore
from kreplica.raft.kafka_metadata_log import KafkaMetadataLog

# A voter may have voted in epochs after that of its last record, and is to vote in none of them again. So
# many elections without a single record in the log are out of the question: they would take a day at least.
EPOCHS_LEFT_OUT = 1 << 20


class RecoveredElection(NamedTuple):
    """`former_epoch`: what was stored, None where it could not be read. `epoch`: what is stored now."""

    former_epoch: int | None
    epoch: int

    @property
    def is_changed(self) -> bool:
        return self.former_epoch != self.epoch


def recover_election(config: NodeConfig, *, storage: Storage, clock: Clock) -> RecoveredElection:
    """Let the node's quorum-state hold an epoch from which elections can go on; one that does stays as it is.

    To be done on every voter while none of them runs: one that was left out would bring its epoch back.
    Raises LogDirLocked where the node runs, InvalidFile where the directory is not the node's or its log has
    no room left in its own epochs, and as KafkaMetadataLog.open.
    """
    with ExitStack() as stack:
        for path in config.all_directories:
            if read_properties(config, storage, path) is None:
                raise InvalidFile(f"{path} is not formatted")
            stack.callback(storage.lock_directory(path).release)
        directory = f"{config.metadata_directory}/{METADATA_LOG}"
        if not storage.is_directory(directory):
            raise InvalidFile(f"{directory} is not there, so there is nothing to recover")
        log = KafkaMetadataLog.open(directory, storage=storage, clock=clock, config=config.metadata_log)
        stack.callback(log.close)
        epoch = log.last_fetched_epoch + EPOCHS_LEFT_OUT
        if epoch >= LAST_EPOCH - EPOCHS_LEFT_OUT:
            raise InvalidFile(f"{directory}: its last record is of epoch {log.last_fetched_epoch} already")
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

"""Checks a node's small files before anything is opened: they must be readable and belong to the node.

A node that is refused because of one of them finds its disk unchanged after the file is repaired. No state;
one thread.
"""

from __future__ import annotations

from kreplica.broker.node_config import NodeConfig
from kreplica.broker.node_format import METADATA_LOG
from kreplica.common.errors import InvalidFile
from kreplica.common.ports import Storage
from kreplica.log.log_directory import LogDirectory
from kreplica.raft.quorum_state import FileBasedStateStore, require_own


def check_files(config: NodeConfig, storage: Storage) -> None:
    """Read the checkpoints of every log directory and the quorum's state.

    Snapshots are checked when the metadata log is opened, before anything else. Raises InvalidFile,
    UnsupportedVersion, InconsistentClusterId, InconsistentVoterSet, KafkaStorageError; nothing is changed
    then.
    """
    for path in config.directories:
        LogDirectory(storage, path).read_checkpoints()
    directory = f"{config.metadata_directory}/{METADATA_LOG}"
    if config.voters is None and not config.bootstrap_ids and not storage.is_directory(directory):
        raise InvalidFile(f"{directory}, which names the voters, does not exist: format the node again")
    store = FileBasedStateStore(storage, directory)
    stored = store.read()
    if stored is not None:
        configured = () if config.voters is None else config.voters.voters
        require_own(stored, config.cluster_id, configured, store.path)

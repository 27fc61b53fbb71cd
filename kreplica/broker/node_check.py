"""What a node looks at before it opens anything: that its small files can be read and are its own.

A node that is refused by one of them is to find its disk as it was, once that is mended. No state; one
thread.
"""

from __future__ import annotations

from kreplica.broker.node_config import NodeConfig
from kreplica.broker.node_format import METADATA_LOG
from kreplica.common.errors import InvalidFile
from kreplica.common.ports import Storage
from kreplica.log.log_directory import LogDirectory
from kreplica.raft.file_based_state_store import FileBasedStateStore
from kreplica.raft.quorum_state import require_own


def check_files(config: NodeConfig, storage: Storage) -> None:
    """Read the checkpoints of every log directory, and the quorum's state; its snapshots are checked where
    the metadata log is opened, as the first thing of all.

    Raises InvalidFile, UnsupportedVersion, InconsistentClusterId, InconsistentVoterSet, KafkaStorageError;
    nothing is changed then.
    """
    for path in config.directories:
        LogDirectory(storage, path).read_checkpoints()
    directory = f"{config.metadata_directory}/{METADATA_LOG}"
    if config.voters is None and not config.bootstrap_ids and not storage.is_directory(directory):
        raise InvalidFile(f"{directory} is gone, and with it who the voters are: format the node anew")
    store = FileBasedStateStore(storage, directory)
    stored = store.read()
    if stored is not None:
        configured = () if config.voters is None else config.voters.voters
        require_own(stored, config.cluster_id, configured, store.path)

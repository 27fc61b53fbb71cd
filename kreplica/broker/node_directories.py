"""A node's directories while the node does not run: they are formatted, checked, or recovered.

Formatting does what Kafka's `kafka-storage format` does: each directory gets its meta.properties, and the
metadata directory also gets a snapshot with the quorum's first voters, if the metadata log is to name them
(KIP-853), and one with the first users, if there are any. `check_files` reads the small files before a start,
so that a node refused because of one of them finds its disk unchanged after the file is repaired.
`recover_election` helps a voter whose stored election allows no further one. No state; one thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from posixpath import dirname
from typing import NamedTuple

from kreplica.broker.node_config import NodeConfig
from kreplica.common.dataclass import replace
from kreplica.common.errors import InvalidFile, KafkaStorageError, KreplicaError
from kreplica.common.ports import Clock, Random, Storage, Workers
from kreplica.common.quorum_state import LAST_EPOCH, QuorumStateData
from kreplica.common.types import Uuid
from kreplica.controller.feature_control import bootstrap_records
from kreplica.log.file_names import CLUSTER_METADATA_DIRECTORY, parse_directory_name
from kreplica.log.log_directory import LogDirectory
from kreplica.log.meta_properties import MetaProperties, MetaPropertiesFile
from kreplica.metadata.batch_reader import decoded_batches
from kreplica.metadata.records import MetadataRecord, UserScramCredentialRecord
from kreplica.metadata.serde import ApiMessageAndVersion
from kreplica.raft.kafka_metadata_log import KafkaMetadataLog
from kreplica.raft.quorum_state import FileBasedStateStore, require_own
from kreplica.raft.snapshots import (
    BOOTSTRAP_SNAPSHOT_ID,
    FileRawSnapshotWriter,
    RecordsSnapshotWriter,
    snapshot_name,
)
from kreplica.raft.voter_set import ReplicaKey, VoterNode, VoterSet

# The level of a quorum whose voters are named by records (KIP-853).
KRAFT_VERSION = 1
# Records that the first controller writes into the metadata log: Kafka's name.
BOOTSTRAP_RECORDS = "bootstrap.checkpoint"
# Suffix of what is being written.
MAKING_SUFFIX = ".formatting"
# A voter may have voted in epochs after that of its last record, and must not vote in them again. More
# elections than this without a single record would take at least a day.
EPOCHS_LEFT_OUT = 1 << 20


def directory_ids(config: NodeConfig, storage: Storage, random: Random) -> dict[str, Uuid]:
    """Return the ids of the node's directories: those in their meta.properties, or new ones.

    Nothing is written. Raises InconsistentClusterId, InvalidFile for another node's, KafkaStorageError.
    """
    ids: dict[str, Uuid] = {}
    for path in config.all_directories:
        found = read_properties(config, storage, path)
        known = None if found is None else found.directory_id
        ids[path] = Uuid.generate(random) if known is None else known
    return ids


def read_properties(config: NodeConfig, storage: Storage, path: str) -> MetaProperties | None:
    """Return the properties of a directory; None if it is unused. Raises as `directory_ids`."""
    if not storage.is_directory(path):
        return None
    found = MetaPropertiesFile(storage, path).read()
    if found is None:
        _require_unused(storage, path)
        return None
    found.require_owner(path, config.cluster_id, config.node_id)
    return found


def _require_unused(storage: Storage, path: str) -> None:
    """Raise InvalidFile if a node has used the directory. Without meta.properties the owner is unknown."""
    for name in storage.list_directory(path):
        if name == CLUSTER_METADATA_DIRECTORY:
            # An interrupted format leaves only the first snapshot there.
            files = storage.list_directory(f"{path}/{name}")
            is_used = any(file != snapshot_name(BOOTSTRAP_SNAPSHOT_ID) for file in files)
        else:
            is_used = parse_directory_name(name) is not None and storage.is_directory(f"{path}/{name}")
        if is_used:
            raise InvalidFile(f"{path} contains {name} but no meta.properties: restore that file")


def is_formatted(config: NodeConfig, storage: Storage) -> bool:
    """Return whether the metadata directory belongs to this node. Raises as `directory_ids`."""
    return read_properties(config, storage, config.metadata_directory) is not None


def format_nodes(
    configs: Mapping[int, NodeConfig], *, storage: Storage, clock: Clock, random: Random, workers: Workers
) -> None:
    """Format the nodes of a cluster that are not formatted. Its controllers are the quorum's first voters.

    Raises as `directory_ids` before anything is written, and KafkaStorageError.
    """
    ids = {node_id: directory_ids(config, storage, random) for node_id, config in configs.items()}
    voters = VoterSet(
        VoterNode(ReplicaKey(node_id, ids[node_id][config.metadata_directory]), (), 0, KRAFT_VERSION)
        for node_id, config in configs.items()
        if "controller" in config.roles
    )
    new = [node_id for node_id, config in configs.items() if not is_formatted(config, storage)]
    if new:
        # Each node waits for the disk several times. In parallel they take as long as one.
        workers.run(
            [
                partial(
                    format_node,
                    configs[node_id],
                    ids[node_id],
                    storage=storage,
                    clock=clock,
                    initial_voters=voters,
                )
                for node_id in new
            ]
        )


def format_node(
    config: NodeConfig,
    ids: Mapping[str, Uuid],
    *,
    storage: Storage,
    clock: Clock,
    initial_voters: VoterSet | None = None,
    credentials: Sequence[UserScramCredentialRecord] = (),
) -> None:
    """Write the files that make the directories this node's. Existing files are kept.

    `ids`: by directory. `initial_voters`: the same for every node of the quorum, each with the id of its
    metadata directory. `credentials`: of users who log in from the first start on. The meta.properties of the
    metadata directory is written last, so that formatting is atomic. Raises KafkaStorageError, and as
    `directory_ids`.
    """
    for path in config.all_directories:
        read_properties(config, storage, path)
    for path in reversed(config.all_directories):
        storage.make_directory(path)
        if path == config.metadata_directory and initial_voters is not None:
            _write_bootstrap_snapshot(f"{path}/{CLUSTER_METADATA_DIRECTORY}", storage, clock, initial_voters)
        if MetaPropertiesFile(storage, path).read() is None:
            if path == config.metadata_directory and credentials:
                _write_bootstrap_records(path, storage, clock, credentials)
            properties = MetaProperties(config.cluster_id, config.node_id, ids[path])
            MetaPropertiesFile(storage, path).write(properties)
            storage.sync_directory(dirname(path))


def _write_bootstrap_snapshot(directory: str, storage: Storage, clock: Clock, voters: VoterSet) -> None:
    if storage.is_directory(directory):
        return  # a quorum has started, or a format was interrupted after this step
    making = f"{directory}{MAKING_SUFFIX}"
    storage.remove_tree(making)
    storage.make_directory(making)
    _write_snapshot(making, storage, clock, voters=voters, kraft_version=KRAFT_VERSION)
    storage.rename(making, directory)


def _write_snapshot(
    directory: str,
    storage: Storage,
    clock: Clock,
    records: Sequence[ApiMessageAndVersion[MetadataRecord]] = (),
    *,
    voters: VoterSet | None = None,
    kraft_version: int = 0,
) -> None:
    """Write the snapshot with the id of the first one into a directory."""
    raw = FileRawSnapshotWriter(storage, directory, BOOTSTRAP_SNAPSHOT_ID, 1, lambda _: None)
    with RecordsSnapshotWriter(
        raw,
        clock,
        last_contained_log_timestamp=clock.time_ms(),
        voters=voters,
        kraft_version=kraft_version,
    ) as writer:
        writer.append(records)
        writer.freeze()


def _write_bootstrap_records(
    path: str, storage: Storage, clock: Clock, credentials: Sequence[UserScramCredentialRecord]
) -> None:
    """Write the first records of the metadata log, as Kafka does, which has the feature levels among them."""
    making = f"{path}/{BOOTSTRAP_RECORDS}{MAKING_SUFFIX}"
    storage.remove_tree(making)
    storage.make_directory(making)
    _write_snapshot(making, storage, clock, bootstrap_records(credentials))
    storage.rename(f"{making}/{snapshot_name(BOOTSTRAP_SNAPSHOT_ID)}", f"{path}/{BOOTSTRAP_RECORDS}")
    storage.remove_tree(making)


def bootstrap_credentials(config: NodeConfig, storage: Storage) -> list[UserScramCredentialRecord]:
    """Return the users that the node's metadata directory was formatted with.

    Raises InvalidFile, KafkaStorageError.
    """
    path = f"{config.metadata_directory}/{BOOTSTRAP_RECORDS}"
    if not storage.exists(path):
        return []
    try:
        records = [record for batch in decoded_batches(storage.read_file(path)) for record in batch.records]
    except KafkaStorageError:
        raise
    except KreplicaError as error:
        raise InvalidFile(f"{path} cannot be read ({error}): format the node again") from error
    return [each.message for each in records if isinstance(each.message, UserScramCredentialRecord)]


def check_files(config: NodeConfig, storage: Storage) -> None:
    """Read the checkpoints of every log directory and the quorum's state.

    Snapshots are checked when the metadata log is opened, before anything else. Raises InvalidFile,
    UnsupportedVersion, InconsistentClusterId, InconsistentVoterSet, KafkaStorageError; nothing is changed
    then.
    """
    for path in config.directories:
        LogDirectory(storage, path).read_checkpoints()
    directory = f"{config.metadata_directory}/{CLUSTER_METADATA_DIRECTORY}"
    if config.voters is None and not config.bootstrap_ids and not storage.is_directory(directory):
        raise InvalidFile(f"{directory}, which names the voters, does not exist: format the node again")
    store = FileBasedStateStore(storage, directory)
    stored = store.read()
    if stored is not None:
        configured = () if config.voters is None else config.voters.voters
        require_own(stored, config.cluster_id, configured, store.path)


class RecoveredElection(NamedTuple):
    """What the repair of a quorum-state file did.

    `former_epoch`: the stored epoch before, None if it was unreadable. `epoch`: the stored epoch now.
    """

    former_epoch: int | None
    epoch: int

    @property
    def is_changed(self) -> bool:
        return self.former_epoch != self.epoch


def recover_election(config: NodeConfig, *, storage: Storage, clock: Clock) -> RecoveredElection:
    """Write an epoch that allows elections into the node's quorum-state, unless it already has one.

    An epoch is an int32. A node that has stored a higher one cannot read it, and one that has stored the
    highest one cannot take part in any election. No leader ever had such an epoch; the metadata log shows
    which epochs had leaders. So a new epoch above all of those is written, without a vote and a leader.

    Do this on every voter while none of them runs: a voter that is left out would bring its epoch back.
    Raises LogDirLocked if the node runs, InvalidFile if the directory is not the node's or its log's epochs
    are too high, and as KafkaMetadataLog.open.
    """
    with ExitStack() as stack:
        for path in config.all_directories:
            if read_properties(config, storage, path) is None:
                raise InvalidFile(f"{path} is not formatted")
            stack.callback(storage.lock_directory(path).release)
        directory = f"{config.metadata_directory}/{CLUSTER_METADATA_DIRECTORY}"
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

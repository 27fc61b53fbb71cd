"""Formats empty directories for a node of a cluster, as Kafka's `kafka-storage format` does.

Each directory gets its meta.properties. The metadata directory also gets a snapshot with the quorum's first
voters, if the metadata log is to name them (KIP-853). No state; one thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from posixpath import dirname

from kreplica.broker.node_config import NodeConfig
from kreplica.common.errors import InconsistentClusterId, InvalidFile
from kreplica.common.ports import Clock, Random, Storage, Workers
from kreplica.common.types import Uuid
from kreplica.log.file_names import parse_directory_name
from kreplica.log.meta_properties import MetaProperties, MetaPropertiesFile
from kreplica.raft.snapshots import (
    BOOTSTRAP_SNAPSHOT_ID,
    FileRawSnapshotWriter,
    RecordsSnapshotWriter,
    snapshot_name,
)
from kreplica.raft.voter_set import ReplicaKey, VoterNode, VoterSet

METADATA_LOG = "__cluster_metadata-0"
# The level of a quorum whose voters are named by records (KIP-853).
KRAFT_VERSION = 1
# Suffix of the metadata log's directory until it is complete.
MAKING_SUFFIX = ".formatting"


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
    if found.cluster_id != config.cluster_id:
        raise InconsistentClusterId(
            f"{path} belongs to cluster {found.cluster_id}, not to {config.cluster_id}"
        )
    if found.node_id != config.node_id:
        raise InvalidFile(f"{path} belongs to node {found.node_id}, not to {config.node_id}")
    return found


def _require_unused(storage: Storage, path: str) -> None:
    """Raise InvalidFile if a node has used the directory. Without meta.properties the owner is unknown."""
    for name in storage.list_directory(path):
        if name == METADATA_LOG:
            # An interrupted format leaves only the first snapshot there.
            files = storage.list_directory(f"{path}/{name}")
            is_used = any(file != snapshot_name(BOOTSTRAP_SNAPSHOT_ID) for file in files)
        else:
            is_used = parse_directory_name(name) is not None and storage.is_directory(f"{path}/{name}")
        if is_used:
            raise InvalidFile(f"{path} contains {name} but no meta.properties: restore that file")


def is_formatted(config: NodeConfig, storage: Storage) -> bool:
    """Whether the metadata directory belongs to this node. Raises as `directory_ids`."""
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
) -> None:
    """Write the files that make the directories this node's. Existing files are kept.

    `ids`: by directory. `initial_voters`: the same for every node of the quorum, each with the id of its
    metadata directory. The meta.properties of the metadata directory is written last, so that formatting is
    atomic. Raises KafkaStorageError, and as `directory_ids`.
    """
    for path in config.all_directories:
        read_properties(config, storage, path)
    for path in reversed(config.all_directories):
        storage.make_directory(path)
        if path == config.metadata_directory and initial_voters is not None:
            _write_bootstrap_snapshot(f"{path}/{METADATA_LOG}", storage, clock, initial_voters)
        if MetaPropertiesFile(storage, path).read() is None:
            properties = MetaProperties(config.cluster_id, config.node_id, ids[path])
            MetaPropertiesFile(storage, path).write(properties)
            storage.sync_directory(dirname(path))


def _write_bootstrap_snapshot(directory: str, storage: Storage, clock: Clock, voters: VoterSet) -> None:
    if storage.is_directory(directory):
        return  # a quorum has started, or a format was interrupted after this step
    making = f"{directory}{MAKING_SUFFIX}"
    storage.remove_tree(making)
    storage.make_directory(making)
    raw = FileRawSnapshotWriter(storage, making, BOOTSTRAP_SNAPSHOT_ID, 1, lambda _: None)
    with RecordsSnapshotWriter(
        raw,
        clock,
        last_contained_log_timestamp=clock.time_ms(),
        voters=voters,
        kraft_version=KRAFT_VERSION,
    ) as writer:
        writer.freeze()
    storage.rename(making, directory)

"""`kreplica format`: prepare directories for a node, as Kafka's `kafka-storage format` does."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from kreplica.broker.node_config import NodeConfig
from kreplica.broker.node_directories import (
    KRAFT_VERSION,
    directory_ids,
    format_node,
    is_formatted,
    recover_election,
)
from kreplica.cli.output import print_json, refuse
from kreplica.cli.scram_argument import parse_credentials
from kreplica.common.errors import InvalidConfig, InvalidRequest
from kreplica.common.types import Uuid
from kreplica.raft.voter_set import ReplicaKey, VoterNode, VoterSet
from kreplica.runtime.clock import SystemClock
from kreplica.runtime.node_listeners import DEFAULT_CONTROLLER_LISTENER
from kreplica.runtime.storage import FileStorage
from kreplica.runtime.tcp_node import cluster_id_of

# Kafka generates 22 letters and digits, and accepts other text.
_CLUSTER_ID = re.compile("[!-~]{1,64}")


def run(
    directories: list[str],
    node_id: int,
    cluster_id: str | None,
    ignore_formatted: bool,
    as_json: bool,
    initial_controllers: str | None = None,
    add_scram: Sequence[str] = (),
) -> int:
    """Format the directories; returns the exit code. The first directory gets the metadata log.

    `initial_controllers`: the first voters of a quorum whose voters can change (KIP-853), as
    `id@host:port:directory-id,...`; the same for all nodes, also for those added later. `add_scram`: users,
    see scram_argument. Raises InvalidConfig, InvalidFile if a directory belongs to another node,
    InconsistentClusterId, KafkaStorageError.
    """
    chance = random.SystemRandom()
    cluster_id = str(Uuid.generate(chance)) if cluster_id is None else cluster_id
    if not _CLUSTER_ID.fullmatch(cluster_id):
        raise InvalidConfig(
            f"{cluster_id[:80]!r} is not a cluster id: use 1 to 64 printable ASCII characters"
        )
    config = NodeConfig(node_id=node_id, cluster_id=cluster_id, directories=tuple(directories))
    storage = FileStorage()
    voters = None if initial_controllers is None else parse_controllers(initial_controllers)
    credentials = parse_credentials(add_scram, chance)
    ids = directory_ids(config, storage, chance)
    own = None if voters is None else voters.voters.get(node_id)
    if own is not None:
        _take_id(config, storage, ids, own.voter_key.directory_id)
    if is_formatted(config, storage) and not ignore_formatted:
        return refuse(f"{directories[0]} is formatted already: --ignore-formatted leaves it as it is")
    format_node(
        config, ids, storage=storage, clock=SystemClock(), initial_voters=voters, credentials=credentials
    )
    for path in config.all_directories:
        if as_json:
            print_json(
                {
                    "path": path,
                    "node_id": node_id,
                    "cluster_id": cluster_id,
                    "directory_id": str(ids[path]),
                }
            )
        else:
            print(f"{path}: node {node_id} of cluster {cluster_id}, directory {ids[path]}")
    return 0


def recover(directories: list[str], node_id: int, as_json: bool) -> int:
    """Lower the stored epoch of a voter that cannot start or cannot go on; returns the exit code.

    Raises as `recover_election`.
    """
    cluster_id = cluster_id_of(directories[0])
    config = NodeConfig(node_id=node_id, cluster_id=cluster_id, directories=tuple(directories))
    found = recover_election(config, storage=FileStorage(), clock=SystemClock())
    if as_json:
        print_json({"path": directories[0], "former_epoch": found.former_epoch, "epoch": found.epoch})
    elif found.is_changed:
        former = "an epoch that cannot be read" if found.former_epoch is None else str(found.former_epoch)
        print(f"{directories[0]}: lowered the quorum's epoch from {former} to {found.epoch}")
    else:
        print(f"{directories[0]}: epoch {found.epoch} is in range; nothing was changed")
    return 0


def parse_controllers(text: str) -> VoterSet:
    """Parse --initial-controllers. Raises InvalidConfig."""
    nodes = []
    for part in text.split(","):
        address, _, directory_id = part.strip().rpartition(":")
        try:
            configured = next(iter(VoterSet.parse(address, DEFAULT_CONTROLLER_LISTENER)))
            key = ReplicaKey(configured.voter_key.node_id, Uuid.parse(directory_id))
        except (InvalidConfig, InvalidRequest) as error:
            what = f"--initial-controllers: {part[:80]!r} is not id@host:port:directory-id"
            raise InvalidConfig(f"{what} ({error})") from None
        nodes.append(VoterNode(key, configured.endpoints, 0, KRAFT_VERSION))
    if len({node.voter_key.node_id for node in nodes}) < len(nodes):
        raise InvalidConfig("--initial-controllers names a node twice")
    return VoterSet(nodes)


def _take_id(config: NodeConfig, storage: FileStorage, ids: dict[str, Uuid], directory_id: Uuid) -> None:
    """Give the metadata directory the id under which the voters know it."""
    path = config.metadata_directory
    if is_formatted(config, storage) and ids[path] != directory_id:
        raise InvalidConfig(
            f"{path} has the directory id {ids[path]}, but --initial-controllers names {directory_id}"
        )
    ids[path] = directory_id

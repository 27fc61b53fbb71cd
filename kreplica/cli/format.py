"""`kreplica format`: makes directories those of a node, as Kafka's `kafka-storage format` does."""

from __future__ import annotations

import random
import re

from kreplica.broker.node_config import NodeConfig
from kreplica.broker.node_format import directory_ids, format_node, is_formatted
from kreplica.cli.output import console, print_json
from kreplica.common.errors import InvalidConfig
from kreplica.common.types import Uuid
from kreplica.runtime.clock import SystemClock
from kreplica.runtime.storage import FileStorage

# Kafka makes them of 22 letters and digits, and takes others.
_CLUSTER_ID = re.compile("[!-~]{1,64}")


def run(
    directories: list[str], node_id: int, cluster_id: str | None, ignore_formatted: bool, as_json: bool
) -> int:
    """Format the directories, the first of which has the metadata log; returns the exit code.

    Raises InvalidConfig, InvalidFile for another node's, InconsistentClusterId, KafkaStorageError.
    """
    chance = random.SystemRandom()
    cluster_id = str(Uuid.generate(chance)) if cluster_id is None else cluster_id
    if not _CLUSTER_ID.fullmatch(cluster_id):
        raise InvalidConfig(f"{cluster_id[:80]!r} is no cluster id: 1 to 64 letters, digits and signs")
    config = NodeConfig(node_id=node_id, cluster_id=cluster_id, directories=tuple(directories))
    storage = FileStorage()
    ids = directory_ids(config, storage, chance)
    if is_formatted(config, storage) and not ignore_formatted:
        console(stderr=True).print(f"kreplica: {directories[0]} is formatted already", markup=False)
        return 1
    format_node(config, ids, storage=storage, clock=SystemClock())
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

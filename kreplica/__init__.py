"""kreplica: Kafka's replica layer as a library.

A durable, replicated, partitioned log that a program opens like a database. `Log` is the log of a single
partition. `Cluster` runs brokers and controllers in one process, with real replication; `Simulation` is such
a cluster under a virtual clock, with injected faults. `ReplicaManager` and `Partition` are the replica layer
for embedding; `aio` has Log and Cluster for asyncio. All but `Log` are imported on first use, because they
need the protocol's messages.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kreplica.common import errors
from kreplica.common.errors import KreplicaError
from kreplica.engine import Log, LogAppendInfo, Record, RecordBatch

if TYPE_CHECKING:
    from kreplica import aio
    from kreplica.cluster import Cluster
    from kreplica.cluster.simulation import Simulation
    from kreplica.replica.partition import Partition
    from kreplica.replica.replica_manager import ReplicaManager

__all__ = [
    "Cluster",
    "KreplicaError",
    "Log",
    "LogAppendInfo",
    "Partition",
    "Record",
    "RecordBatch",
    "ReplicaManager",
    "Simulation",
    "aio",
    "errors",
]

_LATER = {
    "Cluster": "kreplica.cluster",
    "Partition": "kreplica.replica.partition",
    "ReplicaManager": "kreplica.replica.replica_manager",
    "Simulation": "kreplica.cluster.simulation",
}


def __getattr__(name: str) -> Any:
    if name == "aio":
        return import_module("kreplica.aio")
    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

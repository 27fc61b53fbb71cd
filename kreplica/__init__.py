"""kreplica: Kafka's replica layer as a library.

A durable, replicated, partitioned log that a program opens like a database. `Log` is the log of a single
partition. `Cluster` runs brokers and controllers in one process, with real replication; `Simulation` is such
a cluster under a virtual clock, with injected faults. `embedding` replicates inside a program that makes the
decisions itself, with `ReplicaManager` and `Partition`; `aio` has Log and Cluster for asyncio. All but `Log`
are imported on first use, because they need the protocol's messages.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING
from typing import Any as _Any

from kreplica.common import errors
from kreplica.common.errors import KreplicaError
from kreplica.common.types import TopicPartition
from kreplica.engine import Log, LogAppendInfo, Record, RecordBatch

if TYPE_CHECKING:
    from kreplica import aio, embedding
    from kreplica.cluster import AppendResult, Cluster, RecordMetadata
    from kreplica.cluster.simulation import Simulation
    from kreplica.replica.partition import Partition
    from kreplica.replica.replica_manager import ReplicaManager

__all__ = [
    "AppendResult",
    "Cluster",
    "KreplicaError",
    "Log",
    "LogAppendInfo",
    "Partition",
    "Record",
    "RecordBatch",
    "RecordMetadata",
    "ReplicaManager",
    "Simulation",
    "TopicPartition",
    "aio",
    "embedding",
    "errors",
]

# The modules of names that are imported on first use; the module itself for a name that ends in its own.
_LATER = {
    "AppendResult": "kreplica.cluster",
    "Cluster": "kreplica.cluster",
    "Partition": "kreplica.replica.partition",
    "RecordMetadata": "kreplica.cluster",
    "ReplicaManager": "kreplica.replica.replica_manager",
    "Simulation": "kreplica.cluster.simulation",
    "aio": "kreplica.aio",
    "embedding": "kreplica.embedding",
}


def __getattr__(name: str) -> _Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _import_module(_LATER[name])
    return module if module.__name__ == f"{__name__}.{name}" else getattr(module, name)


def __dir__() -> list[str]:
    return [*__all__, *(name for name in globals() if name.startswith("__"))]

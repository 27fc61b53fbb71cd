"""kreplica: Kafka's replica layer as a library.

A durable, replicated, partitioned log that a program opens like a database. `Log` is the log of a single
partition. `Cluster` runs brokers and controllers in one process, with real replication; `Simulation` is such
a cluster under a virtual clock, with injected faults. `embedding` replicates inside a program that makes the
decisions itself, with `ReplicaManager` and `Partition`; `aio` has Log and Cluster for asyncio; `arrow` reads
many logs as one Arrow stream, and `spark` is a Spark data source. Each name is imported on first use, so
`import kreplica` alone costs nothing. The last two import this package, and so are not in `__all__`.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

    from kreplica import aio, embedding
    from kreplica.cluster import AppendResult, Cluster, RecordMetadata
    from kreplica.cluster.security import Security
    from kreplica.cluster.simulation import Simulation
    from kreplica.common import errors
    from kreplica.common.errors import KreplicaError
    from kreplica.common.types import TopicPartition
    from kreplica.embedding import Partition, ReplicaManager
    from kreplica.engine import Log, LogAppendInfo, Record, RecordBatch
    from kreplica.runtime.log_output import enable_logging

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
    "Security",
    "Simulation",
    "TopicPartition",
    "aio",
    "embedding",
    "enable_logging",
    "errors",
]

__version__ = "0.1.0"

# The module of each name; the module itself for a name that is its own last part.
_MODULES = {
    "AppendResult": "kreplica.client.producer",
    "Cluster": "kreplica.cluster.cluster",
    "KreplicaError": "kreplica.common.errors",
    "Log": "kreplica.engine",
    "LogAppendInfo": "kreplica.engine",
    "Partition": "kreplica.embedding",
    "Record": "kreplica.engine",
    "RecordBatch": "kreplica.engine",
    "RecordMetadata": "kreplica.client.producer",
    "ReplicaManager": "kreplica.embedding",
    "Security": "kreplica.cluster.security",
    "Simulation": "kreplica.cluster.simulation",
    "TopicPartition": "kreplica.common.types",
    "aio": "kreplica.aio",
    "arrow": "kreplica.arrow",
    "embedding": "kreplica.embedding",
    "enable_logging": "kreplica.runtime.log_output",
    "errors": "kreplica.common.errors",
    "spark": "kreplica.spark",
}


def __getattr__(name: str) -> "Any":
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _import_module(_MODULES[name])
    found = module if module.__name__.endswith(f".{name}") else getattr(module, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*__all__, *(name for name in globals() if name.startswith("__"))]

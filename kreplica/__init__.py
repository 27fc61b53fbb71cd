"""kreplica: Kafka's replica layer as a library.

A durable, replicated, partitioned log that a program opens like a database. `Log` is one partition's log by
itself. `ReplicaManager` and `Partition` are the replica layer for those who embed it; they are imported when
they are first asked for, since they need the protocol's messages.
"""

from typing import TYPE_CHECKING, Any

from kreplica.common import errors
from kreplica.common.errors import KreplicaError
from kreplica.engine import Log, LogAppendInfo, Record, RecordBatch

if TYPE_CHECKING:
    from kreplica.replica.partition import Partition
    from kreplica.replica.replica_manager import ReplicaManager

__all__ = [
    "KreplicaError",
    "Log",
    "LogAppendInfo",
    "Partition",
    "Record",
    "RecordBatch",
    "ReplicaManager",
    "errors",
]


def __getattr__(name: str) -> Any:
    if name == "Partition":
        from kreplica.replica.partition import Partition

        return Partition
    if name == "ReplicaManager":
        from kreplica.replica.replica_manager import ReplicaManager

        return ReplicaManager
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

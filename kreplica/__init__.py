"""kreplica: Kafka's replica layer as a library.

A durable, replicated, partitioned log that a program opens like a database. `Log` is one partition's log by
itself.
"""

from kreplica.common import errors
from kreplica.common.errors import KreplicaError
from kreplica.engine import Log, LogAppendInfo, Record, RecordBatch

__all__ = ["KreplicaError", "Log", "LogAppendInfo", "Record", "RecordBatch", "errors"]

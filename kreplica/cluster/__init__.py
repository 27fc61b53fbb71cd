"""Cluster: brokers and controllers in one process, with real replication.

Each node has its own directory, life cycle and messages. Any node can be killed, paused, cut off from the
network and started again. Appends are retried until they are acknowledged, wherever the leader is.
"""

from kreplica.client.producer import AppendResult, RecordMetadata
from kreplica.cluster.cluster import Cluster
from kreplica.cluster.records import Consumer
from kreplica.cluster.transactions import Transaction
from kreplica.cluster.views import ClusterWatch, PartitionView
from kreplica.metadata.image_paths import TreeChange

__all__ = [
    "AppendResult",
    "Cluster",
    "ClusterWatch",
    "Consumer",
    "PartitionView",
    "RecordMetadata",
    "Transaction",
    "TreeChange",
]

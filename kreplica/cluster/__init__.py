"""Cluster: brokers and controllers in one process, replicated for real.

Each node has its directory, its life and its messages; any of them can be killed, paused or cut off, and
started again. What a program appends is tried again until it is acknowledged, wherever the leader is.
"""

from kreplica.client.partition_sender import RecordMetadata
from kreplica.cluster.cluster import Cluster
from kreplica.cluster.views import PartitionView

__all__ = ["Cluster", "PartitionView", "RecordMetadata"]

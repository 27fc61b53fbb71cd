"""The Spark data source `kreplica-topics`: the topics of a cluster as rows; appended rows become topics.

The catalog in Spark's JVM lists and creates topics with it. Thread rule: as Spark's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

from kreplica.spark.cluster_client import ClusterClient
from kreplica.spark.commit_log import partition_counts
from kreplica.spark.options import parse_connection
from pyspark.sql import Row
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType


class KreplicaTopics(DataSource):
    """Columns topic and partitions; to create topics also replication_factor (-1: the cluster's default)."""

    @classmethod
    def name(cls) -> str:
        return "kreplica-topics"

    def schema(self) -> str:
        return "topic string, partitions int"

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        return _Reader(ClusterClient(*parse_connection(self.options)))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: ARG002
        return _Writer(ClusterClient(*parse_connection(self.options)))


class _Reader(DataSourceReader):
    def __init__(self, client: ClusterClient) -> None:
        self._client = client

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[tuple[str, int]]:  # noqa: ARG002
        with closing(self._client) as client:
            yield from sorted(partition_counts(client.partitions()).items())


class _Writer(DataSourceWriter):
    def __init__(self, client: ClusterClient) -> None:
        self._client = client

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        with closing(self._client) as client:
            for row in iterator:
                client.create_topic(row.topic, row.partitions, row.replication_factor)
        return WriterCommitMessage()

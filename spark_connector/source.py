"""The Spark data source `kreplica`, the entry point that Spark calls. Thread rule: as Spark's."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kreplica.spark import jvm_reader
from kreplica.spark import schema as schemas
from kreplica.spark.options import parse_read, parse_write, refuse_decoding, refuse_relative
from kreplica.spark.readers import KreplicaReader, KreplicaStreamReader
from kreplica.spark.sink import KreplicaStreamWriter, KreplicaWriter
from kreplica.spark.topics_source import KreplicaTopics
from pyspark.errors import PySparkException
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMAT = "kreplica"

logger = logging.getLogger(__name__)


class KreplicaDataSource(DataSource):
    """format("kreplica"): reads with the options of format("kafka"), and `path` for log directories."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        refuse_decoding(self.options)
        with_headers = self.options.get("includeHeaders", "false").strip().lower() == "true"
        return schemas.SCHEMA_WITH_HEADERS if with_headers else schemas.SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return KreplicaReader(parse_read(self.options, streaming=False), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return KreplicaStreamReader(parse_read(self.options, streaming=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return KreplicaWriter(parse_write(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: ARG002
        # Output mode complete asks to overwrite; as with Spark's Kafka sink, its rows are appended.
        return KreplicaStreamWriter(parse_write(self.options), schema)


class KreplicaRemoteDataSource(KreplicaDataSource):
    """The same source for a session of Spark Connect; it refuses relative paths."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        refuse_relative(options)


class KreplicaPythonDataSource(KreplicaDataSource):
    """The same source under another name, by which the JVM data source finds it."""

    @classmethod
    def name(cls) -> str:
        return f"{FORMAT}-python"


def register(spark: SparkSession) -> None:
    """Register format("kreplica") with the session, and let filters use the logs' indexes.

    If the session has a JVM that accepts the jar, the jar provides the format: it reads directories itself
    and passes everything else to Python. Local checkpoints are then written faster (`hasten_checkpoints`).
    Workers of a local master use the driver's Python, unless PYSPARK_PYTHON names another one.
    """
    jvm_reader.share_python(spark)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        jvm_reader.add_to(spark)
    except jvm_reader.NoJvmReader as reason:
        _register_python(spark, reason)
    else:
        jvm_reader.hasten_checkpoints(spark)
        jvm_reader.share_source(spark, KreplicaPythonDataSource)
        jvm_reader.share_source(spark, KreplicaTopics)
        logger.info("format kreplica: the JVM reads directories; reader=python selects Python")


def _register_python(spark: SparkSession, reason: jvm_reader.NoJvmReader) -> None:
    """Register the Python reader, or both if the session's server has the jar."""
    is_remote = not hasattr(spark, "_jsparkSession")
    try:
        spark.dataSource.register(KreplicaRemoteDataSource if is_remote else KreplicaDataSource)
    except PySparkException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
        # spark.jars of the server has the jar, which provides the format and looks for this name.
        spark.dataSource.register(KreplicaPythonDataSource)
        spark.dataSource.register(KreplicaTopics)
        logger.info("format kreplica: the server's JVM reads directories; reader=python selects Python")
        return
    logger.info("format kreplica: Python reads, because the JVM reader is not available: %s", reason)

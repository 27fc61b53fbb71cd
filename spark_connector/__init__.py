"""Spark reads and writes kreplica's and Kafka's logs: `register(spark)`, then format("kreplica").

    spark_connector.register(spark)
    spark.read.format("kreplica").load("data")

Two readers stand behind the format. In a session with a JVM of its own directories are read there, by a jar
that is made at the first use (`jar`); the option reader=python chooses the other, which reads clusters, too.
pyspark is imported when it is needed, for a Java runtime may have to be found before (`use_java`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_connector.java_runtime import use_java
from spark_connector.progress import lag

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["jar", "lag", "register", "use_java"]


def register(spark: SparkSession) -> None:
    """Make format("kreplica") known to the session, and let its filters reach the logs' indexes."""
    from spark_connector.source import register as register_source

    register_source(spark)


def jar() -> str:
    """The jar with the JVM reader, for `spark.jars` where a session takes none later. Raises NoJvmReader."""
    from spark_connector.jvm_reader import jar as made

    return made()

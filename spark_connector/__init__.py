"""Spark reads and writes kreplica's and Kafka's logs: `register(spark)`, then format("kreplica").

    spark_connector.register(spark)
    spark.read.format("kreplica").load("data")

pyspark is imported when it is needed, for a Java runtime may have to be found before (`use_java`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_connector.java_runtime import use_java
from spark_connector.progress import lag

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["lag", "register", "use_java"]


def register(spark: SparkSession) -> None:
    """Make format("kreplica") known to the session, and let its filters reach the logs' indexes."""
    from spark_connector.source import register as register_source

    register_source(spark)

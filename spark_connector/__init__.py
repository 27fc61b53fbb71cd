"""Read and write kreplica's and Kafka's logs with Spark: `register(spark)`, then format("kreplica").

    kreplica.spark.register(spark)
    spark.read.format("kreplica").load("data")

The format has two readers. A session with a JVM of its own reads there, with a jar that is built at first use
(`jar`). The option reader=python selects the Python reader, which reads everything.
pyspark is imported late, because a Java runtime may have to be found first (`use_java`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kreplica.spark.java_runtime import use_java
from kreplica.spark.offsets import lag

from kreplica.common.optional import require_package

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["jar", "lag", "register", "use_java"]


def register(spark: SparkSession) -> None:
    """Register format("kreplica") with the session, and let filters use the logs' indexes.

    Raises ImportError if pyspark is not installed.
    """
    require_package("pyspark")
    from kreplica.spark.source import register as register_source

    register_source(spark)


def jar() -> str:
    """Return the path of the jar with the JVM reader, building it if necessary.

    Set `spark.jars` to it where a running session accepts no jar. Raises NoJvmReader.
    """
    from kreplica.spark.jvm_reader import jar as made

    return made()

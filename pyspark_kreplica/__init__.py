"""The package in which Spark discovers format("kreplica").

Spark looks for a `DefaultSource` in each package whose name begins with pyspark_. So a session needs no
`register` if its Python has kreplica[spark]. The JVM reader needs its jar: set `spark.jars`.
Thread rule: as Spark's.
"""

from kreplica.spark.source import KreplicaDataSource as DefaultSource

__all__ = ["DefaultSource"]

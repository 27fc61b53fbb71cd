"""The engine for other runtimes: reads partitions as one Arrow stream.

`scan` reads directories of kreplica or Kafka, without a broker. Its result has `__arrow_c_stream__`, so
pyarrow, polars, DuckDB and everything else that supports Arrow's C interface accept it directly.
"""

from kreplica.arrow.arrow_stream import ArrowStream, scan
from kreplica.arrow.partition_directories import PartitionDirectories

__all__ = ["ArrowStream", "PartitionDirectories", "scan"]

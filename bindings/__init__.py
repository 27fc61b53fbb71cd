"""The engine for other runtimes: partitions as one Arrow stream.

`scan` reads directories of kreplica or of Kafka, with no broker; what it returns has `__arrow_c_stream__`, so
pyarrow, polars, DuckDB and whoever else speaks Arrow's C interface take it as it is.
"""

from bindings.arrow_stream import ArrowStream, scan
from bindings.partition_directories import PartitionDirectories

__all__ = ["ArrowStream", "PartitionDirectories", "scan"]

"""The one-machine tools as Spark jobs, for archives of logs larger than one machine.

    from kreplica.spark import jobs
    jobs.verify(spark, ["archive/node-1", "archive/node-2"]).show()

Each job gives the result of the tool of the same name. `verify`, `diff` and `offsets` inspect files: they run
kreplica's native code in Spark's workers. `export` and `latest` pass records on: they read them with
format("kreplica"). Directories must exist under the same paths on all machines that Spark uses, with
kreplica[spark] installed. Thread rule: as Spark's.
"""

from kreplica.spark.jobs.comparison import compare, diff
from kreplica.spark.jobs.offsets_table import offsets
from kreplica.spark.jobs.parquet_export import Exported, export, export_latest, latest, latest_of
from kreplica.spark.jobs.records import JobError
from kreplica.spark.jobs.verification import verify

__all__ = [
    "Exported",
    "JobError",
    "compare",
    "diff",
    "export",
    "export_latest",
    "latest",
    "latest_of",
    "offsets",
    "verify",
]

"""The one-machine tools as Spark jobs, for archives of logs larger than one machine.

    from spark_connector import jobs
    jobs.verify(spark, ["archive/node-1", "archive/node-2"]).show()

Each job gives the result of the tool of the same name. `verify`, `diff` and `offsets` inspect files: they run
kreplica's native code in Spark's workers. `export` and `latest` pass records on: they read them with
format("kreplica"). Directories must exist under the same paths on all machines that Spark uses, with
kreplica[spark] installed. Thread rule: as Spark's.
"""

from spark_connector.jobs.comparison import compare, diff
from spark_connector.jobs.offsets_table import offsets
from spark_connector.jobs.parquet_export import Exported, export, export_latest, latest, latest_of
from spark_connector.jobs.records import JobError
from spark_connector.jobs.verification import verify

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

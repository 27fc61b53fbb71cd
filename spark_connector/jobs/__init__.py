"""What the one-machine tools do, by Spark: over archives of logs that are larger than one machine.

    from spark_connector import jobs
    jobs.verify(spark, ["archive/node-1", "archive/node-2"]).show()

Each gives what the tool of the same name gives on the same data. What looks at files, `verify`, `diff` and
`offsets`, runs kreplica's own native code in Spark's workers; what hands records on, `export` and `latest`,
reads them by format("kreplica"). Directories have to be there, by the same paths, on all machines that Spark
works on, and kreplica[spark] has to be installed there. Thread rule: as Spark's.
"""

from spark_connector.jobs.comparison import compare, diff
from spark_connector.jobs.latest_view import export_latest, latest, latest_of
from spark_connector.jobs.offsets_table import offsets
from spark_connector.jobs.parquet_export import Exported, export
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

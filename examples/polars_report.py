"""A report by Polars over all partitions of a topic, straight from the files of a running program.

`kreplica.arrow.scan` reads directories of kreplica or Kafka as one Arrow stream. A writer may append
meanwhile.
"""

import json
import tempfile

import kreplica.arrow
import polars as pl

import kreplica


def measure(directory: str) -> None:
    for partition in range(3):
        with kreplica.Log.open(f"{directory}/measures-{partition}") as log:
            rows = [{"sensor": f"s{partition}", "degrees": 15 + number % 10} for number in range(1000)]
            log.append([json.dumps(row).encode() for row in rows])


def report(directory: str) -> pl.DataFrame:
    stream = kreplica.arrow.scan(directory, topics=["measures"], columns=["partition", "offset", "value"])
    fields = pl.Struct({"sensor": pl.String, "degrees": pl.Int64})
    return (
        pl.DataFrame(stream)
        .with_columns(pl.col("value").cast(pl.String).str.json_decode(fields).alias("row"))
        .unnest("row")
        .group_by("sensor")
        .agg(pl.len().alias("records"), pl.col("degrees").mean(), pl.col("degrees").max().alias("max"))
        .sort("sensor")
    )


def main(directory: str) -> None:
    measure(directory)
    for row in report(directory).iter_rows():
        print(*row)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        main(made)

"""The records that jobs read: their source, and their columns.

A source is a path, several paths, or the options of format("kreplica") by name, so jobs can read a running
cluster, too. Thread rule: pure functions.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from kreplica.spark.schema import HEADERS
from pyspark.sql import functions

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Path: TypeAlias = str | os.PathLike[str]
Source: TypeAlias = Path | Iterable[Path] | Mapping[str, str]

# As in `kreplica export`, which writes these by default.
COLUMNS = ("topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers")


class JobError(ValueError):
    """The arguments of a job are wrong."""


def local_paths(paths: Path | Iterable[Path]) -> list[str]:
    """Return the paths as absolute ones, because a worker has another working directory.

    Raises JobError for the options of a source.
    """
    if isinstance(paths, Mapping):
        raise JobError(f"name directories, not options ({', '.join(paths)}): this job inspects files")
    given = [paths] if isinstance(paths, str | os.PathLike) else paths
    return [os.path.abspath(os.fspath(path)) for path in given]


def options_of(source: Source, **defaults: str) -> dict[str, str]:
    """Return the options of format("kreplica") for this source, completed by `defaults`."""
    given = dict(source) if isinstance(source, Mapping) else {"paths": json.dumps(local_paths(source))}
    said = {name.lower() for name in given}
    return {**{name: value for name, value in defaults.items() if name.lower() not in said}, **given}


def select(frame: DataFrame, columns: Iterable[str]) -> DataFrame:
    """Select `columns`, of COLUMNS, from rows of format("kreplica"), as the one-machine tool writes them."""
    return frame.select(*(_column(name) for name in columns))


def _column(name: str) -> Column:
    if name == "timestamp_type":
        is_append = functions.col("timestampType") == 1
        return functions.when(is_append, "log_append").otherwise("create").alias(name)
    if name == "headers":
        none = functions.array().cast(HEADERS.dataType)
        return functions.coalesce(functions.col(name), none).alias(name)
    return functions.col(name)

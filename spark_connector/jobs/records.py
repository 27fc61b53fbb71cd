"""Records for jobs: from where they are read, and with which columns.

A source is a path, several paths, or the options of format("kreplica") by name, so a running cluster may be
read as well. Thread rule: pure functions.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from pyspark.sql import functions

from spark_connector.schema import HEADERS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Path: TypeAlias = str | os.PathLike[str]
Source: TypeAlias = Path | Iterable[Path] | Mapping[str, str]

# As `kreplica export` has them, and its columns by default.
COLUMNS = ("topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers")


class JobError(ValueError):
    """What a job was asked for cannot be meant so."""


def local_paths(paths: Path | Iterable[Path]) -> list[str]:
    """The paths as a worker finds them, whose working directory is another one. Raises JobError for what
    are options of a source."""
    if isinstance(paths, Mapping):
        raise JobError(f"name directories, for it looks at their files: not {', '.join(paths)}")
    given = [paths] if isinstance(paths, str | os.PathLike) else paths
    return [os.path.abspath(os.fspath(path)) for path in given]


def options_of(source: Source, **defaults: str) -> dict[str, str]:
    """The options of format("kreplica") for this source; `defaults` where it does not say otherwise."""
    given = dict(source) if isinstance(source, Mapping) else {"paths": json.dumps(local_paths(source))}
    said = {name.lower() for name in given}
    return {**{name: value for name, value in defaults.items() if name.lower() not in said}, **given}


def select(frame: DataFrame, columns: Iterable[str]) -> DataFrame:
    """Rows of format("kreplica") with `columns`, of COLUMNS, as the one-machine tool writes them."""
    return frame.select(*(_column(name) for name in columns))


def _column(name: str) -> Column:
    if name == "timestamp_type":
        is_append = functions.col("timestampType") == 1
        return functions.when(is_append, "log_append").otherwise("create").alias(name)
    if name == "headers":
        none = functions.array().cast(HEADERS.dataType)
        return functions.coalesce(functions.col(name), none).alias(name)
    return functions.col(name)

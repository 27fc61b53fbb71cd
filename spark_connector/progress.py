"""The lag of a stream, from Spark's report of its progress. Thread rule: pure functions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from kreplica.common.types import TopicPartition
from spark_connector.offsets import from_json


def lag(progress: Any) -> dict[TopicPartition, int]:
    """Return the lag of each partition: the records that the stream had not read when the batch ended.

    `progress`: `query.lastProgress`, or what a listener gets. Gaps left by compaction or transactions count
    as records. Raises ValueError if the query has had no batch.
    """
    if progress is None:
        raise ValueError("the query has had no batch yet")
    found: dict[TopicPartition, int] = {}
    for source in _member(progress, "sources"):
        latest = _offsets(_member(source, "latestOffset"))
        reached = _offsets(_member(source, "endOffset"))
        for at, end in latest.items():
            found[at] = max(0, end - reached.get(at, 0))
    return found


def _member(given: Any, name: str) -> Any:
    # Spark passes an object, and in some versions and calls a dict.
    return given[name] if isinstance(given, Mapping) else getattr(given, name)


def _offsets(given: Any) -> dict[TopicPartition, int]:
    found = json.loads(given) if isinstance(given, str) else given
    return from_json(found) if found else {}

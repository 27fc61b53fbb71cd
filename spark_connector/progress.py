"""How far a stream is behind: from what Spark reports of its progress. Thread rule: pure functions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from kreplica.common.types import TopicPartition
from spark_connector.offsets import from_json


def lag(progress: Any) -> dict[TopicPartition, int]:
    """Of each partition of format("kreplica") the records that the stream had not read when the batch was
    done, of all that were there; from `query.lastProgress`, or what a listener is given.

    A gap that compaction or a transaction left counts as records. Raises ValueError where the progress is
    of no batch.
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
    # Spark gives an object, and in some versions and calls a dict.
    return given[name] if isinstance(given, Mapping) else getattr(given, name)


def _offsets(given: Any) -> dict[TopicPartition, int]:
    found = json.loads(given) if isinstance(given, str) else given
    return from_json(found) if found else {}

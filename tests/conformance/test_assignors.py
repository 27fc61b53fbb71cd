"""Assignors beside Kafka's own: the same groups, the same assignments.

Kafka's assignors run in `java/Assignors.java`. `python -m tests.conformance.test_assignors` renews the small
file of cases that the unit tests read.
"""

from __future__ import annotations

import gzip
import json
import random
import sys

import pytest

from tests.conformance.kafka_peer import HERE, run_java
from tests.support.assignor_cases import FIXTURE, Case, assigned, cases

pytestmark = pytest.mark.conformance

SOURCES = (HERE / "java" / "Assignors.java",)
ROUNDS = 400


def kafkas(groups: list[Case]) -> list[object]:
    """What Kafka's assignors make of the groups."""
    lines = "".join(f"{json.dumps(each)}\n" for each in groups)
    said = run_java("Assignors", sources=SOURCES, timeout_s=300, standard_input=lines)
    return [json.loads(line) for line in said.splitlines()]


def test_partitions_are_assigned_as_kafka_does() -> None:
    groups = list(cases(random.Random(0), ROUNDS))
    for group, theirs in zip(groups, kafkas(groups), strict=True):
        assert assigned(group) == theirs, json.dumps(group)


if __name__ == "__main__":
    made = list(cases(random.Random(1), 12))
    rows = [[group, theirs] for group, theirs in zip(made, kafkas(made), strict=True)]
    FIXTURE.write_bytes(gzip.compress(json.dumps(rows).encode(), mtime=0))
    sys.stdout.write(f"{len(rows)} cases\n")

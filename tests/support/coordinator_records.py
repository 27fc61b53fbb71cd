"""A fixed record of each kind in the topics of the group coordinator and the share coordinator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from kreplica.common.message import Record
from kreplica.coordinator import group_records, share_records
from kreplica.coordinator.group_records import RECORD_KINDS
from tests.support.metadata_records import example

# The bytes of key and value of each example in hex, as Kafka 4.3's classes write them.
WRITTEN_BY_KAFKA = Path(__file__).resolve().parents[1] / "data" / "kafka-4.3" / "coordinator_records.txt"


class Example(NamedTuple):
    """A record of one version. `serde` has the functions that encode and decode it."""

    serde: ModuleType
    number: int
    version: int
    key: Record
    value: Record

    @property
    def key_bytes(self) -> bytes:
        """The key as it is written."""
        return self.serde.encode_key(self.key)

    @property
    def value_bytes(self) -> bytes:
        """The value as it is written in its version."""
        if self.serde is share_records:
            return share_records.encode_value(self.value)
        return group_records.encode_value(self.value, self.version)


def examples() -> Iterator[Example]:
    """Yield each kind in each version twice: with a minimum of fields, and with all of them."""
    for whole in (False, True):
        for number, kind in RECORD_KINDS.items():
            # Kafka reads type 0 only with values of version 0; it has not written it for years.
            for version in range(kind.highest_version + 1) if number else ():
                value = example(kind.value, version, whole, 1)
                yield Example(group_records, number, version, example(kind.key, 0, whole, 1), value)
        for number, (key, value) in enumerate(
            (
                (share_records.ShareSnapshotKey, share_records.ShareSnapshotValue),
                (share_records.ShareUpdateKey, share_records.ShareUpdateValue),
            )
        ):
            yield Example(share_records, number, 0, example(key, 0, whole, 1), example(value, 0, whole, 1))

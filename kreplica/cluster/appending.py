"""Appends to a cluster in real or virtual time: acks, and the partitions that records go to.

Thread rule: KeyedRecords belongs to its caller; concurrent calls only make the spread of records without a
key
less even. The functions may be called by any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from kreplica._core.partitioner import partitions_of
from kreplica._core.record import Record
from kreplica.client.producer import ALL, RecordMetadata
from kreplica.common.errors import InvalidRequiredAcks
from kreplica.common.future import Future, MadeFuture, all_of, then
from kreplica.metadata.registrations import TopicRegistration

if TYPE_CHECKING:
    from kreplica._core.batch_builder import _RecordLike as RecordLike

Acks = Literal["all", -1, 0, 1]


@dataclass(frozen=True, slots=True)
class AppendResult:
    """The position of the records of one append: one RecordMetadata for each partition that received any.

    `partition`, `base_offset` and `last_offset` describe the only batch. They raise ValueError if the records
    were spread over several partitions, which an append to a named partition never does.
    """

    batches: tuple[RecordMetadata, ...]

    @property
    def topic(self) -> str:
        """The topic of all batches."""
        return self.batches[0].topic

    @property
    def partition(self) -> int:
        """The partition that received the records. Raises ValueError if there are several partitions."""
        return self._only.partition

    @property
    def base_offset(self) -> int:
        """The first record's offset; -1 if unknown. Raises ValueError if there are several partitions."""
        return self._only.base_offset

    @property
    def last_offset(self) -> int:
        """The last record's offset; -1 if unknown. Raises ValueError if there are several partitions."""
        return self._only.last_offset

    @property
    def record_count(self) -> int:
        """The number of appended records, in all partitions together."""
        return sum(batch.record_count for batch in self.batches)

    @property
    def _only(self) -> RecordMetadata:
        if len(self.batches) == 1:
            return self.batches[0]
        numbers = sorted(batch.partition for batch in self.batches)
        raise ValueError(f"the records were spread over partitions {numbers}: look at `batches`")


class KeyedRecords:
    """Chooses partitions for records, as Kafka's clients do.

    A record with a key goes to the partition of its murmur2 hash. The records without a key of one call go to
    one
    partition, and those of the next call to the next partition.
    """

    def __init__(self) -> None:
        self._next_partition = 0

    def by_partition(
        self, topic: TopicRegistration, records: Iterable[RecordLike]
    ) -> dict[int, list[RecordLike]]:
        """Group the records by partition, in their order. Raises TypeError for an invalid key."""
        records = tuple(records)
        count = len(topic.partitions)
        self._next_partition += 1
        keys = [_key_of(record) for record in records]
        chosen: dict[int, list[RecordLike]] = {}
        for number, record in zip(
            partitions_of(keys, count, self._next_partition % count), records, strict=True
        ):
            chosen.setdefault(number, []).append(record)
        return chosen


def _key_of(record: Any) -> bytes | None:
    key: object = None
    if isinstance(record, tuple):
        key = record[0] if record else None
    elif isinstance(record, Record):
        key = record.key
    if key is None or isinstance(key, bytes):
        return key
    if isinstance(key, (bytearray, memoryview)):
        return bytes(key)
    raise TypeError(f"a key must be bytes, bytearray, memoryview or None, not {type(key).__name__}")


def acks_of(acks: object) -> int:
    """Return acks as an integer of the protocol. Raises InvalidRequiredAcks."""
    if acks == "all":
        return ALL
    if isinstance(acks, int) and not isinstance(acks, bool) and acks in (-1, 0, 1):
        return acks
    raise InvalidRequiredAcks(f'acks must be "all", 1 or 0, not {acks!r}')


def one_batch() -> Future[Any]:
    """Return a future for Producer.send: resolved with a RecordMetadata, its result is an AppendResult."""
    return MadeFuture(lambda metadata: AppendResult((metadata,)))


def as_one(parts: Sequence[Future[RecordMetadata]]) -> Future[AppendResult]:
    """Return a future of all results, in order; it fails with the first part's error."""
    assert parts, "an append without records is refused"
    return then(all_of(parts), lambda results: AppendResult(tuple(results)))

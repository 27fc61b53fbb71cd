"""Appends to a cluster in real or virtual time: acks, and the partitions that records go to.

Thread rule: KeyedRecords belongs to its caller; concurrent calls only make the spread of records without a
key
less even. The functions may be called by any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from kreplica._core.partitioner import partitions_of
from kreplica._core.record import Record
from kreplica.client.partition_sender import ALL, RecordMetadata
from kreplica.common.errors import InvalidRequiredAcks
from kreplica.common.future import Future
from kreplica.common.locks import RLock
from kreplica.metadata.registrations import TopicRegistration

if TYPE_CHECKING:
    from kreplica._core.batch_builder import _RecordLike as RecordLike

Acks = Literal["all", -1, 0, 1]


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


def all_of(parts: Sequence[Future[RecordMetadata]]) -> Future[tuple[RecordMetadata, ...]]:
    """Return a future of all results, in order; it fails with the first part's error."""
    whole: Future[tuple[RecordMetadata, ...]] = Future()
    left = [len(parts)]
    lock = RLock()

    def one_is_done(_: Future[RecordMetadata]) -> None:
        with lock:
            left[0] -= 1
            if left[0]:
                return
        error = next((e for part in parts if (e := part.exception()) is not None), None)
        if error is not None:
            whole.set_exception(error)
        else:
            whole.set_result(tuple(part.result() for part in parts))

    for part in parts:
        part.add_done_callback(one_is_done)
    if not parts:
        whole.set_result(())
    return whole

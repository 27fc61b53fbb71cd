"""BatchReader: decodes committed batches of the metadata log for its listeners.

Batches are decoded one by one as the reader is iterated. CRC, lengths and schemas are checked, and bad input
raises a typed error. A reader belongs to the thread that it was passed to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kreplica._core.records import RecordBatch
from kreplica._core.records import batches as batches_in
from kreplica.common.closing import Closing
from kreplica.common.errors import CorruptMessage
from kreplica.metadata.control_records import ControlMessage, decode_control
from kreplica.metadata.records import MetadataRecord
from kreplica.metadata.serde import ApiMessageAndVersion, decode

if TYPE_CHECKING:
    from typing_extensions import Buffer

Records = Sequence[ApiMessageAndVersion[MetadataRecord]]


class Batch(NamedTuple):
    """One batch. Either all of its records are committed or none.

    `append_timestamp`: ms since 1970. A batch holds either metadata records or control records, never both.
    Control records of unknown types are left out.
    """

    base_offset: int
    epoch: int
    append_timestamp: int
    records: Records
    last_offset: int
    size_bytes: int
    control_records: tuple[ControlMessage, ...] = ()


def decoded(batch: RecordBatch) -> Batch:
    """Check the CRC and all fields of the batch and return its records.

    Raises CorruptMessage and its kinds, InvalidRecord, UnsupportedVersion.
    """
    records: Records = []
    control: tuple[ControlMessage, ...] = ()
    if batch.is_control:
        read = (decode_control(record.key, record.value) for record in batch)
        control = tuple(message for message in read if message is not None)
    else:
        records = [_record(record.value, batch) for record in batch]
    return Batch(
        batch.base_offset,
        batch.leader_epoch,
        batch.max_timestamp,
        records,
        batch.last_offset,
        batch.size,
        control,
    )


def decoded_batches(data: Buffer) -> Iterator[Batch]:
    """Yield the decoded batches in `data`. Raises as `decoded` does, when it reaches a bad batch."""
    return map(decoded, batches_in(data))


def _record(value: bytes | None, batch: RecordBatch) -> ApiMessageAndVersion[MetadataRecord]:
    if value is None:
        raise CorruptMessage(f"the batch at offset {batch.base_offset} has a metadata record without a value")
    return decode(value)


class BatchReader(Closing):
    """Iterates batches in log order from `base_offset` on. Iterate once, then `close`.

    `last_offset`: the last offset of the last batch, if it is known. A `with` block closes the reader.
    """

    def __init__(self, base_offset: int, batches: Iterable[Batch], last_offset: int | None = None) -> None:
        self.base_offset = base_offset
        self.last_offset = last_offset
        self._batches: Iterator[Batch] = iter(batches)

    @classmethod
    def of_records(cls, base_offset: int, records: Buffer) -> BatchReader:
        """Read the batches in `records`, the bytes of a log read. Batches that end below `base_offset` are
        skipped.

        The bytes stay alive, and a slice stays pinned, until the last batch is read or the reader is closed.
        """
        return cls(base_offset, (b for b in decoded_batches(records) if b.last_offset >= base_offset))

    def __iter__(self) -> Iterator[Batch]:
        return self._batches

    def close(self) -> None:
        """Drop the batches that were not read."""
        self._batches = iter(())

"""BatchReader: committed batches of the metadata log as records, for those who follow the log.

Bytes become records where they are read: CRC, lengths and schemas are checked, batch by batch, and what does
not fit is a typed error. A reader belongs to the thread it is handed to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self

from kreplica._core.records import RecordBatch
from kreplica._core.records import batches as batches_in
from kreplica.common.errors import CorruptMessage
from kreplica.metadata.control_records import ControlMessage, decode_control
from kreplica.metadata.records import MetadataRecord
from kreplica.metadata.serde import ApiMessageAndVersion, decode

if TYPE_CHECKING:
    from typing_extensions import Buffer

Records = Sequence[ApiMessageAndVersion[MetadataRecord]]


class Batch(NamedTuple):
    """One batch, in which all or nothing is committed.

    `append_timestamp`: ms since 1970. A batch of control records has no others, and the other way round;
    control records that are not the quorum's are left out.
    """

    base_offset: int
    epoch: int
    append_timestamp: int
    records: Records
    last_offset: int
    size_bytes: int
    control_records: tuple[ControlMessage, ...] = ()


def decoded(batch: RecordBatch) -> Batch:
    """The batch's records, once its CRC and all its fields are checked.

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
    """The batches in the bytes, one after the other. Raises as `decoded`, where it comes to what is wrong."""
    return map(decoded, batches_in(data))


def _record(value: bytes | None, batch: RecordBatch) -> ApiMessageAndVersion[MetadataRecord]:
    if value is None:
        raise CorruptMessage(f"a metadata record without a value, in the batch at {batch.base_offset}")
    return decode(value)


class BatchReader:
    """Batches in the order of the log, from `base_offset` on; iterate once, then `close`.

    `last_offset`: of the last batch where it is known. As a context manager it closes itself.
    """

    __slots__ = ("_batches", "base_offset", "last_offset")

    def __init__(self, base_offset: int, batches: Iterable[Batch], last_offset: int | None = None) -> None:
        self.base_offset = base_offset
        self.last_offset = last_offset
        self._batches: Iterator[Batch] = iter(batches)

    @classmethod
    def of_records(cls, base_offset: int, records: Buffer) -> BatchReader:
        """Of the bytes of a read; what they hold below `base_offset` is passed over.

        The bytes are held, and pinned where they are a slice, until the last batch is read or it is closed.
        """
        return cls(base_offset, (b for b in decoded_batches(records) if b.last_offset >= base_offset))

    def __iter__(self) -> Iterator[Batch]:
        return self._batches

    def close(self) -> None:
        """Let go of what is not read."""
        self._batches = iter(())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

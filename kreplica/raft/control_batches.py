"""Build batches of control records (the quorum's own records) for the log or a snapshot."""

from __future__ import annotations

from collections.abc import Iterable

from kreplica._core.batch_builder import BatchBuilder
from kreplica.metadata.control_records import ControlMessage, encode_control
from kreplica.record.control import control_key


def build_control_batch(
    messages: Iterable[ControlMessage], *, base_offset: int, epoch: int, timestamp_ms: int
) -> bytes:
    """Return one batch that holds all messages. Raises InvalidRecord, UnsupportedVersion."""
    builder = BatchBuilder()
    builder.control = True
    return builder.build(
        [(control_key(message.TYPE), encode_control(message)) for message in messages],
        base_offset=base_offset,
        leader_epoch=epoch,
        now_ms=timestamp_ms,
    )

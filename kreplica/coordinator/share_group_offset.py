"""ShareGroupOffset: what the share coordinator keeps of one partition of a share group (KIP-932).

It is where delivery starts, and the states of records behind that, as batches of offsets. Values are
immutable: a write makes the next value from the one before it. Thread rule: pure functions.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from operator import attrgetter

from kreplica.common.dataclass import dataclass, replace
from kreplica.common.share_state import StateBatch
from kreplica.coordinator.share_records import ShareSnapshotValue, ShareUpdateValue
from kreplica.coordinator.share_records import StateBatch as StoredBatch

_first_offset = attrgetter("first_offset")
_last_offset = attrgetter("last_offset")


def merge(
    batches: Sequence[StateBatch], updates: Iterable[StateBatch], start_offset: int
) -> tuple[StateBatch, ...]:
    """Lay the updates over the batches, in their order, and drop what is below the start offset.

    A record never goes back: the higher delivery count wins, and with equal ones the later state. So a write
    that arrives twice, or late, does no harm. `batches` are in the order of their offsets and do not overlap,
    and neither do those returned. Neighbours with the same state and delivery count are joined.
    """
    merged = list(batches)
    for update in updates:
        _lay_over(merged, update)
    below = bisect_left(merged, start_offset, key=_last_offset)
    del merged[:below]
    if merged and merged[0].first_offset < start_offset:
        merged[0] = merged[0]._replace(first_offset=start_offset)
    return tuple(merged)


def _lay_over(batches: list[StateBatch], update: StateBatch) -> None:
    first = bisect_left(batches, update.first_offset, key=_last_offset)
    stop = bisect_right(batches, update.last_offset, lo=first, key=_first_offset)
    pieces: list[StateBatch] = []
    offset = update.first_offset
    for each in batches[first:stop]:
        if each.first_offset < update.first_offset:
            pieces.append(each._replace(last_offset=update.first_offset - 1))
        if _progress(each) > _progress(update):
            begin = max(each.first_offset, update.first_offset)
            if offset < begin:
                pieces.append(update._replace(first_offset=offset, last_offset=begin - 1))
            offset = min(each.last_offset, update.last_offset) + 1
            pieces.append(each._replace(first_offset=begin, last_offset=offset - 1))
    if offset <= update.last_offset:
        pieces.append(update._replace(first_offset=offset))
    if first < stop and batches[stop - 1].last_offset > update.last_offset:
        pieces.append(batches[stop - 1]._replace(first_offset=update.last_offset + 1))
    low = max(first - 1, 0)
    batches[low : stop + 1] = _joined([*batches[low:first], *pieces, *batches[stop : stop + 1]])


def _progress(batch: StateBatch) -> tuple[int, int]:
    """Return how far the records are; a later state has a higher number."""
    return batch.delivery_count, batch.delivery_state


def _joined(batches: Iterable[StateBatch]) -> list[StateBatch]:
    joined: list[StateBatch] = []
    for each in batches:
        last = joined[-1] if joined else None
        if last is not None and last.last_offset + 1 == each.first_offset and last[2:] == each[2:]:
            joined[-1] = last._replace(last_offset=each.last_offset)
        else:
            joined.append(each)
    return joined


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupOffset:
    """The state of one partition of a share group.

    `snapshot_epoch`: the number of its latest snapshot in the log; updates name the snapshot that they
    change, and `update_count` is the number of those since. `state_epoch`: rises when the state is
    initialized again. `leader_epoch`: the highest one of a partition leader that read or wrote.
    `start_offset`: where delivery starts, -1 while no leader has decided it. `delivery_complete_count`: the
    records from there on that need no delivery, -1 if unknown. Timestamps in ms since 1970: of the
    initialization, and of the latest snapshot.
    """

    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    create_timestamp: int
    write_timestamp: int
    batches: tuple[StateBatch, ...]
    update_count: int = 0

    def updated(self, update: ShareUpdateValue) -> ShareGroupOffset:
        """Return the state after an update. The start offset never decreases."""
        start_offset = max(self.start_offset, update.start_offset)
        return replace(
            self,
            leader_epoch=max(self.leader_epoch, update.leader_epoch),
            start_offset=start_offset,
            delivery_complete_count=update.delivery_complete_count,
            batches=merge(self.batches, map(_loaded, update.state_batches), start_offset),
            update_count=self.update_count + 1,
        )

    def snapshot(self) -> ShareSnapshotValue:
        """Return the record of this state."""
        return ShareSnapshotValue(
            snapshot_epoch=self.snapshot_epoch,
            state_epoch=self.state_epoch,
            leader_epoch=self.leader_epoch,
            start_offset=self.start_offset,
            create_timestamp=self.create_timestamp,
            write_timestamp=self.write_timestamp,
            state_batches=tuple(map(stored, self.batches)),
            delivery_complete_count=self.delivery_complete_count,
        )

    @classmethod
    def of_snapshot(cls, value: ShareSnapshotValue) -> ShareGroupOffset:
        """Return the state that a record of the log holds."""
        return cls(
            snapshot_epoch=value.snapshot_epoch,
            state_epoch=value.state_epoch,
            leader_epoch=value.leader_epoch,
            start_offset=value.start_offset,
            delivery_complete_count=value.delivery_complete_count,
            create_timestamp=value.create_timestamp,
            write_timestamp=value.write_timestamp,
            batches=merge((), map(_loaded, value.state_batches), value.start_offset),
        )


def _loaded(batch: StoredBatch) -> StateBatch:
    return StateBatch(batch.first_offset, batch.last_offset, batch.delivery_state, batch.delivery_count)


def stored(batch: StateBatch) -> StoredBatch:
    """Return the batch as records hold it."""
    return StoredBatch(
        first_offset=batch.first_offset,
        last_offset=batch.last_offset,
        delivery_state=batch.delivery_state,
        delivery_count=batch.delivery_count,
    )

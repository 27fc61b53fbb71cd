"""ReplicaView: the known contents of one replica's log, read through the log's own read path.

It is updated after an event of its broker, and reads only what is new: from the last known batch on, so that
a replaced batch is noticed. The contents of a killed broker stay known, because a kill loses nothing. After a
power cut, only what was flushed is known until the broker starts. Thread rule: one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kreplica._core.records import batches
from kreplica.common.errors import CorruptMessage
from kreplica.common.types import TopicPartition, Uuid
from kreplica.log.damage import NO_DAMAGE
from kreplica.sim.invariants.violation import InvariantViolated

READ_BYTES = 1 << 20
# Above every offset.
NO_EXCUSE = 1 << 62


class Cell(NamedTuple):
    """The contents of one offset: the record's value, and the leader epoch and checksum of its batch."""

    leader_epoch: int
    crc: int
    value: bytes | None


class ReplicaView:
    """One partition's replica on one broker.

    `on_disk`: earlier lives left data on the disk up to here, which even a power cut leaves.
    `lost_from_disk`: the offset from which it did not, until the check.
    `grew_after_failure`: whether its log accepted an append after its disk had refused an operation.

    `agreed`: cells below it equal those of the partition's committed log. `excused_from`: from this offset on
    it may hold what an unclean election voided, or what a power cut brought back, until it has truncated
    that; NO_EXCUSE otherwise. `excused_before_cut`: its value before the power cut.
    `deleted_before`: a power cut may have brought back deleted records below it. `is_harmed`: a power cut
    lost data that it has not fetched again.
    `is_anew`: it was not a replica for a while, deleted everything, and has been in no ISR since.
    `began_with`: the high watermark that this life of its broker found on its disk, until the check;
    `kept_mark`: what the checkpoint of high watermarks surely contained, unless truncated since: a life
    that began after a power cut had no other source (`is_from_checkpoint`).
    `member_epochs`: for a leader, the broker epoch in which each member of its own ISR joined it.
    """

    def __init__(self, broker_id: int, topic_partition: TopicPartition, topic_id: Uuid) -> None:
        self.broker_id = broker_id
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.cells: list[Cell | None] = []
        self.agreed = 0
        self.excused_from = self.excused_before_cut = NO_EXCUSE
        self.is_harmed = False
        self.is_anew = False
        self.deleted_before = 0
        self.on_disk = 0
        self.lost_from_disk: int | None = None
        self.grew_after_failure = False
        self.lost_power = False
        self.broker_epoch = -1
        self.shrunk_to: int | None = None  # the lowest offset from which cells were removed since the check
        # As of the last look, in this life of the broker.
        self.former_high_watermark = -1
        self.former_epoch = -1
        self.former_log_start = -1
        self.began_with: int | None = None
        self.kept_mark = 0
        self.is_from_checkpoint = False
        self._is_new = True
        self._had_failed = False  # whether its log was offline or half repaired when its broker went down
        self.batch_start = 0  # the base offset of the last batch seen
        self.program: Any = None
        self._hosted: Callable[[TopicPartition], Any] | None = None  # returns the program's partition
        self.foreign: Any = None  # a log of this name that belongs to another topic
        self.partition: Any = None
        self.log: Any = None
        self.damages: Any = NO_DAMAGE
        self.state: Any = None
        self.truncations = 0
        self.is_running = False
        self.is_leader = False
        self.leader = -1
        self.leader_epoch = -1
        self.high_watermark = 0
        self.log_start = 0
        self.isr: tuple[int, ...] = ()
        self.member_epochs: dict[int, int] = {}
        self.maximal_isr: Sequence[int] = ()

    @property
    def log_end(self) -> int:
        return len(self.cells)

    def __str__(self) -> str:
        role = "leader" if self.is_leader else "follower"
        offsets = f"start {self.log_start}, HW {self.high_watermark}, LEO {self.log_end}"
        return f"{role} {self.broker_id} in epoch {self.leader_epoch} ({offsets})"

    @property
    def is_excused(self) -> bool:
        return self.excused_from < NO_EXCUSE

    def parts_from(self, other: ReplicaView) -> int:
        """Return the first offset at which both hold different records, else NO_EXCUSE."""
        for offset in range(max(self.log_start, other.log_start), min(len(self.cells), len(other.cells))):
            if self.cells[offset] != other.cells[offset]:
                return offset
        return NO_EXCUSE

    def excuse_from(self, offset: int) -> None:
        """Allow other records from `offset` on; the batch with that offset may be replaced as a whole."""
        cells = self.cells
        while 0 < offset < len(cells) and cells[offset] is not None:
            before, cell = cells[offset - 1], cells[offset]
            if before is None or cell is None or before.crc != cell.crc:
                break
            offset -= 1
        self.excused_from = min(self.excused_from, offset)
        self.excused_before_cut = min(self.excused_before_cut, offset)

    def excuse_no_longer(self) -> None:
        """Require from now on that everything it holds below its high watermark equals the committed
        records."""
        self.excused_from = self.excused_before_cut = NO_EXCUSE

    # ---- looking ------------------------------------------------------------------------------------------

    def begin(self, program: Any, *, has_marks: bool = True) -> None:
        """Start a new life of the broker: read its log anew.

        `has_marks`: whether the broker found a checkpoint of high watermarks.
        """
        if not has_marks or self._had_failed:
            # The checkpoint misses what was lowered on a full disk, or by a truncation in which the disk
            # failed.
            self.kept_mark = 0
        self.program, self._hosted = program, None
        self.is_running = self._is_new = True
        self.is_from_checkpoint = self.lost_power
        self.is_leader = False
        self.leader_epoch = -1
        self.partition = self.log = self.state = None
        self.isr = self.maximal_isr = ()
        self.high_watermark = 0
        self.former_high_watermark = self.former_epoch = -1

    def end(self, *, lost: bool) -> None:
        """Mark the broker as down; `lost`: its unflushed data may be lost."""
        flushed = 0
        if self.log is not None:
            # What follows the rot at which recovery stopped is where it was.
            known = self.on_disk if self.log.stopped_at is not None else self.log.flush_offset
            flushed = self.on_disk = min(max(known, self.on_disk), len(self.cells))
            self._had_failed = self.log.is_offline or self.log.closed
        durable = self.log is not None and self.log.config.durability == "fsync_quorum"
        self.program = self.partition = self.log = self.state = None
        self.is_running = self.is_leader = False
        self.isr = self.maximal_isr = ()
        if lost:
            self.lost_power = True
            # What it had truncated may be back, and what it had appended since may be gone.
            self.excused_before_cut = self.excused_from
            self.excused_from = min(self.excused_from, flushed)
            # If the topic requires the disks of all replicas in sync, nothing committed can be lost.
            if not durable and flushed < len(self.cells):
                self.is_harmed = True
            self.deleted_before = max(self.deleted_before, self.log_start)
            self._forget(flushed)

    def look(self) -> bool:
        """Update the view; return whether anything has changed."""
        program = self.program
        if program is None:
            return False
        if self.log is not None:
            self.former_high_watermark, self.former_epoch = self.high_watermark, self.leader_epoch
            self.former_log_start = self.log_start
        if self._hosted is None:
            self._hosted = program.replica_manager.partitions.get
        partition = self._hosted(self.topic_partition)
        if self._is_unchanged(partition):
            return False
        changed = False
        if partition is not self.partition:
            self._no_role()
            self.partition = partition
            changed = True
        log = self._present_log()
        if log is None or log.is_offline:
            # If its disk failed halfway, the log's own state may differ from the disk.
            changed = self._look_at_role() or changed
            return self._look_at_last_commit(log) or changed
        if self.log is not log:
            self.log = log
            self.batch_start = 0
            # A truncation that failed was not observed to the end.
            if self.lost_power and self._is_new and not self._had_failed:
                self._look_at_disk()
            if self.lost_power and log.stopped_at is None:
                self.on_disk, self.lost_power = log.log_end_offset, False
                if log.log_end_offset <= len(self.cells):
                    # Nothing has come back.
                    self.excused_from = self.excused_before_cut
            changed = True
        high_watermark, end = log.high_watermark, log.log_end_offset
        if log.stopped_at is not None:
            high_watermark = min(high_watermark, len(self.cells))
        if log.damages is not self.damages:
            # Records have rotted, which this view still knows, or were repaired, and must be as they were.
            self.damages, self.batch_start = log.damages, 0
            changed = True
        is_other = changed or end != len(self.cells) or log.log_start_offset != self.log_start
        # If recovery stopped at rot, the end of the log is unknown.
        if is_other and log.stopped_at is None:
            local = log.local
            self.grew_after_failure = end > len(self.cells) and local.directory in local.storage.refused
            self._read(end)
            changed = True
        changed = self._look_at_role() or changed
        if high_watermark != self.high_watermark:
            self.high_watermark = high_watermark
            changed = True
        if self._is_new:
            self._is_new = False
            # If recovery stopped at rot, the checkpoint may have had more.
            if log.stopped_at is None:
                self.began_with = high_watermark
        return changed

    def _is_unchanged(self, partition: Any) -> bool:
        """Return whether the partition and its log are what they were; `look` has found nothing then."""
        log, seen = self.log, self.state
        if partition is None or log is None or seen is None or partition is not self.partition:
            return False
        if log.failure is not None or log.closed:
            return False
        state = log.state
        return (
            partition.log is log
            and partition.term is seen[0]
            and partition.state is seen[1]
            and state.high_watermark == self.high_watermark
            and state.log_end_offset == len(self.cells)
            and state.log_start_offset == self.log_start
            and log.damages is self.damages
            and not self._is_new
        )

    def _look_at_last_commit(self, log: Any) -> bool:
        """Update the high watermark of a failed log: until its broker learns of the failure, a leader
        commits, and serves, records that it had before and the others have, too."""
        if log is None or log is not self.log or not self.is_leader:
            return False
        before, self.high_watermark = self.high_watermark, min(log.high_watermark, len(self.cells))
        return self.high_watermark != before

    def _look_at_disk(self) -> None:
        """Check after a power cut that flushed data survived, unless it has rotted since."""
        stopped_at = self.log.stopped_at
        end = self.log.log_end_offset if stopped_at is None else stopped_at.first_offset
        lost = self.cells[max(end, self.log_start) : self.on_disk]
        if any(lost) and (stopped_at is None or not _has_rotted(self.log, self.cells[end])):
            self.lost_from_disk = end

    def _present_log(self) -> Any:
        """Return the current log, None if there is no log or it is temporarily closed."""
        partition = self.partition
        log = None if partition is None else partition.log
        if log is None or log.closed:
            log = self.log
        if log is None or log.closed:
            # A log that was repaired while closed is another object.
            log = self.program.log_manager.get_log(self.topic_partition)
        if log is not None:
            return log if log is self.log or self._is_of_topic(log) else None
        if self.log is not None and self._is_gone():
            self._drop()
        return None

    def _is_of_topic(self, log: Any) -> bool:
        # The log of a deleted topic may still be there under the same name.
        if log is self.foreign:
            return False
        topic_id = self.program.log_manager.topic_id(self.topic_partition)
        if topic_id in (None, self.topic_id):
            return True
        self.foreign = log
        return False

    def _is_gone(self) -> bool:
        # Gone, and not only unreachable because of a failed disk.
        partitions = self.program.replica_manager.partitions
        return self.partition is None and not partitions.is_offline(self.topic_partition)

    def _drop(self) -> None:
        """Forget everything: it is no longer a replica, so its log is deleted."""
        self._forget(0)
        self.log = None
        self.high_watermark = self.log_start = 0
        self.former_high_watermark = self.former_epoch = self.former_log_start = -1
        self.is_harmed = False
        self.is_anew = True
        self.deleted_before = 0
        self.excuse_no_longer()

    def _no_role(self) -> None:
        self.state = None
        self.is_leader = False
        self.leader = self.leader_epoch = -1
        self.former_epoch = -1
        self.isr = self.maximal_isr = ()
        self.member_epochs = {}

    def _look_at_role(self) -> bool:
        partition = self.partition
        if partition is None:
            return False
        # Partitions replace their state as a whole, so the same objects mean no change.
        seen = (partition.term, partition.state)
        if self.state is not None and self.state[0] is seen[0] and self.state[1] is seen[1]:
            return False
        self.state = seen
        self.is_leader = partition.is_leader
        self.leader = partition.leader
        self.leader_epoch = partition.leader_epoch
        self.isr = partition.isr if partition.is_leader else ()
        self.member_epochs = {}
        self.maximal_isr = partition.state.maximal_isr if partition.is_leader else ()
        return True

    def _read(self, end: int) -> None:
        log = self.log
        start = self.log_start = log.log_start_offset
        if end < len(self.cells):
            self.truncations += 1
            self.deleted_before = min(self.deleted_before, end)
            self._forget(end)
        # What was deleted at the front is not read again.
        if start > len(self.cells):
            self._forget(0)
            self.cells += [None] * start
        offset = max(min(self.batch_start, len(self.cells)), start)
        while offset < end:
            damage = log.damages.at(offset)
            if damage is not None:
                self.cells += [None] * (min(damage.stop_offset, end) - len(self.cells))
                offset = damage.stop_offset
                continue
            data = log.read(offset, READ_BYTES, isolation="log_end").records
            if data is None:
                raise InvariantViolated("Readable", f"{self}: nothing at offset {offset}")
            for batch in batches(data):
                self._see(batch)
                offset = batch.next_offset

    def _see(self, batch: Any) -> None:
        if not batch.crc_valid:
            # Cells below the log's start are not read.
            first = max(batch.base_offset, self.log_start)
            known = self.cells[first] if first < len(self.cells) else None
            if known is not None and known.crc == batch.crc:
                # It rotted and was not read since; the view keeps its former contents.
                return
            raise InvariantViolated("Crc", f"{self}: the batch at offset {batch.base_offset} rotted")
        epoch, crc, cells = batch.leader_epoch, batch.crc, self.cells
        self.batch_start = batch.base_offset
        for record in batch:
            cell = Cell(epoch, crc, record.value)
            at = record.offset
            if at < len(cells):
                if cells[at] is not None and cells[at] != cell:
                    self._forget(at)
                    cells.append(cell)
                continue
            # Offsets that a cleaner has removed.
            cells += [None] * (at - len(cells))
            cells.append(cell)
        cells += [None] * (batch.next_offset - len(cells))

    def _forget(self, end: int) -> None:
        if end < len(self.cells):
            self.shrunk_to = end if self.shrunk_to is None else min(self.shrunk_to, end)
        del self.cells[end:]
        self.agreed = min(self.agreed, end)
        self.on_disk = min(self.on_disk, end)
        self.kept_mark = min(self.kept_mark, end)
        self.batch_start = min(self.batch_start, max(end - 1, 0))


def _has_rotted(log: Any, cell: Cell | None) -> bool:
    """Return whether recovery stopped at this record's batch because of a flipped bit; also True if the
    original contents are unknown."""
    damage = log.stopped_at
    data = log.local.storage.read_file(damage.path)[damage.position :]
    try:
        found = next(iter(batches(data, partial=True)), None)
    except CorruptMessage:
        return False
    return cell is None or (found is not None and found.crc == cell.crc)

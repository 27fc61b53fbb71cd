"""ReplicaView: what one replica's log was last seen to hold, read through the log's own read path.

It is brought up to date after an event of its broker, and reads only what came since: a log that grew from
its last known batch on, so that a batch that was replaced is noticed. What a killed broker held stays known,
since a kill loses nothing; of what one without power held, only what was flushed is known until it starts.
Thread rule: one thread.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    """What lies at one offset: the record's value, and the leader epoch and checksum of its batch."""

    leader_epoch: int
    crc: int
    value: bytes | None


class ReplicaView:
    """One partition's replica on one broker.

    `on_disk`: what its lives before have left on its disk goes up to there: a power cut leaves it, too.
    `lost_from_disk`: from there on it did not, until somebody has asked.
    `grew_after_failure`: whether its log took something after its disk had refused it something.

    `agreed`: the cells below it are those of the partition's committed log. `excused_from`: from that offset
    on it may hold what an unclean election has made void, or what a power cut has brought back, until it has
    cut that off; NO_EXCUSE where it may not. `excused_before_cut`: the same before its power was cut.
    `deleted_before`: below it a power cut may have brought back what was deleted. `is_harmed`: a power cut
    took something of it that it has not fetched again since.
    `is_anew`: it was no replica for a while, deleted all it had, and has been in no ISR since.
    `began_with`: the high watermark that this life of its broker found on its disk, until somebody has asked;
    `kept_mark`: what was surely in the checkpoint of high watermarks, as far as it was not cut since: a life
    that began after a power cut had nothing else to go by (`is_from_checkpoint`).
    `member_epochs`: of a leader, the broker epoch in which each member of its own ISR came into it.
    """

    __slots__ = (
        "_had_failed",
        "_is_new",
        "agreed",
        "batch_start",
        "began_with",
        "broker_epoch",
        "broker_id",
        "cells",
        "damages",
        "deleted_before",
        "excused_before_cut",
        "excused_from",
        "foreign",
        "former_epoch",
        "former_high_watermark",
        "former_log_start",
        "grew_after_failure",
        "high_watermark",
        "is_anew",
        "is_from_checkpoint",
        "is_harmed",
        "is_leader",
        "is_running",
        "isr",
        "kept_mark",
        "leader",
        "leader_epoch",
        "log",
        "log_start",
        "lost_from_disk",
        "lost_power",
        "maximal_isr",
        "member_epochs",
        "on_disk",
        "partition",
        "program",
        "shrunk_to",
        "state",
        "topic_id",
        "topic_partition",
        "truncations",
    )

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
        self.shrunk_to: int | None = None  # the lowest offset from which cells went since somebody asked
        # Before the last look, in this life of the broker.
        self.former_high_watermark = -1
        self.former_epoch = -1
        self.former_log_start = -1
        self.began_with: int | None = None
        self.kept_mark = 0
        self.is_from_checkpoint = False
        self._is_new = True
        self._had_failed = False  # whether its log was offline, or half mended, when its broker went down
        self.batch_start = 0  # the base offset of the last batch that was seen
        self.program: Any = None
        self.foreign: Any = None  # a log of this name, of another topic
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
        """The first offset at which both hold something, and not the same; NO_EXCUSE where there is none."""
        for offset in range(max(self.log_start, other.log_start), min(len(self.cells), len(other.cells))):
            if self.cells[offset] != other.cells[offset]:
                return offset
        return NO_EXCUSE

    def excuse_from(self, offset: int) -> None:
        """From `offset` on it may hold something else. The batch that holds it goes as a whole."""
        cells = self.cells
        while 0 < offset < len(cells) and cells[offset] is not None:
            before, cell = cells[offset - 1], cells[offset]
            if before is None or cell is None or before.crc != cell.crc:
                break
            offset -= 1
        self.excused_from = min(self.excused_from, offset)
        self.excused_before_cut = min(self.excused_before_cut, offset)

    def excuse_no_longer(self) -> None:
        """From now on everything that it holds below its high watermark must be what is committed."""
        self.excused_from = self.excused_before_cut = NO_EXCUSE

    # ---- looking ------------------------------------------------------------------------------------------

    def begin(self, program: Any, *, has_marks: bool = True) -> None:
        """The broker runs, in a new life: what its log holds is read anew. `has_marks`: whether it found a
        checkpoint of high watermarks."""
        if not has_marks or self._had_failed:
            # Nothing shows what was lowered while the disk was full, or by a truncation in which it failed.
            self.kept_mark = 0
        self.program = program
        self.is_running = self._is_new = True
        self.is_from_checkpoint = self.lost_power
        self.is_leader = False
        self.leader_epoch = -1
        self.partition = self.log = self.state = None
        self.isr = self.maximal_isr = ()
        self.high_watermark = 0
        self.former_high_watermark = self.former_epoch = -1

    def end(self, *, lost: bool) -> None:
        """The broker is down; `lost`: so may be what it had not flushed."""
        flushed = 0
        if self.log is not None:
            # What lies behind the rot at which recovery stopped is where it was.
            known = self.on_disk if self.log.stopped_at is not None else self.log.flush_offset
            flushed = self.on_disk = min(max(known, self.on_disk), len(self.cells))
            self._had_failed = self.log.is_offline or self.log.closed
        durable = self.log is not None and self.log.config.durability == "fsync_quorum"
        self.program = self.partition = self.log = self.state = None
        self.is_running = self.is_leader = False
        self.isr = self.maximal_isr = ()
        if lost:
            self.lost_power = True
            # What it had cut off may be there again, and what it had appended since may not.
            self.excused_before_cut = self.excused_from
            self.excused_from = min(self.excused_from, flushed)
            # Where the topic asks for the disks of all in sync, nothing that is committed can be gone.
            if not durable and flushed < len(self.cells):
                self.is_harmed = True
            self.deleted_before = max(self.deleted_before, self.log_start)
            self._forget(flushed)

    def look(self) -> bool:
        """See what has changed; whether anything has."""
        program = self.program
        if program is None:
            return False
        if self.log is not None:
            self.former_high_watermark, self.former_epoch = self.high_watermark, self.leader_epoch
            self.former_log_start = self.log_start
        partition = program.replica_manager.partitions.get(self.topic_partition)
        changed = False
        if partition is not self.partition:
            self._no_role()
            self.partition = partition
            changed = True
        log = self._present_log()
        if log is None or log.is_offline:
            # Where its disk failed it halfway, what it believes to hold is not what is there.
            changed = self._look_at_role() or changed
            return self._look_at_last_commit(log) or changed
        if self.log is not log:
            self.log = log
            self.batch_start = 0
            # What one did that failed was not seen to the end.
            if self.lost_power and self._is_new and not self._had_failed:
                self._look_at_disk()
            if self.lost_power and log.stopped_at is None:
                self.on_disk, self.lost_power = log.log_end_offset, False
                if log.log_end_offset <= len(self.cells):
                    # Nothing is there again.
                    self.excused_from = self.excused_before_cut
            changed = True
        high_watermark, end = log.high_watermark, log.log_end_offset
        if log.stopped_at is not None:
            high_watermark = min(high_watermark, len(self.cells))
        if log.damages is not self.damages:
            # Something has rotted, which this view still knows, or was mended, and must be what it was.
            self.damages, self.batch_start = log.damages, 0
            changed = True
        is_other = changed or end != len(self.cells) or log.log_start_offset != self.log_start
        # Where recovery stopped at rot, nobody knows where the log ends.
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
            # Where recovery stopped at rot, the checkpoint may have told more.
            if log.stopped_at is None:
                self.began_with = high_watermark
        return changed

    def _look_at_last_commit(self, log: Any) -> bool:
        """Until its broker hears that the log has failed, a leader commits, and gives to readers, what it had
        before and the others have, too."""
        if log is None or log is not self.log or not self.is_leader:
            return False
        before, self.high_watermark = self.high_watermark, min(log.high_watermark, len(self.cells))
        return self.high_watermark != before

    def _look_at_disk(self) -> None:
        """After a power cut: what had been flushed is there, but for what has rotted since."""
        stopped_at = self.log.stopped_at
        end = self.log.log_end_offset if stopped_at is None else stopped_at.first_offset
        lost = self.cells[max(end, self.log_start) : self.on_disk]
        if any(lost) and (stopped_at is None or not _has_rotted(self.log, self.cells[end])):
            self.lost_from_disk = end

    def _present_log(self) -> Any:
        """The log as it is now; None where there is none, or it is closed for a while."""
        partition = self.partition
        log = None if partition is None else partition.log
        if log is None or log.closed:
            log = self.log
        if log is None or log.closed:
            # A log that was mended while it was closed is another one.
            log = self.program.log_manager.get_log(self.topic_partition)
        if log is not None:
            return log if log is self.log or self._is_of_topic(log) else None
        if self.log is not None and self._is_gone():
            self._drop()
        return None

    def _is_of_topic(self, log: Any) -> bool:
        # One of a topic that was deleted may be there still, under the same name.
        if log is self.foreign:
            return False
        topic_id = self.program.log_manager.topic_id(self.topic_partition)
        if topic_id in (None, self.topic_id):
            return True
        self.foreign = log
        return False

    def _is_gone(self) -> bool:
        # Not only out of reach, as where its disk failed.
        partitions = self.program.replica_manager.partitions
        return self.partition is None and not partitions.is_offline(self.topic_partition)

    def _drop(self) -> None:
        """It is no replica any more: what it held is deleted."""
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
        # Partitions replace what they know as a whole, so the same objects mean that nothing has changed.
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
        # What was deleted at the front is not looked at again.
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
            known = self.cells[batch.base_offset] if batch.base_offset < len(self.cells) else None
            if known is not None and known.crc == batch.crc:
                # It rotted where nobody has looked yet; what it was stays known.
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
            # Records that a cleaner has left out.
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
    """Whether recovery has stopped at the batch of this record, with a bit of it changed; nobody knows where
    its own was not seen."""
    damage = log.stopped_at
    data = log.local.storage.read_file(damage.path)[damage.position :]
    try:
        found = next(iter(batches(data, partial=True)), None)
    except CorruptMessage:
        return False
    return cell is None or (found is not None and found.crc == cell.crc)

"""PartitionEvents: logs what happens to a broker's partitions.

Changes of the ISR and of leadership are logged at level INFO as they happen. The failure of a broker may
change thousands of partitions at once. So only the first lines of each kind are logged per minute, and the
others are counted in the minute's report. The report also warns how many partitions are under-replicated or
have no leader. While the broker itself shuts down, all changes are only counted, and one line sums them up.

Thread rule: any thread may call. Counts change under the GIL; two threads may log one line too many.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable

from kreplica.common.leader_and_isr import NO_LEADER
from kreplica.replica.partition import Partition

LOGGER = logging.getLogger(__name__)

REPORT_EVERY_MS = 60_000
# How many lines of one kind are logged between two reports.
MOST_LINES = 20
# How many partitions a warning names.
MOST_NAMES = 3


class PartitionEvents:
    """Logs for broker `broker_id`, which hosts `partitions`."""

    def __init__(self, broker_id: int, partitions: Iterable[Partition]) -> None:
        self._broker_id = broker_id
        self._partitions = partitions
        self._is_shutting_down = False
        self._counts: Counter[str] = Counter()
        self._counts_in_shutdown: Counter[str] = Counter()

    def leadership_taken(self, partition: Partition) -> None:
        """Log that the broker leads the partition in a new epoch."""
        self._log(
            "leadership taken",
            "%s: broker %d leads in epoch %d, from offset %d on; in sync are %s, high watermark %d",
            partition.topic_partition,
            self._broker_id,
            partition.leader_epoch,
            partition.term.epoch_start_offset,
            list(partition.isr),
            partition.high_watermark,
        )

    def leadership_lost(self, partition: Partition, end_offset: int, why: str) -> None:
        """Log that the broker no longer leads the partition. `end_offset`: its log end then."""
        self._log(
            "leadership lost" if _has_no_leader(partition) else "leadership handed over",
            "%s: broker %d is no longer the leader since epoch %d: %s; its log ends at %d",
            *(partition.topic_partition, self._broker_id, partition.leader_epoch, why, end_offset),
        )

    def isr_changed(self, partition: Partition) -> None:
        """Log the changes in the partition's history that are not logged yet."""
        for change in partition.isr_history.take_unlogged():
            self._log(
                f"ISR {change.kind}",
                "%s: broker %d %s the ISR (%s) %s; the leader's log ends at %d, high watermark %d;"
                " in sync are %s, leader epoch %d, partition epoch %d",
                partition.topic_partition,
                change.broker_id,
                "joins" if change.kind == "expand" else "leaves",
                change.reason,
                "before its first fetch"
                if change.log_end_offset < 0
                else f"at offset {change.log_end_offset}",
                change.leader_log_end_offset,
                change.high_watermark,
                list(change.isr),
                change.leader_epoch,
                change.partition_epoch,
            )

    def begin_shutdown(self) -> None:
        """Only count changes from now on: the broker is about to hand over what it leads."""
        self._is_shutting_down = True

    def stopped(self) -> None:
        """Log how the partitions changed while the broker shut down."""
        counts, self._counts_in_shutdown = self._counts_in_shutdown, Counter()
        if counts:
            changes = ", ".join(f"{count} x {kind}" for kind, count in counts.most_common())
            LOGGER.info("broker %d: while it shut down, its partitions changed: %s", self._broker_id, changes)

    def _log(self, kind: str, text: str, *values: object) -> None:
        if self._is_shutting_down:
            self._counts_in_shutdown[kind] += 1
            return
        self._counts[kind] += 1
        if self._counts[kind] <= MOST_LINES:
            LOGGER.info(text, *values)

    def report(self) -> None:
        """Log how many lines were omitted since the last report, and warn of current problems."""
        counts, self._counts = self._counts, Counter()
        more = ", ".join(
            f"{count - MOST_LINES} x {kind}" for kind, count in counts.items() if count > MOST_LINES
        )
        if more:
            LOGGER.info("broker %d: more changes of partitions in the last minute: %s", self._broker_id, more)
        self._warn("are under-replicated", lambda partition: partition.is_under_replicated)
        self._warn("have no leader", _has_no_leader)

    def _warn(self, what: str, holds: Callable[[Partition], bool]) -> None:
        found = [str(partition.topic_partition) for partition in self._partitions if holds(partition)]
        if found:
            others = ", ..." if len(found) > MOST_NAMES else ""
            LOGGER.warning(
                "broker %d: %d of its partitions %s: %s%s",
                *(self._broker_id, len(found), what, ", ".join(found[:MOST_NAMES]), others),
            )


def _has_no_leader(partition: Partition) -> bool:
    known = partition.leader_and_isr
    return known is not None and known.leader == NO_LEADER

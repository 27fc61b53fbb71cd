"""PartitionEvents: what happens to a broker's partitions, as lines of the log.

Changes of the ISR, leadership taken and given up are logged at level INFO as they happen. A broker's end may
change thousands of partitions at once: of each kind the first lines of a minute are logged, and the others
counted in the minute's report. The report also warns, for as long as it is so, how many partitions are
under-replicated or have no leader.

Thread rule: any thread may call. Counts are changed under the GIL; two threads may log a line more.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable

from kreplica.common.leader_and_isr import NO_LEADER
from kreplica.replica.partition import Partition

LOGGER = logging.getLogger(__name__)

REPORT_EVERY_MS = 60_000
# Of one kind, between two reports.
MOST_LINES = 20
# Partitions that a warning names.
MOST_NAMES = 3


class PartitionEvents:
    """The log of broker `broker_id`, which hosts `partitions`."""

    def __init__(self, broker_id: int, partitions: Iterable[Partition]) -> None:
        self._broker_id = broker_id
        self._partitions = partitions
        self._counts: Counter[str] = Counter()

    def leadership_taken(self, partition: Partition) -> None:
        """The broker leads the partition in a new epoch."""
        self._tell(
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
        """The broker does not lead the partition any more; its log ended at `end_offset` then."""
        self._tell(
            "leadership lost",
            "%s: broker %d leads no longer since epoch %d: %s; its log ends at %d",
            *(partition.topic_partition, self._broker_id, partition.leader_epoch, why, end_offset),
        )

    def isr_changed(self, partition: Partition) -> None:
        """Log the changes in the partition's history that are not logged yet."""
        for change in partition.isr_history.take_untold():
            self._tell(
                f"ISR {change.kind}",
                "%s: broker %d %s the ISR (%s) at offset %d; the leader's log ends at %d, high watermark %d;"
                " in sync are %s, leader epoch %d, partition epoch %d",
                partition.topic_partition,
                change.broker_id,
                "joins" if change.kind == "expand" else "leaves",
                change.reason,
                change.log_end_offset,
                change.leader_log_end_offset,
                change.high_watermark,
                list(change.isr),
                change.leader_epoch,
                change.partition_epoch,
            )

    def _tell(self, kind: str, text: str, *values: object) -> None:
        self._counts[kind] += 1
        if self._counts[kind] <= MOST_LINES:
            LOGGER.info(text, *values)

    def report(self) -> None:
        """Sum up what was not logged since the last report, and warn of what is wrong now."""
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

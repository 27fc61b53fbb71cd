"""EpochCheck: compares the leader epochs of a partition's batches with its checkpoint."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from operator import itemgetter

from kreplica.common.types import INT64_MAX, NO_LEADER_EPOCH
from kreplica.log.checkpoint import EpochEntry
from kreplica.log.verify.problem import Problem
from kreplica.record import RecordBatch


class EpochCheck:
    """Checks that each batch has the leader epoch that the checkpoint has for its offset.

    One object checks all segments of a log. `segment`: the path of the current one, for its problems.
    """

    def __init__(self, path: str, entries: list[EpochEntry]) -> None:
        self.segment = ""
        self._path = path
        self._entries = entries

    def see(self, batch: RecordBatch, position: int) -> Iterator[Problem]:
        # Look up each offset separately, so that a wrong offset does not affect the batches behind it.
        at = self._covering(batch.base_offset)
        # Offsets below the first entry lie before the log start. Records from before KIP-101 have epoch -1.
        if at < 0 or batch.leader_epoch in (NO_LEADER_EPOCH, self._entries[at].epoch):
            return
        text = f"leader epoch {batch.leader_epoch}, where the checkpoint has {self._entries[at].epoch}"
        yield Problem(self.segment, "EpochMismatch", text, batch.base_offset, position)

    def reach(self, offset: int, epoch: int) -> int:
        """Return the offset up to which `epoch` is the right leader epoch for batches from `offset` on."""
        at = self._covering(offset)
        if at >= 0 and epoch not in (NO_LEADER_EPOCH, self._entries[at].epoch):
            return offset
        return self._entries[at + 1].start_offset if at + 1 < len(self._entries) else INT64_MAX

    def _covering(self, offset: int) -> int:
        return bisect_right(self._entries, offset, key=itemgetter(1)) - 1

    def finish(self, whole: bool) -> Iterator[Problem]:
        del whole
        return iter(())

    def finish_log(self, log_end_offset: int) -> Iterator[Problem]:
        """Yield the problems of the checkpoint itself. Called after the last segment."""
        for epoch, start_offset in self._entries:
            if start_offset > log_end_offset:
                text = f"epoch {epoch} begins at {start_offset}, the log ends at {log_end_offset}"
                yield Problem(self._path, "OffsetBeyondLog", text, start_offset)

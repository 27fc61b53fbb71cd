"""The leader epochs of a partition's batches, compared with its checkpoint."""

from __future__ import annotations

from collections.abc import Iterator

from kreplica.log.checkpoint import EpochEntry
from kreplica.log.verify.problem import Problem
from kreplica.record import RecordBatch


class EpochCheck:
    """Each batch has the leader epoch that the checkpoint gives its offset. One check for all segments.

    `segment`: the path of the one that is walked, for its problems.
    """

    def __init__(self, path: str, entries: list[EpochEntry]) -> None:
        self.segment = ""
        self._path = path
        self._entries = entries
        self._at = -1  # the entry that covers the last batch

    def see(self, batch: RecordBatch, position: int) -> Iterator[Problem]:
        entries = self._entries
        while self._at + 1 < len(entries) and entries[self._at + 1].start_offset <= batch.base_offset:
            self._at += 1
        # What is below the first entry lies before the log's start; -1 is from before there were epochs.
        if self._at < 0 or batch.leader_epoch == -1 or batch.leader_epoch == entries[self._at].epoch:
            return
        text = f"leader epoch {batch.leader_epoch}, where the checkpoint has {entries[self._at].epoch}"
        yield Problem(self.segment, "EpochMismatch", text, batch.base_offset, position)

    def finish(self, whole: bool) -> Iterator[Problem]:
        del whole
        return iter(())

    def finish_log(self, log_end_offset: int) -> Iterator[Problem]:
        """Called behind the last segment."""
        for epoch, start_offset in self._entries:
            if start_offset > log_end_offset:
                text = f"epoch {epoch} begins at {start_offset}, the log ends at {log_end_offset}"
                yield Problem(self._path, "OffsetBeyondLog", text, start_offset)

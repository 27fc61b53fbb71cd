"""Repair the files of a log, or of a node's log directory, without discarding any valid record.

`repair` yields a `Finding` for every problem, with the action for it:

- Wrong or unreadable indexes, producer snapshots, leader epochs and checkpoints are rebuilt.
- Bad bytes with an intact batch behind them, or below the flush point, are *quarantined*. A file beside the
  log keeps them, and an empty batch takes their place. The result is a gap as after compaction, but `verify`
  continues to report it. The following batches keep their offsets, and the log can be opened for writing.
- The torn end of unflushed appends is truncated as in recovery, and kept aside.
- An intact batch whose leader epoch contradicts its neighbours gets the right epoch. (The CRC does not cover
  the epoch.)

Thread rule: a repair runs in one thread, and holds a writer's locks meanwhile. Each step leaves a log that
can be opened: new files are written aside, flushed and renamed.
"""

from kreplica.log.repair.directory import is_partition, repair
from kreplica.log.repair.plan import Finding

__all__ = ["Finding", "is_partition", "repair"]

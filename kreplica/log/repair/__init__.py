"""Mend the files of a log, or of a node's log directory, and throw no valid record away.

`repair` yields a `Finding` for everything that does not hold, with what becomes of it:

- indexes, producer snapshots, leader epochs and checkpoints that lie or cannot be read: made anew
- bytes that are no batch, with anything whole behind them or once promised: *quarantined*. They are kept in
  a file beside the log, and an empty batch takes their place: a gap as compaction leaves it, but known, of
  which `verify` goes on to tell. What lies behind stays at its offsets, and the log opens for writing
- the torn end of what was never flushed: cut as recovery cuts it, and kept aside
- whole batches whose leader epoch, which no CRC covers, goes against those around it: it is written anew

One repair runs in one thread and holds the locks of a writer meanwhile. Each step leaves a log that opens:
what is new is written aside, flushed, and renamed.
"""

from kreplica.log.repair.directory import is_partition, repair
from kreplica.log.repair.finding import Finding

__all__ = ["Finding", "is_partition", "repair"]

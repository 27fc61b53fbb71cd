"""Check all files of a log, of a log directory, of a cluster's folder, or one segment, and change nothing.

`verify` yields a `Problem` for everything that does not hold:

- every batch: frame, CRC, header, records; offsets and leader epochs never go back; a file's name is its base
- every index entry points at what it says it does
- the transaction indexes list the aborted transactions, and nothing else
- leader epochs are those of the checkpoint; checkpoints, snapshots and the small files can be read
- no checkpoint or snapshot speaks of an offset beyond its log

What a crash may leave behind without harm is no problem: zeros behind the last batch of the last segment
and in its indexes, and files that wait for their deletion. One verification runs in one thread and shares
nothing.
"""

from kreplica.log.verify.directory import Part, PartKind, holds_log, parts, total_bytes, verify, verify_part
from kreplica.log.verify.places import Places, places
from kreplica.log.verify.problem import Problem

__all__ = [
    "Part",
    "PartKind",
    "Places",
    "Problem",
    "holds_log",
    "parts",
    "places",
    "total_bytes",
    "verify",
    "verify_part",
]

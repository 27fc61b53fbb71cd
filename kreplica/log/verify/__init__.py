"""Check the files of a segment, a log, a log directory or a cluster's folder, without changing anything.

`verify` yields a `Problem` for every violation of these rules:

- Every batch has a valid frame, CRC, header and records. Offsets and leader epochs never decrease. A file's
  name is its base offset.
- Every index entry matches the batch that it points to.
- The transaction indexes list exactly the aborted transactions.
- Leader epochs match the checkpoint. Checkpoints, snapshots and the small files can be read.
- No checkpoint or snapshot has an offset beyond its log.

Harmless remains of a crash are no problem: zeros behind the last batch of the last segment and in its
indexes, files that wait for their deletion, and a replacement of segments that the next opening finishes or
drops. Thread rule: one verification runs in one thread and shares
nothing.
"""

from kreplica.log.verify.checks import Problem
from kreplica.log.verify.directory import (
    Part,
    PartKind,
    Places,
    holds_log,
    parts,
    places,
    total_bytes,
    verify,
    verify_part,
)

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

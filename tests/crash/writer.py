"""A program that appends to a log until it is killed, and the server that forks it.

Run as `python writer.py`: for each line "directory seed shared-file mode" on its input it forks a writer,
says the writer's process id, waits for its end, and says that. Mode "compact" writes a log that it compacts.
Forking a process that has everything imported makes a kill cheap. The writer notes in the shared file what it
does and what was acknowledged; the page outlives it.

A record's value begins with its offset, so a reader of the log can check every record.
"""

from __future__ import annotations

import mmap
import os
import random
import struct
import sys
from pathlib import Path

import kreplica

SETTINGS = {"segment_bytes": 16 << 10, "retention_ms": -1, "segment_index_bytes": 4096}
PHASES = ("open", "append", "roll", "checkpoint", "rename", "clean")
OPEN, APPEND, ROLL, CHECKPOINT, RENAME, CLEAN, COMPACT = range(7)
COMPACTED = SETTINGS | {"cleanup_policy": "compact"}
KEYS = 11
SHARED_BYTES = 4096
ACKNOWLEDGED = 8
START = 16


class Writer:
    """Does one thing after the other to the log, and is killed on the way."""

    def __init__(self, directory: str, seed: int, shared: mmap.mmap) -> None:
        self.directory = directory
        self.random = random.Random(seed)
        self.shared = shared
        self.log = self.open()

    def open(self) -> kreplica.Log:
        self.shared[0] = OPEN
        return kreplica.Log.open(self.directory, **SETTINGS)

    def run(self) -> None:
        steps = (self.append, self.append, self.append, self.roll, self.checkpoint, self.rename, self.clean)
        while True:
            self.random.choice(steps)()

    def append(self, phase: int = APPEND, epoch: int | None = None) -> None:
        for _ in range(self.random.randrange(1, 30) if epoch is None else 1):
            end = self.log.log_end_offset
            values = [b"%d:" % offset for offset in range(end, end + self.random.randrange(1, 4))]
            filler = bytes(self.random.randrange(1500))
            self.shared[0] = phase
            info = self.log.append([value + filler for value in values], leader_epoch=epoch)
            struct.pack_into("<q", self.shared, ACKNOWLEDGED, info.last_offset + 1)

    def roll(self) -> None:
        for _ in range(3):
            self.append(epoch=max(self.log._log.leader_epoch, 0))
            self.shared[0] = ROLL
            self.log.roll()

    def checkpoint(self) -> None:
        # A new leader epoch is written to its checkpoint before the first batch of it.
        self.append(CHECKPOINT, self.log._log.leader_epoch + 1)
        self.shared[0] = CHECKPOINT
        self.log.flush()

    def rename(self) -> None:
        # The files of the segments that go are renamed before they are removed.
        keep = self.random.randrange(60)
        before = max(self.log.log_start_offset, self.log.log_end_offset - keep)
        struct.pack_into("<q", self.shared, START, before)
        self.shared[0] = RENAME
        self.log.delete_records(before)
        self.log.delete_old_segments()

    def clean(self) -> None:
        self.shared[0] = CLEAN
        self.log.close()
        self.log = self.open()


class CompactingWriter(Writer):
    """Record `offset` has the key offset % KEYS, so the log end shows which records a cleaner must keep."""

    def open(self) -> kreplica.Log:
        self.shared[0] = OPEN
        return kreplica.Log.open(self.directory, **COMPACTED)

    def run(self) -> None:
        while True:
            self.random.choice((self.append_keys, self.append_keys, self.compact, self.clean))()

    def append_keys(self) -> None:
        for _ in range(self.random.randrange(1, 60)):
            end = self.log.log_end_offset
            filler = bytes(self.random.randrange(1500))
            self.shared[0] = APPEND
            info = self.log.append(
                [
                    (b"%d" % (o % KEYS), b"%d:" % o + filler)
                    for o in range(end, end + self.random.randrange(1, 4))
                ]
            )
            struct.pack_into("<q", self.shared, ACKNOWLEDGED, info.last_offset + 1)

    def compact(self) -> None:
        self.shared[0] = COMPACT
        self.log.compact(dedupe_buffer_size=4096)


MODES = {"append": Writer, "compact": CompactingWriter}


def serve() -> None:
    for line in sys.stdin:
        directory, seed, path, mode = line.split()
        child = os.fork()
        if child == 0:
            with Path(path).open("r+b") as file, mmap.mmap(file.fileno(), SHARED_BYTES) as shared:
                MODES[mode](directory, int(seed), shared).run()
        print(child, flush=True)
        _, status = os.waitpid(child, 0)
        print(status, flush=True)


if __name__ == "__main__":
    serve()

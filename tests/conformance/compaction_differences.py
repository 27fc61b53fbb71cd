"""A log cleaned by kreplica, and how it differs from the same log cleaned by Kafka. Needs no Java."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import kreplica
from kreplica.common.config import CleanerConfig
from kreplica.log.log_cleaner import LogCleaner
from kreplica.runtime.storage import FileStorage
from tests.support.clock import ManualClock

Segments = Sequence[dict[str, Any]]

SLOT_BYTES = 16  # of an offset map
STEP_BYTES = 1 << 10

# What a batch that had to be built anew may say in its own way: Kafka takes the timestamp of the first record
# that is left as the base of the others.
FREE_IN_REBUILT = ("crc", "bytes", "base_timestamp")


def clean(log: kreplica.Log, now_ms: int, slots: int) -> list[list[int]]:
    """Clean the log as a node's cleaner would now, checkpoint included; return each round's first dirty
    offset and the offset that it reached."""
    unified, storage = log._log, FileStorage()
    config = CleanerConfig(dedupe_buffer_size=SLOT_BYTES * slots, io_buffer_size=STEP_BYTES)
    cleaner = LogCleaner(
        lambda: [unified],
        clock=ManualClock(now_ms),
        random=random.Random(1),
        storage=storage,
        config=config,
    )
    rounds: list[list[int]] = []
    last = None
    while cleaner.do_work() != config.backoff_ms:
        stats = cleaner.stats.get(unified.topic_partition)
        if stats is not None and stats is not last:
            rounds.append([stats.first_dirty_offset, stats.end_offset])
            last = stats
    assert cleaner.manager.uncleanable == {}
    return rounds


def write_checkpoint(log: Path, offset: int | None) -> None:
    """Up to where the log in this directory is clean, as its log directory says it; None for never."""
    rows = [] if offset is None else [f"{log.name.replace('-', ' ')} {offset}"]
    text = "\n".join(["0", str(len(rows)), *rows, ""])
    (log.parent / "cleaner-offset-checkpoint").write_text(text)


def differences(ours: Segments, theirs: Segments, before: Segments) -> list[str]:
    """What two dumps of a cleaned log differ in, which was `before` once; [] where it is only what may be.

    Kreplica keeps the last batch of each segment, its header if nothing is left of it. What Kafka left as it
    was must be the same to the byte; what it built anew may differ in its encoding.
    """
    found = []
    mine, other, once = (_batches(dump) for dump in (ours, theirs, before))
    last = {segment["batches"][-1]["base"] for segment in ours if segment["batches"]}
    for base in sorted(mine.keys() | other.keys()):
        a, b = mine.get(base), other.get(base)
        if a is not None and b is None and a["count"] == 0 and base in last:
            continue
        if a is None or b is None:
            found.append(f"at {base}: {a}, not {b}")
            continue
        free = FREE_IN_REBUILT if b != once[base] else ()
        names = [name for name in a if a[name] != b[name] and name not in free]
        found += [f"at {base}: {name} {a[name]}, not {b[name]}" for name in names]
    aborted = [[row for segment in dump for row in segment["aborted"]] for dump in (ours, theirs)]
    if aborted[0] != aborted[1]:
        found.append(f"aborted transactions {aborted[0]}, not {aborted[1]}")
    return found


def latest(records: Iterable[Sequence[Any]]) -> dict[str | None, Sequence[Any]]:
    """The last record of each key, as `segment_dump.line_of` has them; a key whose last one is a tombstone is
    left out, since that may be gone already."""
    last = {record[2]: record for record in records if record[2] is not None}
    return {key: record for key, record in last.items() if record[3] is not None}


def _batches(dump: Segments) -> dict[int, dict[str, Any]]:
    return {batch["base"]: batch for segment in dump for batch in segment["batches"]}

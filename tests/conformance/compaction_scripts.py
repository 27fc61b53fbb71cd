"""What goes into a log between cleanings, drawn by chance from a seed: the same script for the same seed.

Needs no Java. Batches are as java/Compaction.java takes them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

START_MS = 1_700_000_000_000
PLENTY = 4_096
CODECS = ("gzip", "snappy", "lz4", "zstd")


@dataclass(frozen=True)
class Round:
    """Batches to append, then the time at which the cleaner looks at the log."""

    batches: list[dict[str, Any]]
    now_ms: int


@dataclass(frozen=True)
class Script:
    """`settings` are the topic's; `slots` of the offset map are to be had (nine tenths of them are used)."""

    seed: int
    settings: dict[str, object]
    slots: int
    rounds: list[Round]

    @property
    def has_room(self) -> bool:
        """Whether the offset map takes in all keys at once."""
        return self.slots == PLENTY


@dataclass
class _Producer:
    producer_id: int
    transactional: bool
    epoch: int = 0
    sequence: int = 0
    is_open: bool = False


@dataclass
class _Drawing:
    """The state of a script that is being drawn: the clock, the leader's epoch, and where producers stand."""

    rng: random.Random
    keys: int
    compressed: float
    keyless: float
    now_ms: int = START_MS
    epoch: int = 0
    values: int = 0
    producers: list[_Producer] = field(default_factory=list)


def draw(seed: int) -> Script:
    """The script of this seed."""
    rng = random.Random(seed)
    drawing = _Drawing(rng, rng.choice([3, 8, 30]), rng.choice([0, 0.4]), rng.choice([0, 0, 0.1]))
    drawing.producers = [_Producer(100 + i, i % 2 == 0) for i in range(rng.choice([0, 2, 5]))]
    rounds = []
    for _ in range(rng.randrange(2, 6)):
        batches = [_step(drawing) for _ in range(rng.choice([4, 20, 60]))]
        if rng.random() < 0.6:
            batches += [_marker(drawing, each) for each in drawing.producers if each.is_open]
        if rng.random() < 0.8:
            batches.append({"roll": True})
        drawing.now_ms += rng.choice([0, 500, 1_500, 4_000])
        rounds.append(Round(batches, drawing.now_ms))
    return Script(seed, _settings(rng), rng.choice([PLENTY, PLENTY, PLENTY, 7]), rounds)


def _settings(rng: random.Random) -> dict[str, object]:
    settings: dict[str, object] = {
        "segment.bytes": rng.choice([1_200, 2_500, 6_000]),
        "segment.index.bytes": rng.choice([96, 1_024]),
        "index.interval.bytes": rng.choice([0, 200]),
        "delete.retention.ms": rng.choice([0, 1_000, 2_500]),
        "min.cleanable.dirty.ratio": rng.choice(["0.0", "0.0", "0.5"]),
        "message.timestamp.type": rng.choice(["CreateTime", "CreateTime", "CreateTime", "LogAppendTime"]),
    }
    if rng.random() < 0.2:
        settings["min.compaction.lag.ms"] = 1_000
    if rng.random() < 0.2:
        settings["max.compaction.lag.ms"] = 2_000
    return settings


def _step(drawing: _Drawing) -> dict[str, Any]:
    rng = drawing.rng
    kind = rng.random()
    if kind < 0.03:
        return {"roll": True}
    if kind < 0.06:
        drawing.epoch += rng.randrange(1, 3)
    if kind < 0.1:
        drawing.now_ms += rng.randrange(1, 300)
        return {"now": drawing.now_ms}
    if drawing.producers and kind < 0.75:
        producer = rng.choice(drawing.producers)
        if producer.is_open and rng.random() < 0.4:
            return _marker(drawing, producer)
        return _produced(drawing, producer)
    return _batch(drawing)


def _batch(drawing: _Drawing) -> dict[str, Any]:
    rng = drawing.rng
    records = [_record(drawing) for _ in range(rng.choice([1, 1, 2, 5, 12]))]
    codec = rng.choice(CODECS) if rng.random() < drawing.compressed else "none"
    return {"codec": codec, "records": records, "epoch": drawing.epoch}


def _record(drawing: _Drawing) -> list[Any]:
    rng = drawing.rng
    drawing.values += 1
    key = None if rng.random() < drawing.keyless else f"key-{rng.randrange(drawing.keys)}"
    value = None if rng.random() < 0.2 else f"value {drawing.values} " + "." * rng.choice([0, 5, 40])
    record: list[Any] = [drawing.now_ms - rng.choice([0, 0, 3, 700]), key, value]
    if rng.random() < 0.15:
        record.append(
            [["plain", "1"], ["null", None], ["gr\u00f6\u00dfe", "\u00ff\u0000"]][: rng.randrange(1, 4)]
        )
    return record


def _produced(drawing: _Drawing, producer: _Producer) -> dict[str, Any]:
    rng = drawing.rng
    if not producer.is_open and rng.random() < 0.08:
        producer.epoch += 1
        producer.sequence = 0
    batch = _batch(drawing)
    batch["producer"] = [producer.producer_id, producer.epoch, producer.sequence]
    batch["transactional"] = producer.transactional
    producer.is_open = producer.transactional
    producer.sequence += len(batch["records"])
    return batch


def _marker(drawing: _Drawing, producer: _Producer) -> dict[str, Any]:
    producer.is_open = False
    return {
        "marker": drawing.rng.choice(["COMMIT", "ABORT"]),
        "producer": [producer.producer_id, producer.epoch],
        "timestamp": drawing.now_ms,
        "epoch": drawing.epoch,
    }

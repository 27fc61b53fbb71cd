"""The isolation levels of reads, by our names and by Kafka's. Any thread may call."""

from __future__ import annotations

from typing import Literal

# What a reader sees: all records of a replica, those below the high watermark, or of transactions only those
# that are committed. The last two are Kafka's names, in isolation.level, of the second and third.
Isolation = Literal["log_end", "high_watermark", "txn_committed", "read_uncommitted", "read_committed"]
OF_KAFKA: dict[str, Isolation] = {"read_uncommitted": "high_watermark", "read_committed": "txn_committed"}
LEVELS: dict[str, Isolation] = {
    "log_end": "log_end",
    "high_watermark": "high_watermark",
    "txn_committed": "txn_committed",
    **OF_KAFKA,
}


def isolation_level(name: str) -> Isolation:
    """Return the level by the name that logs use: log_end, high_watermark or txn_committed.

    Raises ValueError if there is no level of that name.
    """
    try:
        return LEVELS[name]
    except (KeyError, TypeError):
        raise ValueError(f"isolation={name!r} must be one of {', '.join(LEVELS)}") from None

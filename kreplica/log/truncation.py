"""Where a log stands once its end goes back: offsets that lay past the end go with it.

It is published, and put on disk, before a byte is cut off, for two reasons: after a kill recovery must not
miss what was being cut, and after a power cut it must not take a range for flushed that was about to hold
other records.
"""

from __future__ import annotations

from kreplica._core.log_state import LogState
from kreplica.common.errors import NotLeaderOrFollower, OffsetOutOfRange


def publish_end(state: LogState, end: int, active_base_offset: int, valid_length: int) -> None:
    """Let the log end at offset `end`, byte `valid_length` of the segment at `active_base_offset`."""
    state.count_cut()
    state.update(
        log_start_offset=min(state.log_start_offset, end),
        log_end_offset=end,
        high_watermark=min(state.high_watermark, end),
        active_base_offset=active_base_offset,
        valid_length=valid_length,
        flush_offset=min(state.flush_offset, end),
        last_stable_offset=min(state.last_stable_offset, end),
    )


def end_of_none(first_base_offset: int, offset: int) -> tuple[int, int, int]:
    """What to publish before everything goes and the log begins again at `offset`: end, active segment,
    length. A kill then leaves older segments, and none of them may seem to miss bytes."""
    first = min(first_base_offset, offset)
    return first, first, 0


def require_offset(offset: int) -> None:
    """Raise OffsetOutOfRange where no log can end."""
    if offset < 0:
        raise OffsetOutOfRange(f"a log cannot end at offset {offset}", where=offset)


def require_kept(kept: bool, base_offset: int) -> None:
    """Raise NotLeaderOrFollower for an append whose records a truncation took before they were flushed."""
    if not kept:
        raise NotLeaderOrFollower(
            f"offset {base_offset} was cut off before it was flushed", where=base_offset
        )

"""Where a log stands once its end goes back: offsets that lay past the end go with it.

It is published, and put on disk, before a byte is cut off, for two reasons: after a kill recovery must not
miss what was being cut, and after a power cut it must not take a range for flushed that was about to hold
other records.
"""

from __future__ import annotations

from kreplica._core.log_state import LogState


def publish_end(state: LogState, end: int, active_base_offset: int, valid_length: int) -> None:
    """Let the log end at offset `end`, byte `valid_length` of the segment at `active_base_offset`."""
    state.update(
        log_start_offset=min(state.log_start_offset, end),
        log_end_offset=end,
        high_watermark=min(state.high_watermark, end),
        active_base_offset=active_base_offset,
        valid_length=valid_length,
        flush_offset=min(state.flush_offset, end),
        last_stable_offset=min(state.last_stable_offset, end),
    )

"""Durations as text: P1DT2H30M, PT0.5S, the days and times of ISO 8601. A pure function."""

from __future__ import annotations

import re

from kreplica.common.types import INT64_MAX

_DURATION = re.compile(
    r"P(?=.)(?:(\d+)D)?(?:T(?=\d)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)(?:\.(\d{1,9}))?S)?)?",
    re.ASCII | re.IGNORECASE,
)
MAX_TEXT = 80


def duration_ms(text: str) -> int:
    """Return the duration in whole milliseconds. Raises ValueError."""
    found = _DURATION.fullmatch(text[: MAX_TEXT + 1])
    if found is None:
        raise ValueError(f"{text[:MAX_TEXT]!r} is no duration such as P1D or PT2H30M")
    days, hours, minutes, seconds = (int(each or 0) for each in found.groups()[:4])
    milliseconds = int((found[5] or "").ljust(3, "0")[:3])
    total_ms = (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1_000 + milliseconds
    if total_ms > INT64_MAX:
        raise ValueError(f"{text!r} is longer than {INT64_MAX:,} ms")
    return total_ms

"""Measure this process's memory."""

from __future__ import annotations

import resource
from pathlib import Path


def resident_bytes() -> int:
    """Return the bytes of physical memory that this process uses now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

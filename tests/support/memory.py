"""What this process holds of the machine's memory."""

from __future__ import annotations

import resource
from pathlib import Path


def resident_bytes() -> int:
    """Bytes of memory that this process has in use now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

"""What the tests of regions share."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

from kreplica._core.region import Region

KIB = 1 << 10
MIB = 1 << 20
PAGE = 4096


def append(region: Region, data: bytes) -> int:
    """Write `data` behind the valid bytes and publish it; its position."""
    position = region.length
    region.write(position, data)
    region.publish(position + len(data))
    return position


def run(
    script: str, *arguments: str | Path, prefix: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run the script in a process of its own, with a few names at hand and `arguments` in sys.argv."""
    head = """
        import faulthandler, os, resource, signal, sys
        from kreplica._core.region import Region
        from kreplica.common import errors
        """
    return subprocess.run(
        [
            *prefix,
            sys.executable,
            "-c",
            textwrap.dedent(head) + textwrap.dedent(script),
            *map(str, arguments),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

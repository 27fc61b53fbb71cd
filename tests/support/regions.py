"""Helpers for tests of regions."""

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
    """Write `data` after the valid bytes and publish it; return its position."""
    position = region.length
    region.write(position, data)
    region.publish(position + len(data))
    return position


HEAD = """
    import faulthandler, os, resource, signal, sys
    from kreplica._core.region import Region
    from kreplica.common import errors
    """


def _command(script: str, arguments: tuple[str | Path, ...]) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(HEAD) + textwrap.dedent(script), *map(str, arguments)]


def run(
    script: str, *arguments: str | Path, prefix: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run the script in a process with some imports, and `arguments` in sys.argv; wait for its end."""
    return subprocess.run(
        [*prefix, *_command(script, arguments)], capture_output=True, text=True, timeout=60, check=False
    )


def start(script: str, *arguments: str | Path) -> subprocess.Popen[str]:
    """Start the script in a process beside the test, connected to its standard input and output."""
    return subprocess.Popen(
        _command(script, arguments), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

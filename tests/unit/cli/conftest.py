"""What the tests of several commands begin with."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path

import pytest
import typer

KAFKA = Path(__file__).resolve().parents[2] / "data" / "kafka-4.3" / "clean" / "logs"


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A partition with a flipped bit in the last batch of its first segment, at byte 1029, offset 9."""
    partition = shutil.copytree(KAFKA / "segments-0", tmp_path / "segments-0")
    path = partition / "00000000000000000000.log"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    return partition


_built = cache(typer.main.get_command)


@pytest.fixture
def commands_are_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Share what typer makes of an app: it takes 0.1 s, and a command line that is refused needs it twice."""
    monkeypatch.setattr(typer.main, "get_command", _built)

"""What the tests of several commands begin with."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import typer.main
import typer.testing

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


@pytest.fixture
def commands_are_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a call of an app share what CliRunner has built: it takes 0.1 s, twice if a line is refused."""
    monkeypatch.setattr(typer.main, "get_command", typer.testing._get_command)

"""Log by itself: what a closed one still answers."""

from __future__ import annotations

from pathlib import Path

import pytest

import kreplica
from kreplica.common.errors import LogClosed


@pytest.mark.parametrize("read_only", [False, True])
def test_a_closed_log_says_so(tmp_path: Path, read_only: bool) -> None:
    with kreplica.Log.open(tmp_path / "t-0") as log:
        log.append([b"a"])
    log = kreplica.Log.open(tmp_path / "t-0", read_only=read_only)
    log.close()
    for use in (
        lambda: log.offset_for_timestamp(0),
        log.flush,
        log.to_arrow,
        lambda: list(log.read()),
        lambda: log.offset_for_timestamp(-2),
    ):
        with pytest.raises(LogClosed):
            use()

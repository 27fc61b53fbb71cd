"""The published state of a log that is not open here."""

from __future__ import annotations

from pathlib import Path

import kreplica
from kreplica.log.file_names import STATE_FILE
from kreplica.log.state_file import publish_state, read_state
from kreplica.runtime.storage import FileStorage

STORAGE = FileStorage()


def test_a_directory_without_the_file_has_no_state(tmp_path: Path) -> None:
    assert read_state(STORAGE, str(tmp_path)) is None


def test_a_file_without_a_whole_state_has_none(tmp_path: Path) -> None:
    (tmp_path / STATE_FILE).write_bytes(b"\0" * 4096)
    assert read_state(STORAGE, str(tmp_path)) is None


def test_a_state_that_is_published_counts_one_more_cut_and_is_not_clean(tmp_path: Path) -> None:
    with kreplica.Log.open(tmp_path / "orders-0") as log:
        log.append([b"a", b"b"])
    before = read_state(STORAGE, str(tmp_path / "orders-0"))
    assert before is not None
    assert before.clean
    publish_state(STORAGE, str(tmp_path / "orders-0"), before._replace(log_end_offset=1))
    after = read_state(STORAGE, str(tmp_path / "orders-0"))
    assert after is not None
    assert (after.log_end_offset, after.cuts, after.clean) == (1, before.cuts + 1, False)
    assert (after.boot_id, after.flush_offset) == (before.boot_id, before.flush_offset)

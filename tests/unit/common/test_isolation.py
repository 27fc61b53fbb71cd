"""Names of isolation levels: a reader of a log and one of a cluster use the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kreplica
from kreplica.common.isolation import isolation_level


@pytest.mark.parametrize(
    ("name", "level"),
    [
        ("log_end", "log_end"),
        ("high_watermark", "high_watermark"),
        ("txn_committed", "txn_committed"),
        ("read_uncommitted", "high_watermark"),
        ("read_committed", "txn_committed"),
    ],
)
def test_a_level_has_our_name_and_kafkas(name: str, level: str) -> None:
    assert isolation_level(name) == level


@pytest.mark.parametrize("name", ["", "READ_COMMITTED", "serializable", None, 1, ["read_committed"]])
def test_an_unknown_level_is_refused_with_the_known_ones(name: Any) -> None:
    with pytest.raises(ValueError, match=r"must be one of log_end, .*, read_committed"):
        isolation_level(name)


def test_a_log_reads_by_kafkas_names_what_it_reads_by_ours(tmp_path: Path) -> None:
    with kreplica.Log.open(tmp_path / "t-0") as log:
        log.append([b"1", b"2"])
        for kafkas, ours in (("read_committed", "txn_committed"), ("read_uncommitted", "high_watermark")):
            readers: Any = (
                lambda name: [each.value for each in log.read(isolation=name)],
                lambda name: [each.base_offset for each in log.batches(isolation=name)],
                lambda name: log.to_arrow(isolation=name).to_pylist(),
                lambda name: kreplica.arrow.scan(log.path, isolation=name).to_arrow().to_pylist(),
            )
            for read in readers:
                assert read(kafkas) == read(ours)


def test_a_log_refuses_an_unknown_level_before_it_reads(tmp_path: Path) -> None:
    with kreplica.Log.open(tmp_path / "t-0") as log:
        wrong: Any = "committed"
        for read in (log.read, log.batches, log.column_reader, log.to_arrow):
            with pytest.raises(ValueError, match="isolation='committed' must be one of"):
                read(isolation=wrong)
        with pytest.raises(ValueError, match="isolation='committed' must be one of"):
            log.read(isolation=wrong, follow=True)
        with pytest.raises(ValueError, match="isolation='committed' must be one of"):
            kreplica.arrow.scan(log.path, isolation=wrong)

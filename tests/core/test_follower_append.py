"""What a follower fetched, appended in runs and batch by batch: the same log, to the byte."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kreplica._core.follower_append import append_run
from kreplica._core.records import batches
from kreplica.common.errors import KreplicaError
from kreplica.log import unified_log
from kreplica.log.log_loader import OpenOptions
from kreplica.log.unified_log import UnifiedLog
from tests.support.batches import build
from tests.support.logs import NOW_MS, ManualClock, open_log

SETTINGS = {"segment_bytes": 900, "index_interval_bytes": 150, "segment_ms": 50_000}
FIRST_EPOCH = 3


@st.composite
def fetched(draw: st.DrawFn) -> bytes:
    """A leader's batches, one after the other: mostly plain ones, with invalid or wrong ones between."""
    answer, base, epoch = bytearray(), 0, FIRST_EPOCH
    sequences = [0, 0]
    for number in range(draw(st.integers(0, 25))):
        kind = draw(
            st.sampled_from(["plain"] * 8 + ["epoch", "gap", "producer", "codec", "late", "bad", "back"])
        )
        count = draw(st.integers(1, 4))
        fields: dict[str, object] = {"now_ms": NOW_MS + number}
        if kind == "epoch":
            epoch += 1
        elif kind == "gap":
            base += draw(st.integers(1, 50))
        elif kind == "producer":
            producer = draw(st.integers(0, 1))
            fields |= {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequences[producer]}
            sequences[producer] += count
        elif kind == "codec":
            fields["codec"] = "gzip"
        elif kind == "late":
            fields["now_ms"] = NOW_MS + 60_000
        offset = base - 1 if kind == "back" and base else base
        values = [b"%d.%d" % (number, index) * draw(st.integers(1, 9)) for index in range(count)]
        made = bytearray(build(values, base_offset=offset, leader_epoch=epoch, **fields))
        if kind == "bad":
            made[draw(st.integers(0, len(made) - 1))] ^= 1 << draw(st.integers(0, 7))
        answer += made
        base += count
    cut = draw(st.integers(0, 70)) if draw(st.booleans()) else 0
    return bytes(answer[: len(answer) - cut])


def append(log: UnifiedLog, answer: bytes, leader_epoch: int | None) -> tuple[object, ...]:
    """What the append says: the last batch's info, or the kind of error."""
    try:
        info = log.append_as_follower(answer, leader_epoch)
    except KreplicaError as error:
        return (type(error),)
    names = [name for name in dir(info) if not name.startswith("_")]
    return tuple(getattr(info, name) for name in names)


def all_of(log: UnifiedLog, directory: Path) -> dict[str, object]:
    """The log as it is in memory and, after a close in order, on disk."""
    standing = log.state
    known: dict[str, object] = {
        "marks": (standing.log_end_offset, standing.high_watermark, standing.last_stable_offset),
        "valid": (standing.valid_length, standing.leader_epoch, standing.stable),
        "epochs": (log.leader_epoch, tuple(log.epochs.entries)),
        "producers": log.producers.map_end_offset,
        "largest": [segment.largest_timestamp() for segment in log.local.segments],
    }
    log.close()
    for path in sorted(directory.iterdir()):
        # Only the state file differs: it names the writing process and counts its publications.
        if not path.name.startswith("kreplica.state"):
            known[path.name] = path.read_bytes()
    return known


@settings(max_examples=150, deadline=None)
@given(first=fetched(), second=fetched(), leader_epoch=st.sampled_from([None, FIRST_EPOCH, FIRST_EPOCH + 2]))
def test_runs_leave_what_single_batches_leave(first: bytes, second: bytes, leader_epoch: int | None) -> None:
    memory = Path("/dev/shm")
    root = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
    try:
        outcomes = []
        for name in ("runs-0", "single-0"):
            log = open_log(root / name, ManualClock(), options=OpenOptions(), **SETTINGS)
            # Without runs the careful path takes every batch.
            takes = append_run if name == "runs-0" else mock.Mock(return_value=None)
            with mock.patch.object(unified_log, "append_run", takes):
                said = [append(log, answer, leader_epoch) for answer in (first, second)]
            outcomes.append((said, all_of(log, root / name)))
        runs, single = outcomes
        assert runs == single
    finally:
        shutil.rmtree(root)


@pytest.fixture
def log(tmp_path: Path) -> UnifiedLog:
    made = open_log(tmp_path / "t-0", ManualClock(), options=OpenOptions())
    made.begin_epoch(0, 0)
    return made


def plain(base_offset: int, count: int = 2, **fields: object) -> bytes:
    return build([b"value"] * count, base_offset=base_offset, leader_epoch=0, now_ms=NOW_MS, **fields)


@pytest.mark.parametrize("size", [5, 5000])  # one that keeps the GIL, and one that releases it
def test_a_run_is_one_call(log: UnifiedLog, size: int) -> None:
    answer = batches(b"".join(plain(number * 2) for number in range(size)))
    info = append_run(log.active, answer, log.state, 0)
    assert info is not None
    assert (info.base_offset, info.last_offset, info.record_count) == (size * 2 - 2, size * 2 - 1, 2)
    assert info.position + info.size == log.active.size
    assert log.log_end_offset == size * 2
    assert next(answer, None) is None


@pytest.mark.parametrize(
    "other",
    [
        build([b"x"], base_offset=4, leader_epoch=1),
        build([b"x"], base_offset=3, leader_epoch=0),
        plain(4, producer_id=1, producer_epoch=0, base_sequence=0),
        plain(4)[:-1] + b"?",
    ],
)
def test_a_run_ends_before_what_is_not_plain(log: UnifiedLog, other: bytes) -> None:
    answer = batches(plain(0) + plain(2) + other)
    info = append_run(log.active, answer, log.state, 0)
    assert info is not None
    assert (info.base_offset, log.log_end_offset) == (2, 4)
    assert append_run(log.active, answer, log.state, 0) is None
    assert bytes(next(answer)) == other

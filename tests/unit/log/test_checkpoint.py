"""Checkpoint files: what is written, what is refused."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplica.common.errors import InvalidFile, InvalidTopic, KafkaStorageError
from kreplica.common.types import INT32_MAX, INT64_MAX, TopicPartition
from kreplica.log.checkpoint import EpochEntry, LeaderEpochCheckpointFile, OffsetCheckpointFile
from tests.support.memory_storage import MemoryStorage

PATH = "data/recovery-point-offset-checkpoint"

OFFSETS = st.dictionaries(
    st.builds(
        TopicPartition, st.from_regex(r"[a-zA-Z0-9_-]{1,20}", fullmatch=True), st.integers(0, INT32_MAX)
    ),
    st.integers(0, INT64_MAX),
    max_size=6,
)
EPOCHS = st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 1 << 40)), max_size=6).map(
    lambda steps: [
        EpochEntry(sum(e for e, _ in steps[: i + 1]), sum(o for _, o in steps[: i + 1]))
        for i in range(len(steps))
    ]
)


def test_offset_checkpoint_bytes_and_back() -> None:
    storage = MemoryStorage()
    file = OffsetCheckpointFile(storage, PATH)
    assert file.read() == {}
    offsets = {TopicPartition("orders", 0): 4711, TopicPartition("orders", 1): 0}
    file.write(offsets)
    assert storage.files[PATH] == b"0\n2\norders 0 4711\norders 1 0\n"
    assert storage.calls == [("write_file_atomically", PATH)]
    assert file.read() == offsets


def test_leader_epoch_checkpoint_bytes_and_back() -> None:
    storage = MemoryStorage()
    file = LeaderEpochCheckpointFile(storage, "data/orders-0")
    assert file.read() == []
    file.write([EpochEntry(0, 0), EpochEntry(5, 120)])
    assert storage.files["data/orders-0/leader-epoch-checkpoint"] == b"0\n2\n0 0\n5 120\n"
    assert file.read() == [(0, 0), (5, 120)]


def test_empty_file_is_what_kafka_leaves_before_its_first_checkpoint() -> None:
    storage = MemoryStorage()
    storage.files[PATH] = b""
    assert OffsetCheckpointFile(storage, PATH).read() == {}


def test_failing_disk_is_not_hidden() -> None:
    storage = MemoryStorage()
    storage.fail = KafkaStorageError
    with pytest.raises(KafkaStorageError):
        OffsetCheckpointFile(storage, PATH).write({})


def test_topic_name_that_would_break_the_row_is_not_written() -> None:
    with pytest.raises(InvalidTopic):
        OffsetCheckpointFile.format({TopicPartition("a b", 0): 1})


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"1\n0\n", 1),
        (b"\n0\n", 1),
        (b"zero\n0\n", 1),
        (b"0\n", 2),
        (b"0", 1),
        (b"0\n-1\n", 2),
        (b"0\n2\nt 0 1\n", 2),
        (b"0\n0\nt 0 1\n", 2),
        (b"0\n99999999999\n", 2),
        (b"0\n" + b"9" * 10_000 + b"\n", 2),
        (b"0\n1\nt 0 1", 3),
        (b"0\n1\nt 0\n", 3),
        (b"0\n1\nt  0 1\n", 3),
        (b"0\n1\nt 0 1 2\n", 3),
        (b"0\n1\nt 0 -1\n", 3),
        (b"0\n1\nt 0 +1\n", 3),
        (b"0\n1\nt 0 1_0\n", 3),
        (b"0\n1\nt 0 9223372036854775808\n", 3),
        (b"0\n1\nt 2147483648 1\n", 3),
        (b"0\n1\n 0 1\n", 3),
        (b"0\n2\nt 0 1\nt 0 2\n", 4),
        (b"0\n1\n\xff 0 1\n", 3),
        (b"\0" * 100, 1),
    ],
)
def test_offset_checkpoint_refused_with_its_line(data: bytes, line: int) -> None:
    with pytest.raises(InvalidFile, match=f"^{PATH}: line {line} ") as caught:
        OffsetCheckpointFile.parse(data, PATH)
    assert caught.value.where == line


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"0\n2\n1 5\n1 6\n", 4),
        (b"0\n2\n1 5\n2 5\n", 4),
        (b"0\n2\n2 5\n1 9\n", 4),
        (b"0\n1\n-1 5\n", 3),
        (b"0\n1\n2147483648 5\n", 3),
        (b"0\n1\n1 5 6\n", 3),
    ],
)
def test_leader_epoch_checkpoint_refused_with_its_line(data: bytes, line: int) -> None:
    with pytest.raises(InvalidFile, match=f"line {line} "):
        LeaderEpochCheckpointFile.parse(data, "leader-epoch-checkpoint")


@given(OFFSETS)
def test_offsets_round_trip(offsets: dict[TopicPartition, int]) -> None:
    data = OffsetCheckpointFile.format(offsets)
    assert list(OffsetCheckpointFile.parse(data, PATH).items()) == list(offsets.items())


@given(EPOCHS)
def test_epochs_round_trip(entries: list[EpochEntry]) -> None:
    assert LeaderEpochCheckpointFile.parse(LeaderEpochCheckpointFile.format(entries), "f") == entries


SAMPLES: list[tuple[bytes, Callable[[bytes, str], object]]] = [
    (
        OffsetCheckpointFile.format({TopicPartition("orders", 0): 4711, TopicPartition("x.y", 12): 90}),
        OffsetCheckpointFile.parse,
    ),
    (
        LeaderEpochCheckpointFile.format([EpochEntry(3, 17), EpochEntry(21, 4000)]),
        LeaderEpochCheckpointFile.parse,
    ),
]


@pytest.mark.parametrize(("data", "parse"), SAMPLES)
def test_every_truncation_is_seen(data: bytes, parse: Callable[[bytes, str], object]) -> None:
    for size in range(1, len(data)):
        with pytest.raises(InvalidFile):
            parse(data[:size], PATH)


@pytest.mark.parametrize(("data", "parse"), SAMPLES)
def test_every_flipped_bit_is_refused_or_reads_as_the_rows_that_are_there(
    data: bytes, parse: Callable[[bytes, str], object]
) -> None:
    whole = parse(data, PATH)
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            found = parse(bytes(flipped), PATH)
        except InvalidFile:
            continue
        # The format has no checksum, so a digit or letter may replace another; the file's shape is the same.
        assert found != whole
        assert len(found) == len(whole)  # type: ignore[arg-type]


@given(st.binary(max_size=60))
def test_noise_is_refused(data: bytes) -> None:
    for parse in (OffsetCheckpointFile.parse, LeaderEpochCheckpointFile.parse):
        try:
            found = parse(b"0\n1\n" + data, PATH)
        except InvalidFile:
            continue
        assert len(found) == 1

"""Snapshots: what is written is read, whole or not at all, whatever the bytes are."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplica.common.errors import (
    InvalidRequest,
    InvalidSnapshot,
    KreplicaError,
    PositionOutOfRange,
)
from kreplica.common.types import Uuid
from kreplica.metadata.control_records import (
    ControlMessage,
    KRaftVersionRecord,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
)
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.metadata.records import ConfigRecord
from kreplica.metadata.serde import ApiMessageAndVersion
from kreplica.raft.batch_accumulator import build_control_batch
from kreplica.raft.snapshots import (
    FileRawSnapshotReader,
    FileRawSnapshotWriter,
    RecordsSnapshotReader,
    RecordsSnapshotWriter,
    is_left_over,
    parse_snapshot_name,
    partial_name,
    snapshot_name,
    summary_of,
)
from kreplica.raft.voter_set import ReplicaKey, VoterNode, VoterSet
from kreplica.sim.storage import SimStorage
from tests.support.batches import build
from tests.support.logs import NOW_MS, ManualClock
from tests.support.metadata_logs import batch, numbers, record
from tests.support.metadata_records import examples

ID = OffsetAndEpoch(70, 1)
DIRECTORY = "/data"
PATH = f"{DIRECTORY}/{snapshot_name(ID)}"
VOTERS = VoterSet([VoterNode(ReplicaKey(n, Uuid(bytes([n]) * 16)), (), 0, 1) for n in (1, 2, 3)])


def machine() -> SimStorage:
    storage = SimStorage()
    storage.make_directory(DIRECTORY)
    storage.sync_directory("/")
    return storage


def raw_writer(storage: SimStorage, snapshot_id: OffsetAndEpoch = ID) -> FileRawSnapshotWriter:
    return FileRawSnapshotWriter(storage, DIRECTORY, snapshot_id, 1, lambda _: None)


def written(count: int = 70, *, voters: VoterSet | None = None, kraft_version: int = 0) -> SimStorage:
    """A machine with a frozen snapshot of `count` records."""
    storage = machine()
    with RecordsSnapshotWriter(
        raw_writer(storage),
        ManualClock(),
        last_contained_log_timestamp=NOW_MS,
        voters=voters,
        kraft_version=kraft_version,
    ) as writer:
        for number in range(count):
            writer.append([record(number)])
        writer.freeze()
    return storage


def reader(storage: SimStorage) -> RecordsSnapshotReader:
    return RecordsSnapshotReader(FileRawSnapshotReader(storage, PATH, ID))


def control(base_offset: int, *messages: ControlMessage, epoch: int = 1) -> bytes:
    return build_control_batch(messages, base_offset=base_offset, epoch=epoch, timestamp_ms=NOW_MS)


HEADER = SnapshotHeaderRecord(last_contained_log_timestamp=1)
FOOTER = SnapshotFooterRecord()


def test_what_is_written_is_read() -> None:
    with reader(written()) as snapshot:
        assert snapshot.snapshot_id == ID
        assert snapshot.last_contained_log_timestamp == NOW_MS
        assert (snapshot.kraft_version, snapshot.voters) == (0, None)
        batches = list(snapshot)
        assert numbers(batches) == list(range(70))
        assert numbers(snapshot) == list(range(70))
        assert batches[0].control_records == (SnapshotHeaderRecord(last_contained_log_timestamp=NOW_MS),)
        assert batches[-1].control_records == (FOOTER,)
        assert [each.records for each in (batches[0], batches[-1])] == [[], []]
        assert batches[0].base_offset == 0
        assert {each.epoch for each in batches} == {1}


def test_voters_stand_in_it_where_they_come_by_records() -> None:
    with reader(written(voters=VOTERS, kraft_version=1)) as snapshot:
        assert (snapshot.kraft_version, snapshot.voters) == (1, VOTERS)
    with reader(written(voters=VOTERS, kraft_version=0)) as snapshot:
        assert (snapshot.kraft_version, snapshot.voters) == (0, None)


def test_each_kind_of_record_goes_through_it() -> None:
    storage, records = machine(), list(examples())
    with RecordsSnapshotWriter(raw_writer(storage), ManualClock(), last_contained_log_timestamp=1) as writer:
        writer.append(records)
        writer.freeze()
    with reader(storage) as snapshot:
        assert [each for found in snapshot for each in found.records] == records


def config_of(size: int) -> ApiMessageAndVersion[ConfigRecord]:
    return ApiMessageAndVersion(
        ConfigRecord(resource_type=2, resource_name="t", name="n", value="x" * size), 0
    )


def test_many_large_records_are_several_batches() -> None:
    storage = machine()
    large = [config_of(30_000 + n) for n in range(700)]
    with RecordsSnapshotWriter(raw_writer(storage), ManualClock(), last_contained_log_timestamp=1) as writer:
        writer.append(large)
        writer.freeze()
    with reader(storage) as snapshot:
        batches = list(snapshot)
        assert [each for found in batches for each in found.records] == large
        assert 4 < len(batches) < 20


def test_bytes_come_in_any_pieces() -> None:
    source, target = written(), machine()
    whole = FileRawSnapshotReader(source, PATH, ID)
    draw = random.Random(3)
    writer = raw_writer(target)
    while writer.size_bytes < whole.size_bytes:
        writer.append(writer.size_bytes, whole.read(writer.size_bytes, draw.randrange(1, 500)))
    writer.freeze()
    assert writer.is_frozen
    assert target.read_file(PATH) == source.read_file(PATH)


@pytest.mark.parametrize("position", [-1, 0, 9, 11, 1 << 62])
def test_a_piece_that_does_not_follow_is_refused(position: int) -> None:
    writer = raw_writer(machine())
    writer.append(0, b"0123456789")
    with pytest.raises(PositionOutOfRange) as caught:
        writer.append(position, b"x")
    assert caught.value.where == 10
    assert writer.size_bytes == 10


def test_reading_outside_is_refused() -> None:
    raw = FileRawSnapshotReader(written(), PATH, ID)
    for position in (-1, raw.size_bytes, 1 << 62):
        with pytest.raises(PositionOutOfRange):
            raw.read(position, 10)
    assert len(bytes(raw.read(raw.size_bytes - 3, 1 << 40))) == 3
    assert len(bytes(raw.read(0, -5))) == 0


def test_nothing_is_added_to_what_is_closed() -> None:
    storage = machine()
    writer = raw_writer(storage)
    writer.close()
    writer.close()
    with pytest.raises(InvalidRequest):
        writer.append(0, b"x")
    with pytest.raises(InvalidRequest):
        writer.freeze()
    assert storage.list_directory(DIRECTORY) == []


def refused(data: bytes) -> InvalidSnapshot:
    """What a freeze says of the bytes; nothing is left of them."""
    storage = machine()
    writer = raw_writer(storage)
    writer.append(0, data)
    with pytest.raises(InvalidSnapshot) as caught:
        writer.freeze()
    assert storage.list_directory(DIRECTORY) == []
    storage.write_file(PATH, data)
    with pytest.raises(InvalidSnapshot):
        reader(storage)
    return caught.value


def test_one_cut_short_at_any_byte_is_refused() -> None:
    whole = written(5).read_file(PATH)
    for size in range(len(whole)):
        refused(whole[:size])


def test_a_flip_of_any_bit_is_refused() -> None:
    whole = written(3).read_file(PATH)
    for bit in range(8 * len(whole)):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        refused(bytes(data))


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ([control(0, FOOTER)], "header"),
        ([batch(0, 3), control(3, FOOTER)], "header"),
        ([control(0, HEADER)], "without a footer"),
        ([control(0, HEADER), batch(1, 3)], "without a footer"),
        ([control(0, HEADER), control(1, FOOTER), batch(2, 3)], "after the footer"),
        ([control(0, HEADER), control(1, HEADER), control(2, FOOTER)], "between records"),
        ([control(0, HEADER), control(1, FOOTER, FOOTER)], "between records"),
        ([control(0, HEADER), batch(2, 3), control(5, FOOTER)], "expected offset 1 of epoch 1"),
        ([control(0, HEADER), batch(1, 3), control(3, FOOTER)], "expected offset 4 of epoch 1"),
        ([control(0, HEADER), batch(1, 3, epoch=2), control(4, FOOTER)], "epoch 2"),
        ([control(5, HEADER), control(6, FOOTER)], "offset 5"),
        ([control(0, KRaftVersionRecord(k_raft_version=1), HEADER), control(2, FOOTER)], "does not start"),
    ],
)
def test_batches_that_are_no_snapshot_are_refused(parts: Sequence[bytes], reason: str) -> None:
    assert reason in str(refused(b"".join(parts)))


def test_header_and_footer_in_one_batch_are_enough() -> None:
    storage = machine()
    writer = raw_writer(storage)
    writer.append(0, control(0, HEADER, FOOTER))
    writer.freeze()
    with reader(storage) as snapshot:
        assert numbers(snapshot) == []


def test_a_record_that_is_none_is_met_while_reading() -> None:
    storage = machine()
    noise = build([b"\xff\xff"], base_offset=1, leader_epoch=1)
    writer = raw_writer(storage)
    writer.append(0, control(0, HEADER) + noise + control(2, FOOTER))
    writer.freeze()
    with reader(storage) as snapshot, pytest.raises(InvalidSnapshot, match="70-1"):
        list(snapshot)


@given(st.data())
def test_no_bytes_do_harm(data: st.DataObject) -> None:
    whole = bytearray(WHOLE)
    for _ in range(data.draw(st.integers(0, 3))):
        start = data.draw(st.integers(0, len(whole)))
        stop = data.draw(st.integers(start, len(whole)))
        whole[start:stop] = data.draw(st.binary(max_size=30))
    storage = machine()
    writer = raw_writer(storage)
    writer.append(0, bytes(whole))
    try:
        writer.freeze()
        with reader(storage) as snapshot:
            numbers(snapshot)
        assert bytes(whole) == WHOLE
    except InvalidSnapshot:
        assert not writer.is_frozen
    try:
        storage.write_file(PATH, bytes(whole))
        summary_of(FileRawSnapshotReader(storage, PATH, ID))
    except KreplicaError:
        pass


WHOLE = written(4, voters=VOTERS, kraft_version=1).read_file(PATH)


def test_names_are_kafkas() -> None:
    assert snapshot_name(OffsetAndEpoch(4711, 3)) == "00000000000000004711-0000000003.checkpoint"
    assert parse_snapshot_name(snapshot_name(OffsetAndEpoch(4711, 3))) == (4711, 3)
    for other in (
        "leader-epoch-checkpoint",
        partial_name(ID, 1),
        snapshot_name(ID) + ".deleted",
        "1-1.checkpoint",
    ):
        assert parse_snapshot_name(other) is None
    for none in ("9" * 20 + "-0000000001", "0" * 20 + "-9999999999", "٠" * 20 + "-0000000001"):
        assert parse_snapshot_name(f"{none}.checkpoint") is None
    assert is_left_over(partial_name(ID, 12))
    assert is_left_over(snapshot_name(ID) + ".deleted")
    assert not is_left_over(snapshot_name(ID))

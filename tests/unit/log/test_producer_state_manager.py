"""ProducerStateManager: transactions, snapshots, truncation; and all of it against a slow model."""

import sys

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kreplica.common.errors import (
    DuplicateSequenceNumber,
    KafkaStorageError,
    KreplicaError,
    OutOfOrderSequenceNumber,
)
from kreplica.common.types import AppendOrigin
from kreplica.log.producer_append_info import BatchMetadata, CompletedTxn, ProducerStateEntry
from kreplica.log.producer_state_manager import ProducerStateManager, snapshot_name
from tests.support.memory_storage import MemoryStorage

CLIENT, REPLICATION, COORDINATOR = AppendOrigin.CLIENT, AppendOrigin.REPLICATION, AppendOrigin.COORDINATOR
DIRECTORY = "t-0"


def open_manager(storage: MemoryStorage | None = None, expiration_ms: int = 1000) -> ProducerStateManager:
    return ProducerStateManager(
        storage or MemoryStorage(), DIRECTORY, producer_id_expiration_ms=expiration_ms
    )


def append(
    manager: ProducerStateManager,
    producer_id: int,
    sequence: int,
    *,
    txn: bool = False,
    now_ms: int = 0,
    origin: AppendOrigin = CLIENT,
) -> BatchMetadata | None:
    """One record at the end of the log."""
    offset = manager.map_end_offset
    appended = manager.prepare_update(producer_id, origin)
    duplicate = appended.append_data_batch(0, sequence, sequence, now_ms, offset, offset, txn)
    if duplicate is None:
        manager.update(appended)
        manager.map_end_offset = offset + 1
    return duplicate


def mark(manager: ProducerStateManager, producer_id: int, *, abort: bool = False, now_ms: int = 0) -> int:
    """A transaction marker at the end of the log; returns the last stable offset it brings."""
    offset = manager.map_end_offset
    appended = manager.prepare_update(producer_id, COORDINATOR)
    completed = appended.append_end_txn_marker(0, 0, offset, now_ms, abort)
    manager.update(appended)
    manager.map_end_offset = offset + 1
    assert completed is not None
    stable = manager.last_stable_offset(completed)
    manager.complete_txn(completed)
    return stable


def snapshots(storage: MemoryStorage) -> list[int]:
    return [int(name[:20]) for name in storage.list_directory(DIRECTORY)]


# ---- transactions ------------------------------------------------------------------------------------


def test_idle_log_has_nothing() -> None:
    manager = open_manager()
    assert manager.is_empty
    assert manager.first_unstable_offset is manager.first_undecided_offset is None
    assert manager.last_entry(1) is None
    assert manager.remove_expired(10**15) == 0
    assert not manager.has_late_transaction(10**15)
    manager.on_high_watermark_updated(5)
    assert dict(manager.active_producers) == {}
    with pytest.raises(TypeError):
        manager.active_producers[1] = ProducerStateEntry(1)  # type: ignore[index]


def test_first_unstable_offset_waits_for_the_high_watermark() -> None:
    manager = open_manager()
    append(manager, 1, 0)
    append(manager, 1, 1, txn=True)  # 1
    append(manager, 2, 0, txn=True)  # 2
    assert mark(manager, 1) == 2  # 3: the other one is still open
    assert (manager.first_undecided_offset, manager.first_unstable_offset) == (2, 1)
    manager.on_high_watermark_updated(3)
    assert manager.first_unstable_offset == 1
    manager.on_high_watermark_updated(4)
    assert manager.first_unstable_offset == 2
    assert mark(manager, 2) == 5
    assert (manager.first_undecided_offset, manager.first_unstable_offset) == (None, 2)
    manager.on_high_watermark_updated(5)
    assert manager.first_unstable_offset is None


def test_completed_out_of_order() -> None:
    manager = open_manager()
    for producer_id in (1, 2, 3):
        append(manager, producer_id, 0, txn=True)
    assert mark(manager, 3) == 0
    assert mark(manager, 2) == 0
    assert mark(manager, 1) == 6
    assert manager.first_unstable_offset == 0
    manager.on_high_watermark_updated(5)  # past the markers of 3 and 2, not of 1
    assert manager.first_unstable_offset == 0
    manager.on_high_watermark_updated(6)
    assert manager.first_unstable_offset is None


def test_open_transaction_before_an_unreplicated_one() -> None:
    manager = open_manager()
    append(manager, 1, 0, txn=True)
    append(manager, 2, 0, txn=True)
    mark(manager, 2)
    assert manager.first_unstable_offset == 0
    mark(manager, 1)
    append(manager, 3, 0, txn=True)
    assert manager.first_unstable_offset == 0


def test_completing_what_was_never_begun_is_a_mistake_of_the_caller() -> None:
    with pytest.raises((AssertionError, KeyError)):
        open_manager().complete_txn(CompletedTxn(1, 0, 1, False))


def test_late_transaction() -> None:
    manager = open_manager()
    append(manager, 1, 0, txn=True, now_ms=1000)
    assert not manager.has_late_transaction(1000 + 900_000 + 300_000)
    assert manager.has_late_transaction(1001 + 900_000 + 300_000)


def test_failed_append_leaves_no_trace() -> None:
    manager = open_manager()
    append(manager, 1, 0, txn=True)
    with pytest.raises(KreplicaError):
        append(manager, 1, 5, txn=True)
    manager.prepare_update(1, CLIENT).append_data_batch(0, 1, 1, 0, 1, 1, True)  # checked, never appended
    entry = manager.last_entry(1)
    assert entry is not None
    assert (entry.last_sequence, manager.map_end_offset) == (0, 1)


# ---- expiration --------------------------------------------------------------------------------------


def test_idle_producers_are_forgotten_but_not_in_a_transaction() -> None:
    manager = open_manager(expiration_ms=1000)
    append(manager, 1, 0, now_ms=0)
    append(manager, 2, 0, now_ms=500)
    append(manager, 3, 0, now_ms=0, txn=True)
    assert manager.remove_expired(999) == 0
    assert manager.remove_expired(1000) == 1
    assert set(manager.active_producers) == {2, 3}
    append(manager, 1, 77, now_ms=1000)  # unknown again: any sequence will do


# ---- snapshots ---------------------------------------------------------------------------------------


def test_snapshot_and_reload() -> None:
    storage = MemoryStorage()
    manager = open_manager(storage)
    append(manager, 1, 0)
    append(manager, 2, 0, txn=True)
    assert manager.take_snapshot() == f"{DIRECTORY}/{snapshot_name(2)}"
    assert manager.take_snapshot() is None  # no news
    append(manager, 1, 1)
    again = open_manager(storage)
    assert again.truncate_and_reload(0, 3, now_ms=0) == []
    assert again.map_end_offset == 2
    assert again.first_unstable_offset == 1
    append(again, 1, 1, origin=REPLICATION)
    assert append(again, 1, 1) == BatchMetadata(1, 2, 0, 0)


def test_open_transactions_are_in_order_after_a_reload() -> None:
    storage = MemoryStorage()
    manager = open_manager(storage)
    append(manager, 1, 0)
    append(manager, 2, 0, txn=True)
    append(manager, 1, 1, txn=True)
    manager.take_snapshot()
    again = open_manager(storage)
    again.truncate_and_reload(0, 3, now_ms=0)
    assert again.first_undecided_offset == 1
    assert mark(again, 2) == 2
    assert again.first_undecided_offset == 2


def test_snapshot_that_is_synced_outlives_a_power_cut() -> None:
    storage = MemoryStorage()
    manager = open_manager(storage)
    append(manager, 1, 0)
    manager.take_snapshot(sync=True)
    append(manager, 1, 1)
    manager.take_snapshot()
    storage.crash()
    assert snapshots(storage) == [1]


@pytest.mark.parametrize("damage", [b"", b"\0\1", bytes(56)])
def test_damaged_snapshot_is_removed_named_and_an_older_one_taken(damage: bytes) -> None:
    storage = MemoryStorage()
    manager = open_manager(storage)
    for sequence in range(3):
        append(manager, 1, sequence)
        manager.take_snapshot(sync=True)
    storage.write_file_atomically(f"{DIRECTORY}/{snapshot_name(3)}", damage)
    again = open_manager(storage)
    assert again.truncate_and_reload(0, 3, now_ms=0) == [f"{DIRECTORY}/{snapshot_name(3)}"]
    assert again.map_end_offset == 2
    storage.crash()
    assert snapshots(storage) == [1, 2]


def test_every_snapshot_that_cannot_be_read_is_removed() -> None:
    storage = MemoryStorage()
    manager = open_manager(storage)
    for sequence in range(4):
        append(manager, 1, sequence)
        manager.take_snapshot(sync=True)
    for offset in (1, 3):
        storage.write_file_atomically(f"{DIRECTORY}/{snapshot_name(offset)}", b"")
    again = open_manager(storage)
    assert again.remove_unreadable() == [f"{DIRECTORY}/{snapshot_name(offset)}" for offset in (1, 3)]
    storage.crash()
    assert snapshots(storage) == again.snapshot_offsets == [2, 4]


def test_no_snapshot_that_fits_means_the_whole_log_is_fed_in() -> None:
    storage = MemoryStorage()
    manager = open_manager(storage)
    append(manager, 1, 0)
    manager.take_snapshot()
    manager.truncate_and_reload(5, 9, now_ms=0)
    assert manager.map_end_offset == 5
    assert manager.is_empty
    assert snapshots(storage) == []


def test_expired_producers_go_in_steps_and_leave_no_room_taken() -> None:
    manager = open_manager(expiration_ms=1000)
    for producer_id in range(1000):
        append(manager, producer_id, 0, now_ms=0 if producer_id < 900 else 500)
    taken = sys.getsizeof(manager.active_producers)
    assert manager.remove_expired(1000, range(100)) == 100
    assert manager.remove_expired(1000, [0, 5000, 100]) == 1
    assert manager.remove_expired(1000, range(1000)) == 799
    assert set(manager.active_producers) == set(range(900, 1000))
    assert sys.getsizeof(manager.active_producers) < taken / 4
    assert manager.remove_expired(1500) == 100
    assert manager.is_empty


def test_reload_leaves_expired_producers_out() -> None:
    storage = MemoryStorage()
    manager = open_manager(storage)
    append(manager, 1, 0, now_ms=0)
    append(manager, 2, 0, now_ms=600)
    manager.take_snapshot()
    again = open_manager(storage, expiration_ms=1000)
    again.truncate_and_reload(0, 2, now_ms=1200)
    assert set(again.active_producers) == {2}


def test_truncated_snapshots_do_not_come_back_after_a_power_cut() -> None:
    storage = MemoryStorage()
    manager = open_manager(storage)
    for sequence in range(4):
        append(manager, 1, sequence)
        manager.take_snapshot(sync=True)
    manager.truncate_and_reload(0, 2, now_ms=0)
    storage.crash()
    assert snapshots(storage) == [1, 2]
    manager.truncate_fully_and_start_at(100)
    storage.crash()
    assert snapshots(storage) == []
    assert (manager.map_end_offset, manager.is_empty) == (100, True)
    append(manager, 1, 9)
    assert manager.take_snapshot() == f"{DIRECTORY}/{snapshot_name(101)}"


def test_log_start_moves_past_the_state() -> None:
    manager = open_manager()
    append(manager, 1, 0, txn=True)
    mark(manager, 1)
    manager.on_log_start_offset_incremented(1)
    assert (manager.map_end_offset, manager.first_unstable_offset) == (2, 0)
    manager.on_log_start_offset_incremented(7)
    assert (manager.map_end_offset, manager.first_unstable_offset) == (7, None)
    assert manager.last_entry(1) is not None


def manager_with_snapshots_at(storage: MemoryStorage, *offsets: int) -> ProducerStateManager:
    for offset in offsets:
        storage.files[f"{DIRECTORY}/{snapshot_name(offset)}"] = b"x"
    storage.files[f"{DIRECTORY}/00000000000000000000.log"] = b""
    return open_manager(storage)


@pytest.mark.parametrize(
    ("bases", "kept"),
    [([0, 10, 20], [10, 20, 25]), ([0, 10], [10, 25]), ([0, 30], []), ([], [25]), ([25], [25])],
)
def test_stray_snapshots(bases: list[int], kept: list[int]) -> None:
    storage = MemoryStorage()
    manager = manager_with_snapshots_at(storage, 5, 10, 20, 25)
    manager.remove_stray_snapshots(bases)
    assert manager.snapshot_offsets == kept
    assert [offset for offset in (5, 10, 20, 25) if storage.exists(manager.snapshot_path(offset))] == kept


def test_snapshots_go_with_their_segments() -> None:
    storage = MemoryStorage()
    manager = manager_with_snapshots_at(storage, 5, 10, 20)
    manager.delete_snapshots_before(10)
    assert manager.snapshot_offsets == [10, 20]
    renamed = manager.mark_snapshot_for_deletion(10)
    assert renamed == f"{DIRECTORY}/{snapshot_name(10)}.deleted"
    assert manager.mark_snapshot_for_deletion(10) is None
    assert storage.exists(renamed)
    assert open_manager(storage).snapshot_offsets == [20]
    assert [manager.latest_snapshot_at_or_before(offset) for offset in (19, 20, 99)] == [None, 20, 20]


def test_failing_disk_is_not_hidden() -> None:
    storage = MemoryStorage()
    manager = open_manager(storage)
    append(manager, 1, 0)
    storage.fail = KafkaStorageError
    with pytest.raises(KafkaStorageError):
        manager.take_snapshot()
    storage.fail = None
    assert manager.take_snapshot() is not None


def test_names_may_be_given() -> None:
    manager = ProducerStateManager(MemoryStorage(), DIRECTORY, [snapshot_name(7), "x.log", snapshot_name(3)])
    assert manager.snapshot_offsets == [3, 7]


# ---- against a slow model ----------------------------------------------------------------------------


class LogModel(RuleBasedStateMachine):
    """The whole log in a list, beside the manager; every answer is found by reading it from the beginning.

    A record is (producer, sequence) at its index, a marker (producer, None). Each batch is one record.
    """

    def __init__(self) -> None:
        super().__init__()
        self.storage = MemoryStorage()
        self.manager = open_manager(self.storage, expiration_ms=10**9)
        self.log: list[tuple[int, int | None, bool]] = []
        self.high_watermark = 0

    def sequences(self, producer_id: int) -> list[int]:
        return [s for pid, s, _ in self.log if pid == producer_id and s is not None]

    def transactions(self) -> list[tuple[int, int, int | None]]:
        """(producer, first offset, marker's offset or None), in the order of the first offsets."""
        found: list[tuple[int, int, int | None]] = []
        for offset, (pid, sequence, txn) in enumerate(self.log):
            mine = [i for i, (p, _, end) in enumerate(found) if p == pid and end is None]
            if sequence is None:
                found[mine[0]] = (pid, found[mine[0]][1], offset)
            elif txn and not mine:
                found.append((pid, offset, None))
        return found

    def in_transaction(self, producer_id: int) -> bool:
        return any(pid == producer_id and end is None for pid, _, end in self.transactions())

    @rule(producer_id=st.integers(0, 2), txn=st.booleans())
    def produce(self, producer_id: int, txn: bool) -> None:
        before = self.sequences(producer_id)
        sequence = before[-1] + 1 if before else 0
        txn = txn or self.in_transaction(producer_id)
        assert append(self.manager, producer_id, sequence, txn=txn) is None
        self.log.append((producer_id, sequence, txn))

    @rule(producer_id=st.integers(0, 2), back=st.integers(-3, 8))
    def repeat(self, producer_id: int, back: int) -> None:
        """Send a sequence again, or one too far ahead."""
        before = self.sequences(producer_id)
        if not before or back == -1:
            return
        sequence = max(before[-1] - back, 0)
        entry = self.manager.last_entry(producer_id)
        assert entry is not None
        known = [batch.last_sequence for batch in entry.batches]
        assert known == before[-len(known) :]  # five of them, or those since a reload
        txn = self.in_transaction(producer_id)
        if sequence in known:
            duplicate = append(self.manager, producer_id, sequence, txn=txn)
            assert duplicate is not None
            assert self.log[duplicate.last_offset][:2] == (producer_id, sequence)
        else:
            too_old = len(known) == 5 and sequence < known[0]
            with pytest.raises(DuplicateSequenceNumber if too_old else OutOfOrderSequenceNumber):
                append(self.manager, producer_id, sequence, txn=txn)

    @rule(producer_id=st.integers(0, 2))
    def end(self, producer_id: int) -> None:
        if self.in_transaction(producer_id):
            stable = mark(self.manager, producer_id)
            self.log.append((producer_id, None, True))
            still_open = [first for _, first, marker in self.transactions() if marker is None]
            assert stable == min(still_open, default=len(self.log))

    @rule(part=st.floats(0, 1))
    def replicate(self, part: float) -> None:
        self.high_watermark += int((len(self.log) - self.high_watermark) * part)
        self.manager.on_high_watermark_updated(self.high_watermark)

    @rule(sync=st.booleans())
    def snapshot(self, sync: bool) -> None:
        self.manager.take_snapshot(sync)

    @rule(part=st.floats(0, 1), crash=st.booleans())
    def truncate(self, part: float, crash: bool) -> None:
        """Go back to anywhere above the high watermark, in a new process and after a power cut or not."""
        end = self.high_watermark + int((len(self.log) - self.high_watermark) * part)
        self.log = self.log[:end]
        if crash:
            self.manager.truncate_and_reload(0, end, 0)
            self.storage.crash()
        self.manager = open_manager(self.storage, expiration_ms=10**9)
        self.manager.truncate_and_reload(0, end, 0)
        for offset in range(self.manager.map_end_offset, end):
            producer_id, sequence, txn = self.log[offset]
            if sequence is None:
                mark(self.manager, producer_id)
            else:
                append(self.manager, producer_id, sequence, txn=txn, origin=REPLICATION)
        assert self.manager.map_end_offset == end
        self.high_watermark = end
        self.manager.on_high_watermark_updated(end)

    @invariant()
    def unstable_offsets_are_where_a_scan_finds_them(self) -> None:
        transactions = self.transactions()
        undecided = [first for _, first, marker in transactions if marker is None]
        unstable = [first for _, first, end in transactions if end is None or end >= self.high_watermark]
        assert self.manager.first_undecided_offset == min(undecided, default=None)
        assert self.manager.first_unstable_offset == min(unstable, default=None)

    @invariant()
    def producers_are_where_a_scan_finds_them(self) -> None:
        for producer_id in range(3):
            before = self.sequences(producer_id)
            entry = self.manager.last_entry(producer_id)
            assert (entry.last_sequence if entry else None) == (before[-1] if before else None)
            assert (entry is not None and entry.in_transaction) == self.in_transaction(producer_id)


LogModel.TestCase.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
TestLogModel = LogModel.TestCase

"""LeaderEpochFileCache against a slow model, and what of it a crash leaves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kreplica.common.errors import InvalidFile, KafkaStorageError
from kreplica.log.checkpoint import EpochEntry, LeaderEpochCheckpointFile
from kreplica.log.leader_epoch_file_cache import LeaderEpochFileCache
from tests.support.memory_storage import MemoryStorage

FILE = "t-0/leader-epoch-checkpoint"


def cache_with(*entries: tuple[int, int], storage: MemoryStorage | None = None) -> LeaderEpochFileCache:
    cache = LeaderEpochFileCache.load(LeaderEpochCheckpointFile(storage or MemoryStorage(), "t-0"))
    for epoch, start_offset in entries:
        cache.assign(epoch, start_offset)
    return cache


def test_empty_cache_knows_nothing() -> None:
    cache = cache_with()
    assert cache.latest_epoch is cache.latest_entry is cache.earliest_entry is None
    assert cache.end_offset_for(0, 10) == (-1, -1)
    assert cache.epoch_for_offset(0) is None
    cache.truncate_from_end(0)
    cache.truncate_from_start(10)
    assert cache.entries == ()


def test_assign_drops_what_contradicts_it() -> None:
    assert cache_with((1, 0), (2, 10), (3, 20), (2, 15)).entries == ((1, 0), (2, 15))
    assert cache_with((1, 0), (2, 10), (3, 20), (4, 10)).entries == ((1, 0), (4, 10))
    assert cache_with((1, 0), (2, 10), (2, 12)).entries == ((1, 0), (2, 10))
    assert cache_with((1, 0), (2, 10), (2, 8)).entries == ((1, 0), (2, 8))


def test_assign_says_whether_it_was_news_and_writes_only_then() -> None:
    storage = MemoryStorage()
    cache = cache_with(storage=storage)
    assert cache.assign(1, 0)
    assert not cache.assign(1, 0)
    assert not cache.assign(1, 50)
    assert cache.assign_all([EpochEntry(1, 60), EpochEntry(2, 70), EpochEntry(4, 80)])
    assert storage.calls == [("write_file_atomically", FILE)] * 2
    assert storage.files[FILE] == b"0\n3\n1 0\n2 70\n4 80\n"


@pytest.mark.parametrize(
    ("epoch", "answer"),
    [
        (-1, (-1, -1)),
        (0, (0, 5)),  # below all: the epoch asked for, and where the first one begins
        (2, (2, 20)),
        (3, (2, 20)),  # between: the floor, and where the next begins
        (4, (4, 30)),
        (7, (7, 99)),  # the latest ends where the log ends
        (8, (-1, -1)),  # above the latest
    ],
)
def test_end_offset_for(epoch: int, answer: tuple[int, int]) -> None:
    assert cache_with((2, 5), (4, 20), (7, 30)).end_offset_for(epoch, 99) == answer


def test_neighbours() -> None:
    cache = cache_with((2, 5), (4, 20), (7, 30))
    assert [cache.epoch_for_offset(o) for o in (4, 5, 19, 20, 1000)] == [None, 2, 2, 4, 7]
    assert cache.entry_for(4) == (4, 20)
    assert cache.entry_for(5) is None


def test_truncation_from_the_end_drops_the_epoch_that_begins_there() -> None:
    cache = cache_with((1, 0), (2, 10), (3, 20))
    cache.truncate_from_end(20)
    assert cache.entries == ((1, 0), (2, 10))
    cache.truncate_from_end(11)
    assert cache.latest_epoch == 2


def test_truncation_from_the_start_moves_the_floor_entry() -> None:
    cache = cache_with((1, 0), (2, 10), (3, 20))
    cache.truncate_from_start(15)
    assert cache.entries == ((2, 15), (3, 20))
    cache.truncate_from_start(20)
    assert cache.entries == ((3, 20),)
    cache.truncate_from_start(100)
    assert cache.entries == ((3, 100),)


def test_truncation_is_written_later_but_before_anything_is_appended_over_it() -> None:
    storage = MemoryStorage()
    cache = cache_with((4, 0), (5, 100), storage=storage)
    cache.truncate_from_end(90)
    assert cache.dirty
    assert storage.durable[FILE] == b"0\n2\n4 0\n5 100\n"
    # Records of epoch 4, at 90 and on, from a newer leader: nothing new in memory, but the file must follow.
    assert not cache.assign(4, 90)
    storage.crash()
    assert cache_with(storage=storage).entries == ((4, 0),)


def test_flush_writes_once() -> None:
    storage = MemoryStorage()
    cache = cache_with((4, 0), (5, 100), storage=storage)
    cache.truncate_from_start(50)
    cache.flush()
    cache.flush()
    assert storage.durable[FILE] == b"0\n2\n4 50\n5 100\n"
    assert len(storage.calls) == 3


def test_clear_reaches_the_disk() -> None:
    storage = MemoryStorage()
    cache_with((4, 0), storage=storage).clear()
    assert storage.durable[FILE] == b"0\n0\n"


def test_failed_write_changes_nothing() -> None:
    storage = MemoryStorage()
    cache = cache_with((4, 0), storage=storage)
    storage.fail = KafkaStorageError
    with pytest.raises(KafkaStorageError):
        cache.assign(5, 10)
    assert cache.entries == ((4, 0),)


def test_a_change_that_failed_is_undone_without_a_write_where_the_file_has_all_epochs() -> None:
    """A truncation from the start was pending: on a full disk the undo failed, and took the log offline."""
    storage = MemoryStorage()
    cache = cache_with((1, 0), (2, 10), storage=storage)
    cache.truncate_from_start(5)
    before, written = cache.entries, len(storage.calls)
    cache.truncate_from_end(10)
    cache.restore(before)
    assert (cache.entries, cache.dirty, len(storage.calls)) == (((1, 5), (2, 10)), True, written)
    cache.flush()
    assert storage.files[FILE] == b"0\n2\n1 5\n2 10\n"


def test_a_change_that_failed_is_undone_on_disk_where_an_epoch_is_missing() -> None:
    storage = MemoryStorage()
    cache = cache_with((1, 0), (2, 10), storage=storage)
    before = cache.entries
    cache.truncate_from_end(10)
    cache.flush()
    cache.restore(before)
    assert (cache.entries, cache.dirty) == (before, False)
    assert storage.files[FILE] == b"0\n2\n1 0\n2 10\n"


def test_damaged_file_is_named() -> None:
    storage = MemoryStorage()
    storage.files[FILE] = b"0\n1\n"
    with pytest.raises(InvalidFile, match=FILE):
        cache_with(storage=storage)


class EpochModel(RuleBasedStateMachine):
    """The epoch of every offset in a plain list, beside the cache; `first` is the log's start."""

    def __init__(self) -> None:
        super().__init__()
        self.storage = MemoryStorage()
        self.cache = cache_with(storage=self.storage)
        self.first = 0
        self.epochs: list[int] = []  # epoch of the record at first + index

    @property
    def end(self) -> int:
        return self.first + len(self.epochs)

    @rule(step=st.integers(0, 2), count=st.integers(1, 5))
    def append(self, step: int, count: int) -> None:
        epoch = (self.epochs[-1] if self.epochs else self.cache.latest_epoch or 0) + step
        self.cache.assign(epoch, self.end)
        self.epochs += [epoch] * count

    @rule(part=st.floats(0, 1))
    def truncate_end(self, part: float) -> None:
        self.epochs = self.epochs[: int(len(self.epochs) * part)]
        self.cache.truncate_from_end(self.end)

    @rule(part=st.floats(0, 1))
    def truncate_start(self, part: float) -> None:
        dropped = int((len(self.epochs) - 1) * part) if self.epochs else 0
        self.first += dropped
        self.epochs = self.epochs[dropped:]
        self.cache.truncate_from_start(self.first)

    @rule()
    def crash(self) -> None:
        """The power goes: the log is as it was, the file may be older; loading cuts both ends."""
        self.storage.crash()
        self.cache = cache_with(storage=self.storage)
        self.cache.truncate_from_end(self.end)
        self.cache.truncate_from_start(self.first)

    @invariant()
    def every_offset_has_its_epoch(self) -> None:
        for offset in range(self.first, self.end):
            assert self.cache.epoch_for_offset(offset) == self.epochs[offset - self.first]

    @invariant()
    def ends_are_where_a_scan_finds_them(self) -> None:
        if not self.epochs:
            return
        for epoch in range(-1, self.epochs[-1] + 2):
            below = [e for e in self.epochs if e <= epoch]
            if epoch == -1 or epoch > self.epochs[-1]:
                expected = (-1, -1)
            elif below:
                expected = (max(below), self.first + len(below))
            else:
                expected = (epoch, self.first)
            assert self.cache.end_offset_for(epoch, self.end) == expected


TestEpochModel = EpochModel.TestCase


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 20)), max_size=12))
def test_any_assignments_leave_growing_entries_and_the_same_file(pairs: list[tuple[int, int]]) -> None:
    storage = MemoryStorage()
    cache = cache_with(*pairs, storage=storage)
    for before, after in zip(cache.entries, cache.entries[1:], strict=False):
        assert before.epoch < after.epoch
        assert before.start_offset < after.start_offset
    if pairs:
        latest = cache.latest_entry
        assert latest is not None
        assert latest.epoch == pairs[-1][0]
    assert cache_with(storage=storage).entries == cache.entries


def test_what_is_learned_is_on_disk_with_the_next_flush() -> None:
    """A recovery that is interrupted leaves the file as it was."""
    checkpoint = LeaderEpochCheckpointFile(MemoryStorage(), "/log")
    cache = LeaderEpochFileCache(checkpoint)
    cache.assign(3, 30)
    for epoch, start in ((0, 0), (1, 10), (1, 20)):
        cache.learn(epoch, start)
    assert cache.entries == ((0, 0), (1, 10))
    assert LeaderEpochFileCache.load(checkpoint).entries == ((3, 30),)
    cache.flush()
    assert LeaderEpochFileCache.load(checkpoint).entries == ((0, 0), (1, 10))

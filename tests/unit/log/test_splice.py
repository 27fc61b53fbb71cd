"""Batches put into the place of a damaged range of a log, also where they are of another size.

Producers' state and transaction indexes are then as if the log had never been damaged.

A log is written by a script. "7": a batch of producer 7's transaction; "7a", "7c": it is aborted, committed;
"-": a batch of no producer; "|": a new segment begins; "!": the producers' state is read from the log anew;
"?3": the batch at offset 3 rots; "=3": the log learns of that; "+3": that range is filled. Each batch has
one record, so the offsets count them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kreplica._core.batch_builder import BatchBuilder
from kreplica.common.config import LogConfig
from kreplica.common.errors import DamagedLog, LogCleaningAborted, StorageIOError
from kreplica.common.types import AppendOrigin, TopicPartition
from kreplica.log import log_loader
from kreplica.log.checkpoint import LEADER_EPOCH_CHECKPOINT
from kreplica.log.file_names import DAMAGE_FILE
from kreplica.log.log_loader import OpenOptions
from kreplica.log.lost_range import PeerDisagrees
from kreplica.log.repair import repair
from kreplica.log.splice import splice, splice_stopped
from kreplica.log.transaction_index import AbortedTxn
from kreplica.log.unified_log import UnifiedLog
from kreplica.record.control import EndTransactionMarker, build_end_transaction_marker
from kreplica.sim.storage import SimStorage
from tests.support.batches import build
from tests.support.clock import ManualClock

DIRECTORY = "/data/orders-0"
NOW_MS = ManualClock().time_ms()


class Seen(NamedTuple):
    """What a log knows of its transactions, and what a reader of committed records gets."""

    aborted: list[AbortedTxn]
    open_from: dict[int, int]
    last_sequences: dict[int, int]
    last_stable_offset: int
    committed: list[bytes | None]


def opened(storage: SimStorage) -> UnifiedLog:
    if not storage.is_directory(DIRECTORY):
        storage.make_directory(DIRECTORY)
        for parent in ("/", "/data"):
            storage.sync_directory(parent)
    return log_loader.load(
        DIRECTORY,
        TopicPartition("orders", 0),
        LogConfig(),
        storage,
        ManualClock(),
        OpenOptions(is_only_replica=True),
    )


class Script:
    """A log as a script writes it, over `storage`; `whole` is the same log without damage."""

    def __init__(
        self, steps: str, storage: SimStorage | None = None, whole: UnifiedLog | None = None
    ) -> None:
        self.storage = SimStorage() if storage is None else storage
        self.log = opened(self.storage)
        self.whole = whole
        self.sequences: dict[int, int] = {}
        self.rotten: set[int] = set()
        # The values of each open transaction, and those that readers of committed records may get.
        self.written: dict[int, set[bytes]] = {}
        self.allowed: set[bytes] = set()
        for step in steps.split():
            self.do(step)

    def do(self, step: str) -> None:
        if step == "|":
            self.log.roll()
        elif step == "!":
            self.reload()
        elif step[0] == "?":
            self.rot(int(step[1:]))
        elif step[0] == "=":
            self.find(int(step[1:]))
        elif step[0] == "+":
            self.heal(int(step[1:]))
        else:
            self.append(step)
        self.log.update_high_watermark(self.log.log_end_offset)

    def append(self, step: str) -> None:
        value = b"%d" % self.log.log_end_offset
        if step == "-":
            self.allowed.add(value)
            self.log.append_records([value])
        elif step[-1] in "ac":
            written = self.written.pop(int(step[:-1]), set())
            self.allowed |= written if step[-1] == "c" else set()
            marker = build_end_transaction_marker(
                EndTransactionMarker(step[-1] == "c", 0),
                producer_id=int(step[:-1]),
                producer_epoch=0,
                timestamp_ms=NOW_MS,
            )
            self.log.append_as_leader(marker, 0, origin=AppendOrigin.COORDINATOR)
        else:
            producer_id = int(step)
            sequence = self.sequences.get(producer_id, 0)
            self.sequences[producer_id] = sequence + 1
            self.written.setdefault(producer_id, set()).add(value)
            data = build(
                [value],
                now_ms=NOW_MS,
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=sequence,
                transactional=True,
                base_offset=self.log.log_end_offset,
                leader_epoch=0,
            )
            # As a follower: a leader that lacks the batch before would refuse the sequence.
            self.log.append_as_follower(data)

    def reload(self) -> None:
        end = self.log.log_end_offset
        # A batch of a producer: behind others there is nothing to read again.
        self.log.append_as_follower(
            build(
                [b"cut off"],
                now_ms=NOW_MS,
                producer_id=99,
                producer_epoch=0,
                base_sequence=0,
                base_offset=end,
                leader_epoch=0,
            )
        )
        self.log.truncate_to(end)

    def rot(self, offset: int) -> None:
        self.rotten.add(offset)
        segment = self.log.local.segments[self.log.local.segments.index_for(offset)]
        found = segment.position_of(offset)
        assert found is not None
        cell = segment.region.slice(found[0] + 65, 1)
        ctypes.c_uint8.from_address(cell.address).value ^= 1

    def find(self, offset: int) -> None:
        segments = self.log.local.segments
        if self.log.damages.at(offset) is None:
            assert self.log.search_damage(segments[segments.index_for(offset)], offset)

    def heal(self, offset: int) -> None:
        for rotten in sorted(self.rotten):
            self.find(rotten)
        damage = self.log.damages.at(offset)
        assert damage is not None
        assert self.whole is not None
        splice(self.log, damage, batches_of(self.whole, damage.first_offset, damage.stop_offset))
        self.rotten.discard(offset)
        self.require_nothing_uncommitted()

    def require_nothing_uncommitted(self) -> None:
        """From wherever a reader begins."""
        for start in range(self.log.log_end_offset):
            with suppress(DamagedLog):
                for batch in self.log.batches(start, isolation="txn_committed"):
                    values = [] if batch.is_control else [record.value for record in batch]
                    assert self.allowed.issuperset(values), (start, values)


def aborted(log: UnifiedLog) -> list[AbortedTxn]:
    return [
        entry for segment in log.local.segments for entry in log.local.transaction_index(segment).entries()
    ]


def batches_of(log: UnifiedLog, first: int, stop: int) -> bytes:
    return b"".join(bytes(memoryview(batch)) for batch in log.batches(first, stop))


def seen(log: UnifiedLog) -> Seen:
    producers = log.producers.active_producers.values()
    return Seen(
        aborted(log),
        {each.producer_id: each.current_txn_first_offset for each in producers if each.in_transaction},
        {each.producer_id: each.last_sequence for each in producers},
        log.last_stable_offset,
        [
            record.value
            for batch in log.batches(log.log_start_offset, isolation="txn_committed")
            if not batch.is_control
            for record in batch
        ],
    )


def whole(steps: str) -> UnifiedLog:
    return Script(" ".join(step for step in steps.split() if step[0] not in "?=+!")).log


def opened_again(storage: SimStorage) -> Seen:
    return seen(opened(storage))


def require_as_whole(steps: str) -> None:
    """After the script, and once the log is opened again, it knows what a log without damage knows."""
    expected = whole(steps)
    script = Script(steps, whole=expected)
    assert not script.log.damages
    assert seen(script.log) == seen(expected)
    assert opened_again(script.storage.after_kill()) == seen(expected)
    script.log.flush()
    assert opened_again(script.storage.after_power_cut()) == seen(expected)
    script.log.close()
    assert opened_again(script.storage) == seen(expected)


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param("7 - 7 - ?0 ! - +0", id="open"),
        pytest.param("7 7 - 7 ?0 ?3 ! - +3 +0", id="open, in two ranges"),
        pytest.param("7 - 7 ?0 ! - 7a - +0", id="aborted behind the range"),
        pytest.param("- 7 ?1 ! - 7a - +1", id="all of its batches in the range"),
        pytest.param("7 7c 7 ?1 ! - 7a - +1", id="a commit marker in the range, and the next one aborted"),
        pytest.param("7 7a 7 ?1 ! - 7c - +1", id="an abort marker in the range, and the next one committed"),
        pytest.param("7 - 7a - ?2 ! - +2", id="an abort marker in the range"),
        pytest.param("7 - 7c - ?2 ! - +2", id="a commit marker in the range"),
        pytest.param("7 7c - 7 7c ?0 ?3 ! - +3 +0", id="committed"),
        pytest.param("7 8 ?0 ! - | 8 7 | 8c | 7a | - +0", id="snapshots in between"),
        pytest.param("8 | 7 ?1 ! 8 | 8a | 7a +1", id="a snapshot before and one behind"),
        pytest.param("7 9 8 8a 9 9a ?0 ! 7a 8 +0 8a", id="others have ended meanwhile"),
        pytest.param("7 8 7a 9 ?1 ! 8a 9a +1", id="one ends beside another that is unknown"),
        pytest.param("7 7 7 7 ?3 ! - +3 7 7a", id="the last batch of its producer"),
        pytest.param("7 7c 7 8 ?1 ?3 ! 7a 8a +1 +3", id="two ranges, one healed before the other"),
        pytest.param("7 8 ?1 7 7c - ! 8c 7 +1 7a", id="producers without a batch in the range"),
    ],
)
def test_a_healed_log_knows_the_transactions_of_one_without_damage(steps: str) -> None:
    require_as_whole(steps)


@pytest.mark.parametrize("base", [0, 3], ids=["first", "middle"])
@pytest.mark.parametrize("with_snapshots", [False, True])
def test_a_missing_segment_that_is_put_back_has_its_transactions(base: int, *, with_snapshots: bool) -> None:
    steps = "7 8 8a | 9 7a 8 | 8a 9 7 | - 9a 7"
    expected = whole(steps)
    script = Script(steps)
    script.log.close()
    for name in script.storage.list_directory(DIRECTORY):
        is_snapshot = name.endswith(".snapshot")
        if name.startswith(f"{base:020}") and (with_snapshots or not is_snapshot):
            script.storage.remove(f"{DIRECTORY}/{name}")
    log = opened(script.storage)
    (damage,) = log.damages
    assert (damage.first_offset, damage.next_offset) == (base, base + 3)
    splice(log, damage, batches_of(expected, base, base + 3))
    assert seen(log) == seen(expected)
    assert opened_again(script.storage.after_kill()) == seen(expected)


def test_what_is_known_of_batches_in_another_range_is_kept() -> None:
    """Producer 7's commit marker at offset 1 rots after the log has seen it."""
    steps = "7 7c 7 7 - ?1 =1 7a ?3 +3"
    script = Script(steps, whole=whole(steps))
    assert aborted(script.log) == [AbortedTxn(7, 2, 5, 6)]
    assert not script.log.producers.has_transactions
    script.do("+1")
    assert seen(script.log) == seen(whole(steps))


def test_an_open_transaction_that_began_in_a_healed_range_bounds_a_read_that_had_begun() -> None:
    steps = "7 - ?0 ! - -"
    script = Script(steps, whole=whole(steps))
    log = script.log
    assert log.last_stable_offset == 4
    segments = log.local.segments
    script.do("+0")
    assert log.last_stable_offset == 0
    assert log.local.segments is not segments
    assert log.read(0, 1000, isolation="txn_committed").records is None


@contextmanager
def failing_after(storage: SimStorage, allowed: int) -> Iterator[Iterator[int]]:
    """Let the disk fail at each change after `allowed` ones; yields what counts them."""
    calls = count()

    def counted(method: Callable[..., object], *args: object, **more: object) -> object:
        if next(calls) >= allowed:
            raise StorageIOError("the machine stops here")
        return method(*args, **more)

    names = ("write_file_atomically", "write_at", "sync_file", "rename", "remove", "sync_directory")
    for name in names:
        setattr(storage, name, partial(counted, getattr(storage, name)))
    try:
        yield calls
    finally:
        for name in names:
            delattr(storage, name)


def heal_until(script: Script, offset: int, allowed: int) -> bool:
    """Heal the range, but let the disk fail after `allowed` changes; whether it was healed."""
    with failing_after(script.storage, allowed):
        try:
            script.do(f"+{offset}")
        except StorageIOError:
            return False
    return True


@pytest.mark.parametrize("power", [False, True])
def test_a_crash_in_the_middle_leaves_a_log_that_is_right_once_it_is_healed(power: bool) -> None:
    steps = "8 | 7 7 8 9 9a ?1 ! =1 - 7a - | 8a | 7 -"
    expected = whole(steps)
    for allowed in count():
        script = Script(steps, whole=expected)
        script.log.flush()
        script.log.flush_state()
        done = heal_until(script, 1, allowed)
        storage = script.storage.after_power_cut() if power else script.storage.after_kill()
        after = Script("", storage, expected)
        after.log.update_high_watermark(after.log.log_end_offset)
        if after.log.damages:
            assert not done
            assert b"1" not in seen_around(after.log)
            after.allowed = script.allowed
            after.do("+1")
        assert seen(after.log) == seen(expected), allowed
        assert opened_again(after.storage.after_kill()) == seen(expected), allowed
        if done:
            assert allowed > 10
            return


def seen_around(log: UnifiedLog) -> list[bytes | None]:
    """The committed records behind the damaged range."""
    start = log.damages[0].stop_offset
    return [record.value for batch in log.batches(start, isolation="txn_committed") for record in batch]


def test_a_disk_that_fails_once_leaves_a_log_that_is_healed_later() -> None:
    steps = "8 | 7 7 8 9 9a ?1 ! =1 - 7a - | 8a | 7 -"
    expected = whole(steps)
    for allowed in count():
        script = Script(steps, whole=expected)
        script.log.flush()
        script.log.flush_state()
        done = heal_until(script, 1, allowed)
        if not script.log.is_offline:
            if script.log.damages:
                assert not done
                script.do("+1")
            assert seen(script.log) == seen(expected), allowed
        if done:
            return


def test_a_log_at_whose_range_recovery_stopped_is_rebuilt_from_there() -> None:
    steps = "8 | 7 7 8 9 9a | - 7a - | 8a | 7 -"
    expected = whole(steps)
    script = Script(steps)
    segment = script.log.local.segments[1]
    cell = segment.region.slice(65, 1)
    ctypes.c_uint8.from_address(cell.address).value ^= 1
    storage = script.storage.after_kill()
    stopped = opened(storage)
    assert stopped.stopped_at is not None
    splice_stopped(storage, stopped.stopped_at, batches_of(expected, 1, 2))
    assert opened_again(storage.after_kill()) == seen(expected)
    assert opened_again(storage) == seen(expected)


def test_a_log_whose_recovery_began_early_and_stopped_at_a_range_is_rebuilt_from_there() -> None:
    """A torn transaction index lets recovery begin at its segment, below the flush point."""
    steps = "6 6a | 7 8 8a 7a | - 7"
    expected = whole(steps)
    script = Script(steps)
    script.log.flush()
    script.log.flush_state()
    script.rot(3)
    storage = script.storage.after_kill()
    storage.write_at(f"{DIRECTORY}/{0:020}.txnindex", 34, b"torn")
    stopped = opened(storage)
    assert stopped.stopped_at is not None
    splice_stopped(storage, stopped.stopped_at, batches_of(expected, 3, 4))
    assert opened_again(storage.after_kill()) == seen(expected)
    assert opened_again(storage) == seen(expected)


def test_a_recovery_that_a_crash_ends_begins_again_at_a_torn_index() -> None:
    steps = "6 6a | 7 8 8a 7a | - 7"
    script = Script(steps)
    script.log.flush()
    script.log.flush_state()
    storage = script.storage.after_kill()
    storage.write_at(f"{DIRECTORY}/{0:020}.txnindex", 34, b"torn")
    for allowed in count():
        left = storage.after_kill()
        with failing_after(left, allowed) as calls, suppress(StorageIOError):
            opened(left)
        assert opened_again(left.after_kill()) == seen(whole(steps)), allowed
        if next(calls) <= allowed:
            return


# ---- repaired offline --------------------------------------------------------------------------------------

STEPS_TO_REPAIR = "8 | 7 7 8 9 9a ?1 ! =1 - 7a - | 8a | 7 -"
PEER = "/peer/orders-0"


def to_repair() -> tuple[Script, UnifiedLog]:
    """A closed log with one damaged range, and on its disk, in PEER, a whole one."""
    expected = whole(STEPS_TO_REPAIR)
    script = Script(STEPS_TO_REPAIR)
    script.log.close()
    script.storage.make_directory(PEER)
    for segment in expected.local.segments:
        data = segment.region.read(0, segment.size)
        script.storage.write_file(f"{PEER}/{segment.base_offset:020}.log", data)
    epochs = expected.local.storage.read_file(f"{DIRECTORY}/{LEADER_EPOCH_CHECKPOINT}")
    script.storage.write_file(f"{PEER}/{LEADER_EPOCH_CHECKPOINT}", epochs)
    return script, expected


def repaired(storage: SimStorage) -> None:
    list(repair(storage, ManualClock(), DIRECTORY, apply_changes=True, peer=PEER))


def test_a_log_that_is_repaired_from_a_peer_knows_the_transactions_in_the_range() -> None:
    script, expected = to_repair()
    repaired(script.storage)
    assert opened_again(script.storage) == seen(expected)


def test_a_crash_in_a_repair_from_a_peer_leaves_no_state_that_lacks_the_range() -> None:
    script, expected = to_repair()
    for allowed in count():
        storage = script.storage.after_kill()
        with failing_after(storage, allowed) as calls, suppress(StorageIOError):
            repaired(storage)
        after = Script("", storage.after_kill(), expected)
        after.allowed = script.allowed
        after.require_nothing_uncommitted()
        if not after.log.damages:
            assert seen(after.log) == seen(expected), allowed
        left = storage.after_kill()
        repaired(left)
        assert opened_again(left) == seen(expected), allowed
        if next(calls) <= allowed:
            return


# ---- any script --------------------------------------------------------------------------------------------


KINDS = ("7", "8", "7a", "8a", "7c", "8c", "-", "|", "!", "?", "=", "+")


@st.composite
def scripts(draw: st.DrawFn) -> str:
    """Up to three batches rot at some moments, and are filled in some order, or in the end."""
    steps: list[str] = []
    end, rotten = 0, set[int]()
    for kind in draw(
        st.lists(
            st.sampled_from(["7", "8", "7a", "8a", "7c", "8c", "-", "|", "!", "?", "=", "+"]), max_size=30
        )
    ):
        if kind == "?":
            offset = draw(st.integers(0, end))
            if offset < end and len(rotten) < 3 and not {offset - 1, offset, offset + 1} & rotten:
                rotten.add(offset)
                steps.append(f"?{offset}")
        elif kind == "=":
            steps += [f"={offset}" for offset in sorted(rotten)]
        elif kind == "+":
            if rotten:
                offset = draw(st.sampled_from(sorted(rotten)))
                rotten.remove(offset)
                steps.append(f"+{offset}")
        else:
            steps.append(kind)
            end += kind not in "|!"
    steps += [f"+{offset}" for offset in draw(st.permutations(sorted(rotten)))]
    return " ".join(steps)


@given(scripts())
@settings(max_examples=300, deadline=None)
def test_any_log_is_as_one_without_damage_once_all_is_healed(steps: str) -> None:
    require_as_whole(steps)


# ---- the batches -------------------------------------------------------------------------------------------


def damaged(*offsets: int) -> tuple[SimStorage, UnifiedLog]:
    """A log of ten batches in one closed segment, those at the offsets damaged."""
    storage = SimStorage()
    storage.make_directory(DIRECTORY)
    log = opened(storage)
    for offset in range(10):
        log.append_records([b"%d" % offset * 20])
    log.roll()
    segment = log.local.segments[0]
    for offset in offsets:
        found = segment.position_of(offset)
        assert found is not None
        cell = segment.region.slice(found[0] + 70, 1)
        ctypes.c_uint8.from_address(cell.address).value ^= 1
    for offset in offsets:
        assert log.search_damage(segment, offset)
    return storage, log


def batch_at(offset: int, size: int) -> bytes:
    """As a cleaner or another codec may have left it: of another size."""
    data = bytearray(BatchBuilder().build([b"%d" % offset * size], now_ms=1))
    data[:8] = offset.to_bytes(8, "big")
    data[12:16] = bytes(4)  # leader epoch 0
    return bytes(data)


def all_values(log: UnifiedLog) -> list[bytes | None]:
    return [record.value for each in log.batches(0) for record in each]


@pytest.mark.parametrize("size", [1, 20, 3000])
def test_every_offset_is_found_where_it_stands_now(size: int) -> None:
    storage, log = damaged(4)
    splice(log, log.damages[0], batch_at(4, size))
    expected = [b"%d" % offset * (size if offset == 4 else 20) for offset in range(10)]
    assert all_values(log) == expected
    assert not log.damages
    assert not storage.exists(f"{DIRECTORY}/{DAMAGE_FILE}")
    log.append_records([b"on"])
    log.close()
    assert all_values(opened(storage)) == [*expected, b"on"]


def test_a_range_of_another_size_waits_for_damage_behind_it() -> None:
    _, log = damaged(2, 7)
    first, second = log.damages
    with pytest.raises(PeerDisagrees):
        splice(log, first, batch_at(2, 30))
    splice(log, second, batch_at(7, 30))
    assert list(log.damages) == [first]
    splice(log, first, batch_at(2, 30))
    assert all_values(log) == [b"%d" % offset * (30 if offset in (2, 7) else 20) for offset in range(10)]


def test_a_range_that_is_gone_is_not_filled() -> None:
    _, log = damaged(4)
    damage = log.damages[0]
    log.truncate_to(2)
    with pytest.raises(LogCleaningAborted):
        splice(log, damage, batch_at(4, 20))
    assert all_values(log) == [b"0" * 20, b"1" * 20]
